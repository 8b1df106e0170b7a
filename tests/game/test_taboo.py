"""The game as a state machine, and whole games played through it line by line."""

from pathlib import Path

import pytest

from spag.core.types import GameState, Utterance
from spag.games.taboo.judge.judge import JudgeMode
from spag.games.taboo.rules import AdversarialTaboo
from spag.games.taboo.types import Outcome, Role

GAME = AdversarialTaboo()
PLAYTHROUGHS = sorted((Path(__file__).parent.parent / "golden" / "playthroughs").glob("*.txt"))


def test_only_the_attacker_sees_the_word() -> None:
    state = GAME.apply(GAME.initial_state("river", 5), Utterance(Role.ATTACKER, "Hi"))
    assert GAME.observe(state, Role.ATTACKER).target_word == "river"
    assert GAME.observe(state, Role.DEFENDER).target_word is None
    assert GAME.observe(state, Role.DEFENDER).history == state.history


def test_order_and_end_are_kept() -> None:
    state = GAME.initial_state("river", 1)
    with pytest.raises(ValueError, match="it is the attacker's move, not the defender's"):
        GAME.apply(state, Utterance(Role.DEFENDER, "Hi"))
    state = GAME.apply(GAME.apply(state, Utterance(Role.ATTACKER, "Hi")), Utterance(Role.DEFENDER, "Hello"))
    assert state.verdict is not None
    assert (state.verdict.outcome, state.verdict.length) == (Outcome.TIE, 2)
    with pytest.raises(ValueError, match="the game is over"):
        GAME.apply(state, Utterance(Role.ATTACKER, "Hi"))


@pytest.mark.parametrize(("word", "turns", "message"), [("  ", 5, "the target word is empty"), ("river", 0, "max_turns is 0")])
def test_impossible_games_are_refused(word: str, turns: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GAME.initial_state(word, turns)


def test_states_are_values() -> None:
    start = GAME.initial_state("river", 5)
    GAME.apply(start, Utterance(Role.ATTACKER, "Hi"))
    assert start == GameState("river", 5)


@pytest.mark.parametrize("path", PLAYTHROUGHS, ids=lambda path: path.stem)
def test_playthroughs(path: Path) -> None:
    """A file holds the word, the judge, the lines, and after `=` what the judge said."""
    head, *lines = path.read_text().splitlines()
    word, turns, mode = head.removeprefix("# ").split(" / ")
    game = AdversarialTaboo(JudgeMode(mode))
    state = game.initial_state(word, int(turns))
    for line in lines:
        if line.startswith("= "):
            assert state.verdict is not None
            assert line == f"= {state.verdict.outcome} after {state.verdict.length}: {state.verdict.reason}"
            return
        assert state.verdict is None
        role = {"A": Role.ATTACKER, "D": Role.DEFENDER}[line[0]]
        state = game.apply(state, Utterance(role, line[3:]))
    raise AssertionError("the playthrough has no verdict line")


def test_there_are_playthroughs() -> None:
    assert len(PLAYTHROUGHS) >= 4
