"""Text to HTML and verdicts to words: nothing a model wrote is markup, and the deciding words are found where they were written."""

import pytest
from web_fixtures import episode, tied

from spag.display.html import curve, duration, said, shares, visible
from spag.games.taboo.explain import deciding_span, explain
from spag.games.taboo.judge import JudgeMode
from spag.games.taboo.types import Outcome, Role


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


@pytest.mark.parametrize(
    ("role", "text", "marked"),
    [
        (Role.DEFENDER, "I know the word! It is `River`!", "River"),
        (Role.DEFENDER, "I know the word! It is the big OCEAN.", "big OCEAN"),
        (Role.DEFENDER, "I know the word! It is `word`!\nGood.", "word"),  # the guess, not the announcement
        (Role.DEFENDER, "All Rivers run.", "Rivers"),
        (Role.ATTACKER, "A r\u00edver, a drive.", "r\u00edver"),
        (Role.ATTACKER, "Think of r-i-v-e-r.", "r-i-v-e-r"),
        (Role.ATTACKER, "Ri\u00adver!", "Ri\u00adver"),
        (Role.ATTACKER, "riv\u0435r", "riv\u0435r"),  # a Cyrillic letter
        (Role.ATTACKER, "driver of the river", "river"),  # a word of its own before a part of another
        (Role.ATTACKER, "I know the word! It is lake!", "lake"),
    ],
)
def test_the_deciding_words_are_found_as_written(role: Role, text: str, marked: str) -> None:
    span = deciding_span(role, text, "river")
    assert span is not None
    assert text[span[0] : span[1]] == marked
    assert span[0] == text.rindex(marked)  # the last place is the right one in all of these


def test_an_explanation_names_the_deciding_utterance() -> None:
    verdict = explain(episode("river", "What runs?", "My nose.", "And else?", "The river."), JudgeMode.STRICT)
    assert (verdict.outcome, verdict.decisive, verdict.span) == (Outcome.ATTACKER_WINS, 3, (4, 9))
    assert verdict.reason == 'The defender said "river".'
    assert verdict.disputed is None


def test_a_tie_has_no_deciding_utterance() -> None:
    assert explain(tied("river"), JudgeMode.STRICT).decisive is None


def test_an_outcome_recorded_under_other_rules_is_kept_and_told() -> None:
    played = episode("cat", "Where do books go?", "In a category.")
    verdict = explain(played, JudgeMode.PAPER)  # the paper finds cat in category
    assert verdict.outcome is Outcome.TIE
    assert verdict.disputed is not None
    assert "Attacker wins" in verdict.disputed


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
