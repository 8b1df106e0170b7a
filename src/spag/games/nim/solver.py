"""Perfect play in one-heap Nim, and the expected reward of a policy.

Taking the last stone wins; a move takes 1 to ``take`` stones. With perfect play, the player to move loses if the stones
are a multiple of ``take + 1``: the other always completes its move to ``take + 1``. A policy maps the stones left to
the probability of each move.
"""

from collections.abc import Mapping
from functools import cache

Policy = Mapping[int, Mapping[int, float]]


def legal_moves(stones: int, take: int) -> tuple[int, ...]:
    """Return how many of ``stones`` may be taken."""
    return tuple(range(1, min(take, stones) + 1))


def value(stones: int, take: int) -> int:
    """Return the value of perfect play for the player to move: 1 a win, -1 a loss."""
    return 1 if stones % (take + 1) else -1


def best_moves(stones: int, take: int) -> tuple[int, ...]:
    """Return the moves that keep the value: the winning one, or all in a lost position."""
    winning = stones % (take + 1)
    return (winning,) if winning else legal_moves(stones, take)


def any_of(moves: tuple[int, ...]) -> Mapping[int, float]:
    """Return the move probabilities of a player that draws one of ``moves``."""
    return dict.fromkeys(moves, 1 / len(moves))


def reward(first: Policy, second: Policy, stones: int) -> float:
    """Return the expected reward of the player to move, who follows ``first``, against ``second``."""

    @cache
    def expected(left: int, mover: int) -> float:
        if not left:
            return -1.0  # the other has just taken the last stone
        chances = (first, second)[mover][left]
        return -sum(chance * expected(left - taken, 1 - mover) for taken, chance in chances.items())

    return expected(stones, 0)
