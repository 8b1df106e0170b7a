"""One number per player: Bradley-Terry strengths (the ``choix`` library) on the Elo scale, with bootstrap intervals
over tasks.

A game counts by its rewards: a player scores 1 if it earned the whole range of rewards more than the other, 0.5 if both
earned the same. Every pair is credited with one imaginary game of 0.5 each, so that a player that won everything has a
finite rating.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spag.evaluation.intervals import Floats, Ints

POINTS = 400 / np.log(10)
"""Elo points per unit of log-strength: 400 points are odds of ten to one."""
PRIOR_SCORE = 0.5
"""Score credited to each side of every pair."""
_DRAWS = 500


@dataclass(frozen=True, slots=True)
class Rating:
    """A player's points with a 95 % interval. The first player is at 0 by definition."""

    name: str
    points: float
    low: float
    high: float


def rate(names: Sequence[str], scores: Floats, weights: Ints) -> list[Rating]:
    """Rate the players. ``scores``, shape (tasks, players, players): scores of row against column by task. ``weights``:
    (draws, tasks).
    """
    players = len(names)
    points = bradley_terry(scores.sum(axis=0))
    resampled = (weights[:_DRAWS] @ scores.reshape(len(scores), -1)).reshape(-1, players, players)
    low, high = np.quantile([bradley_terry(draw, start=points) for draw in resampled], (0.025, 0.975), axis=0)
    return [Rating(name, *(float(value) for value in row)) for name, *row in zip(names, points, low, high, strict=True)]


def bradley_terry(scores: Floats, prior: float = PRIOR_SCORE, start: Floats | None = None) -> Floats:
    """Return the maximum-likelihood points, shape (players,), of a matrix of ``scores`` (row against column). ``start``
    only speeds up convergence.
    """
    import choix  # noqa: PLC0415 - slow to import, and only results need it

    # players that hardly met take thousands of iterations
    first = None if start is None else start / POINTS
    strengths = choix.ilsr_pairwise_dense(scores + prior, initial_params=first, max_iter=100_000)
    points: Floats = (strengths - strengths[0]) * POINTS
    return points
