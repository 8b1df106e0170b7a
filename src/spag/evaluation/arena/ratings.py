"""One number per player: Bradley-Terry strengths on the Elo scale, with bootstrap intervals over tasks.

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
_PRECISION, _STEPS = 1e-6, 100
"""Newton's method stops at this precision of log-strengths, far below a point, or after this many steps."""


@dataclass(frozen=True, slots=True)
class Rating:
    """A player's points with a 95 % interval. The first player is at 0 by definition."""

    name: str
    points: float
    low: float
    high: float


def rate(names: Sequence[str], scores: Floats, weights: Ints, lead: float = 1.0) -> list[Rating]:
    """Rate the players by ``scores`` (tasks, players, players), row against column; ``weights``: (draws, tasks).

    A replicate also draws how often each side of a pair wins an imaginary task by ``lead``, a share of the range of
    rewards (once on average). Otherwise a player that won everything would be sure of its rating.
    """
    players = len(names)
    points = bradley_terry(scores.sum(axis=0))
    resampled = (weights[:_DRAWS] @ scores.reshape(len(scores), -1)).reshape(-1, players, players)
    games = scores + scores.swapaxes(1, 2)
    per_task = games.sum(axis=0) / np.maximum(1, (games > 0).sum(axis=0))
    won = np.random.default_rng(0).poisson(1, resampled.shape)
    resampled += per_task * (won * (1 + lead) + won.swapaxes(1, 2) * (1 - lead)) / 2
    low, high = np.quantile(bradley_terry(resampled), (0.025, 0.975), axis=0)
    low, high = np.minimum(low, points), np.maximum(high, points)
    return [Rating(name, *(float(value) for value in row)) for name, *row in zip(names, points, low, high, strict=True)]


def bradley_terry(scores: Floats, prior: float = PRIOR_SCORE) -> Floats:
    """Return the maximum-likelihood points, shape (..., players), of matrices of ``scores`` (row against column), shape
    (..., players, players). Newton's method, with the first player held at 0; every pair must have a score.
    """
    diagonal = np.eye(scores.shape[-1])
    others = 1 - diagonal
    scored = (scores + prior) * others
    games = scored + scored.swapaxes(-1, -2)
    strengths = np.zeros(scores.shape[:-1])
    for _ in range(_STEPS):
        expected = others / (1 + np.exp(strengths[..., None, :] - strengths[..., None]))
        gradient = (scored - games * expected).sum(axis=-1)
        curvature = games * expected * (1 - expected)
        hessian = diagonal * curvature.sum(axis=-1)[..., None] - curvature
        step = np.linalg.solve(hessian[..., 1:, 1:], gradient[..., 1:, None])[..., 0]
        # the likelihood is sure to rise where no two strengths move apart by more than 1
        spread = step.max(axis=-1, initial=0) - step.min(axis=-1, initial=0)
        strengths[..., 1:] += step / np.maximum(1, spread)[..., None]
        if spread.max(initial=0) < _PRECISION:
            break
    points: Floats = strengths * POINTS
    return points
