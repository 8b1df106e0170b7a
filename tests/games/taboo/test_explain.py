"""Explanations: the deciding words are found where they were written, and a recorded outcome that the judge disputes is
kept and shown.
"""

import pytest

from spag.core.episodes import Episode
from spag.core.types import Task, Utterance
from spag.games.replay import explain
from spag.games.taboo.judge import JudgeMode, deciding_span
from spag.games.taboo.taboo import AdversarialTaboo
from spag.games.taboo.types import Role, TabooOutcome


def episode(word: str, *texts: str, outcome: TabooOutcome | None = None) -> Episode:
    history = tuple(Utterance((Role.ATTACKER, Role.DEFENDER)[at % 2], text) for at, text in enumerate(texts))
    return Episode(task=Task(word, {"target_word": word, "max_turns": 5}), history=history, outcome=outcome)


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


@pytest.mark.parametrize(("word", "text"), [("cat", "A \u0441at."), ("spoon", "s\u0440oon"), ("yes", "\u0443es")])
def test_a_word_in_letters_that_only_look_alike_is_found(word: str, text: str) -> None:
    span = deciding_span(Role.DEFENDER, text, word)
    assert span is not None
    assert text[span[0] : span[1]] == text.removeprefix("A ").removesuffix(".")


def test_an_explanation_names_the_deciding_utterance() -> None:
    found = explain(AdversarialTaboo(), episode("river", "What runs?", "My nose.", "And else?", "The river.", "Well."))
    assert (found.outcome.name, found.decisive, found.span) == (TabooOutcome.ATTACKER_WINS, 3, (4, 9))
    assert (found.reason, found.disputed) == ('The defender said "river".', None)


def test_a_tie_has_no_deciding_utterance() -> None:
    assert explain(AdversarialTaboo(), episode("river", "Hi", "Hello")).decisive is None


def test_an_outcome_recorded_under_other_rules_is_kept_and_shown() -> None:
    played = episode("cat", "Where do books go?", "In a category.", outcome=TabooOutcome.TIE)
    found = explain(AdversarialTaboo(judge=JudgeMode.PAPER), played)  # the paper's judge finds cat in category
    assert (found.outcome.name, found.decisive) == (TabooOutcome.TIE, None)
    assert found.disputed is not None
    assert "attacker wins" in found.disputed
