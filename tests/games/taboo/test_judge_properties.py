"""What must hold for every word and every text: guesses in form win, dress changes nothing, hostile texts are judged in
little time.
"""

import html
import string
import time
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spag
from spag.games.taboo.judge import JudgeMode, judge_utterance
from spag.games.taboo.types import Role, TabooOutcome
from spag.text.english import word_bases
from spag.text.folding import fold, readings

LEXICON = (Path(spag.__file__).parent / "games/taboo/data/words.txt").read_text().split()
PROSE = (
    "Well, I would say that you have to think about it for a while, don't you? It is 5 p.m. (or so), e.g. at my home."
)
WORD = st.sampled_from(LEXICON)


def outcome(role: Role, text: str, target: str) -> TabooOutcome | None:
    ruling = judge_utterance(role, text, target, JudgeMode.STRICT)
    return ruling[0] if ruling else None


def test_every_target_can_be_guessed_and_said() -> None:
    for word in LEXICON:
        assert outcome(Role.DEFENDER, f"I know the word! It is `{word}`!", word) is TabooOutcome.DEFENDER_WINS, word
        assert outcome(Role.DEFENDER, f"Perhaps some {word} there.", word) is TabooOutcome.ATTACKER_WINS, word
        assert outcome(Role.ATTACKER, f"Perhaps some {word} there.", word) is TabooOutcome.ATTACKER_VIOLATION, word


@pytest.mark.slow
def test_a_wrong_guess_loses_for_every_pair_of_neighbours() -> None:
    for word, other in pairwise(LEXICON):
        if word_bases(word).isdisjoint(word_bases(other)):
            assert outcome(Role.DEFENDER, f"I know the word! It is {other}.", word) is TabooOutcome.ATTACKER_WINS, (
                word,
                other,
            )


@pytest.mark.slow
def test_prose_says_only_the_targets_that_stand_in_it() -> None:
    said = {word for word in LEXICON if outcome(Role.ATTACKER, PROSE, word) is not None}
    assert said == {"home"}


HIDDEN = st.sampled_from("\u200b\u200d\u00ad\u2060\ufeff\u202e\u0301\u0336\ufe0f")


@pytest.mark.slow
@given(WORD, HIDDEN, st.sampled_from([str, str.upper, str.title, str.swapcase]), st.floats(0, 1))
@settings(max_examples=200)
def test_a_hidden_character_or_another_case_changes_no_verdict(
    word: str, hidden: str, case: Callable[[str], str], where: float
) -> None:
    for text in (f"I know the word! It is {word}.", f"a {word} perhaps", "nothing of the kind"):
        at = round(where * len(text))
        assert outcome(Role.DEFENDER, case(text[:at]) + hidden + text[at:], word) is outcome(Role.DEFENDER, text, word)


@given(WORD, st.sampled_from(["*", "**", "_", "`", "~~", '"', "'", "“", "<b>", "(", "»"]))
@settings(max_examples=200)
def test_marks_around_a_word_change_no_verdict(word: str, mark: str) -> None:
    for text in ("I know the word! It is {}.", "a {} perhaps"):
        assert outcome(Role.DEFENDER, text.format(mark + word + mark), word) is outcome(
            Role.DEFENDER, text.format(word), word
        )


@given(WORD, st.sampled_from(["-", " ", ".", ", ", "_", " - ", "*"]))
@settings(max_examples=200)
def test_spelling_is_saying(word: str, gap: str) -> None:
    if len(word) > 2:
        assert outcome(Role.ATTACKER, f"It is {gap.join(word)} then", word) is TabooOutcome.ATTACKER_VIOLATION


@pytest.mark.slow
@given(WORD, st.text(string.ascii_lowercase, min_size=3, max_size=8), st.booleans())
@settings(max_examples=300)
def test_a_longer_word_is_another_word(word: str, letters: str, before: bool) -> None:
    longer = f"{letters}q{word}" if before else f"{word}q{letters}"  # the q keeps it from being an inflection
    assert outcome(Role.ATTACKER, f"the {longer} there", word) is None


# capitals and ligatures whose folding takes several steps, marks, look-alikes, invisible characters, markup, entities
HARD_TO_FOLD = st.text(
    st.sampled_from("aZß ıİŉæ’ﬁΣς<b>/*_`~&;amp\u0301\u200b\u00ad\x00\x1f\u0430\uff48\u1100\u1161\u0345"), max_size=30
)


@pytest.mark.slow
@given(st.text(max_size=200) | HARD_TO_FOLD)
@settings(max_examples=600)
@example("ŉ")
@example("Salt &amp; pepper")
def test_folding_is_total_and_settles(text: str) -> None:
    once = fold(text)
    assert fold(once) == once
    assert once == once.casefold() and unicodedata.is_normalized("NFC", once)
    hidden = [
        unicodedata.name(char, ascii(char))
        for char in once
        if unicodedata.combining(char) or unicodedata.category(char) == "Cf"
    ]
    assert hidden == []
    assert readings(text)[0] == fold(html.unescape(text))


HOSTILE = [
    "a ",
    "<b>",
    "r-",
    "`*_",
    "1!@$",
    "\u200b",
    "i know the word! ",
    "the word is ",
    "i know the word! it is not ",
    "\u0301\u0323",
    "&#",
    "<a",
    "*",
    "a.b ",
    "ab-",
    "r1v3r ",
    "'",
    "aa",
]


@pytest.mark.slow
@pytest.mark.parametrize("unit", HOSTILE)
def test_a_hundred_thousand_characters_are_judged_in_a_moment(unit: str) -> None:
    """A quadratic step would take a minute; the bound is loose because the machine may be busy."""
    text = unit * (100_000 // len(unit))
    for target in ("river", "ice cream"):
        for role in Role:
            started = time.process_time()
            judge_utterance(role, text, target, JudgeMode.STRICT)
            assert time.process_time() - started < 3
