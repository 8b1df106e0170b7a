"""The position of a TextArena environment after a seed and some moves: a pure function over a mutable object.

TextArena draws from the global generators of Python and NumPy at any time. Both are seeded for a replay and restored
after it, so replays and our own draws do not affect each other.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from spag.core.errors import first_line

PLAYERS = range(2)
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of an environment that cannot be started, or cannot read a move."""
_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class Position:
    """The observation of each player, the player to move, and at the end ``rewards`` by player; ``invalid`` is the
    player whose invalid move ended the game.
    """

    seen: tuple[str, ...]
    to_move: int
    rewards: tuple[float, ...] | None = None
    invalid: int | None = None
    reason: str = ""


@lru_cache(maxsize=4096)
def position(env_id: str, options: str, seed: int, texts: tuple[str, ...]) -> Position:
    """Return the position of the environment, made with ``options`` (JSON), after the moves ``texts``. Raises the
    errors of making it.
    """
    import textarena  # noqa: PLC0415 - takes seconds

    with _seeded(seed):
        env = textarena.make(env_id, **json.loads(options))
        if not isinstance(env, textarena.Wrapper):
            env = textarena.wrappers.LLMObservationWrapper(env)  # the -raw environments give lists of messages
        env.reset(num_players=len(PLAYERS), seed=seed)
        for text in texts:
            env.get_observation()
            mover = env.state.current_player_id
            try:
                done, _ = env.step(text)
            except FAULTS as error:  # a move that the environment fails to read is its player's fault
                paid = tuple(-1.0 if player == mover else 1.0 for player in PLAYERS)
                reason = f"the environment failed to read the move: {first_line(error)}"
                return Position(("",) * len(PLAYERS), mover, paid, mover, reason)
            if done:
                return _ended(env, mover)
        to_move = env.state.current_player_id
        return Position(tuple(_seen(env, player) for player in PLAYERS), to_move)


def _ended(env: Any, mover: int) -> Position:
    seen = tuple(_seen(env, player) for player in PLAYERS)
    rewards, info = env.close()
    invalid = next((player for player in PLAYERS if info[player].get("invalid_move")), None)
    reason = " ".join(str(info[mover].get("reason") or "the environment ended the game").split())
    return Position(seen, mover, tuple(float((rewards or {}).get(player, 0)) for player in PLAYERS), invalid, reason)


def _seen(env: Any, player: int) -> str:
    """Return the observation of ``player``. This may change the environment, which is not used again."""
    env.state.current_player_id = player
    return str(env.get_observation()[1])


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with _LOCK:
        python, numbers = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
