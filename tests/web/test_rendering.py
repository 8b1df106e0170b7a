"""Text to HTML: nothing a model wrote is markup."""

import pytest

from spag.core.errors import ConfigError
from spag.core.types import Outcome
from spag.games.registry import get
from spag.report.html import curve, duration, game_style, said, shares, visible


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&#34;&#39;"),
        ("a\u200bb", 'a<span class="hidden-char" title="zero width space">U+200B</span>b'),
        ("\u202e", '<span class="hidden-char" title="right-to-left override">U+202E</span>'),
        ("\x00", '<span class="hidden-char" title="control character">U+0000</span>'),
        ("ri\u00adver", 'ri<span class="hidden-char" title="soft hyphen">U+00AD</span>ver'),
        ("tab\tline\n", "tab\tline\n"),
        ("👩\u200d🚀 é ü שלום", "👩\u200d🚀 é ü שלום"),  # a joiner inside an emoji belongs there
        ("r\u200div", 'r<span class="hidden-char" title="zero width joiner">U+200D</span>iv'),
    ],
)
def test_visible(text: str, html: str) -> None:
    assert visible(text) == html


def test_a_huge_text_is_cut_with_a_note() -> None:
    assert visible("x" * 25, longest=20) == "x" * 20 + ' <span class="cut">… 5 more characters</span>'


def test_the_marked_piece_is_escaped_like_the_rest() -> None:
    assert said("a <i> b", (2, 5)) == "a <mark>&lt;i&gt;</mark> b"


def test_a_long_utterance_is_cut_around_the_marked_piece() -> None:
    text = "x" * 60 + "<b>" + "y" * 60
    assert said(text, longest=60) == "x" * 60 + ' <span class="cut">… 63 more characters</span>'
    start, end = '<span class="cut">…</span> ', ' <span class="cut">… 20 more characters</span>'
    assert said(text, (60, 63), longest=53, before=10) == start + "x" * 10 + "<mark>&lt;b&gt;</mark>" + "y" * 40 + end


def test_shares_add_up_in_the_order_of_the_outcomes() -> None:
    rows = list(shares({"tie": 1, "attacker_wins": 3}, get("adversarial_taboo")))
    assert [(row[0].name, *row[1:]) for row in rows if row[1]] == [
        ("attacker_wins", 3, 75.0, 0.0),
        ("tie", 1, 25.0, 75.0),
    ]


@pytest.mark.parametrize(
    ("name", "color"),
    [("fine", "red; } body { display: none"), ("a b", "#aabbcc"), ("x{", "#aabbcc"), ("fine", "#abc")],
)
def test_only_plain_names_and_colors_reach_the_style_sheet(name: str, color: str) -> None:
    game = get("adversarial_taboo")
    assert ".o-tie { --fill: #a3a9b6;" in game_style(game)
    assert ".second { --fill: #3f9599;" in game_style(game)  # the color of the defender's victory
    other = type("Other", (type(game),), {"outcomes": {name: Outcome(name, "label", color)}})()
    with pytest.raises(ConfigError, match="write a plain name and a color as #rrggbb"):
        game_style(other)


def test_curves_and_durations() -> None:
    assert curve([1.0, 3.0]) == "0.0,46.0 240.0,2.0"
    assert curve([2.0, 2.0]) == "0.0,24.0 240.0,24.0"
    assert curve([1.0, None, 3.0, None, None]) == "0.0,46.0 120.0,2.0"  # at their own places
    for count in (2, 120, 121, 239, 1000):
        points = curve(list(map(float, range(count)))).split()
        assert len(points) <= 120 and points[-1] == "240.0,2.0"  # thinned, and to the end
    assert [duration(seconds) for seconds in (0.3, 8, 240, 7500)] == ["under 1 s", "8 s", "4 min", "2 h 05 min"]
