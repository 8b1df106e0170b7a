"""Text to HTML: nothing a model wrote is markup."""

import pytest

from spag.display.html import curve, duration, said, shares, visible
from spag.games.taboo.types import Outcome


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


def test_shares_add_up_and_keep_their_order() -> None:
    rows = list(shares({Outcome.TIE: 1, Outcome.ATTACKER_WINS: 3}))
    assert [(row[0], row[1], row[2], row[3]) for row in rows if row[1]] == [
        (Outcome.ATTACKER_WINS, 3, 75.0, 0.0),
        (Outcome.TIE, 1, 25.0, 75.0),
    ]


def test_curves_and_durations() -> None:
    assert curve([1.0, 3.0], 240, 48) == "0.0,46.0 240.0,2.0"
    assert curve([2.0, 2.0]) == "0.0,2.0 240.0,2.0"
    assert len(curve(list(map(float, range(1000)))).split()) <= 120
    assert [duration(seconds) for seconds in (0.3, 8, 240, 7500)] == ["under 1 s", "8 s", "4 min", "2 h 05 min"]
