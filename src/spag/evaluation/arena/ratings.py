"""One number a player: Bradley-Terry strengths (the ``choix`` library) on the scale of Elo, with bootstrap intervals
over tasks.

A game counts for what it paid: a player's score in it is 1 where it earned the whole range of rewards more than the
other, 0.5 where both earned the same. Every pair is credited with one game of 0.5 each that was never played, so that a
player who took everything has a finite rating.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spag.evaluation.intervals import Floats, Ints

POINTS = 400 / np.log(10)
"""Elo points a unit of log-strength: 400 points are odds of ten to one."""
PRIOR_SCORE = 0.5
"""Score that each side of every pair is credited with."""
_DRAWS = 500


@dataclass(frozen=True, slots=True)
class Rating:
    """A player's points with a 95 % interval. The first player stands at 0 by definition."""

    name: str
    points: float
    low: float
    high: float


def rate(names: Sequence[str], scores: Floats, weights: Ints) -> list[Rating]:
    """Rate the players. ``scores``, shape (tasks, players, players): by task, what row scored against column.
    ``weights``: (draws, tasks).
    """
    players = len(names)
    points = bradley_terry(scores.sum(axis=0))
    resampled = (weights[:_DRAWS] @ scores.reshape(len(scores), -1)).reshape(-1, players, players)
    low, high = np.quantile([bradley_terry(draw, start=points) for draw in resampled], (0.025, 0.975), axis=0)
    return [Rating(name, *(float(value) for value in row)) for name, *row in zip(names, points, low, high, strict=True)]


def bradley_terry(scores: Floats, prior: float = PRIOR_SCORE, start: Floats | None = None) -> Floats:
    """Return the maximum-likelihood points, shape (players,), of a matrix of ``scores`` (row against column). ``start``
    only saves time.
    """
    import choix  # noqa: PLC0415 - slow to import, and only results need it

    strengths = choix.ilsr_pairwise_dense(scores + prior, initial_params=None if start is None else start / POINTS)
    points: Floats = (strengths - strengths[0]) * POINTS
    return points
