"""Shared steps of all adapters: begin a game, show a role what is new in its prompt, and apply its text.

A prompt is made from ``Game.observe`` alone, so an adapter that shows nothing else keeps every secret of the game.
Other trainers pass replies as sampled, including private reasoning: only the spoken part is applied.
"""

import random
from collections.abc import Sequence

from spag.core.thinking import split_thought
from spag.core.types import State, Task, Utterance
from spag.engines.base import FinishReason
from spag.games.base import Game
from spag.models.tokens import shared_length
from spag.storage.episodes import MAX_UTTERANCE


def begin(game: Game, tasks: Sequence[Task], seed: int | None) -> State:
    """Start a game on the task drawn by ``seed``, or on a random one if ``None``."""
    rng = random.Random(seed)
    return game.start(rng.choice(tasks), rng.getrandbits(32))


def new_lines(before: str, now: str) -> str:
    """Return the lines of the prompt ``now`` after those that it shares with the prompt ``before``."""
    return now[now.rfind("\n", 0, shared_length(before, now)) + 1 :]


def after(game: Game, state: State, text: str) -> State:
    """Return the position after the player to move replied ``text``. An illegal move ends the game by its own rules.

    Thoughts in it stay private; one that never closes leaves an empty utterance.
    """
    role = game.to_move(state)
    assert role is not None, "the game is over"
    thought, speech, is_cut = split_thought(text)
    reason = str(FinishReason.THOUGHT) if is_cut else None
    return game.apply(state, Utterance(role, speech.strip(), reason, thought=thought[:MAX_UTTERANCE] or None))
