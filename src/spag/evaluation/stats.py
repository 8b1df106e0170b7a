"""Rates and paired differences with intervals and p-values.

Words are the unit of chance: every figure that compares players resamples or flips whole words, because the games on one word are alike.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, binomtest

DRAWS = 2000
"""Bootstrap samples behind an interval."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of ``total``, with its 95 % Wilson interval (score interval, no continuity correction)."""

    count: int
    total: int
    rate: float
    low: float
    high: float


def wilson(count: int, total: int) -> Rate:
    """Return ``count / total`` with its interval; nothing observed gives a rate of 0 in [0, 1]."""
    if total == 0:
        return Rate(0, 0, 0.0, 0.0, 1.0)
    interval = binomtest(count, total).proportion_ci(0.95, method="wilson")
    return Rate(count, total, count / total, float(interval.low), float(interval.high))


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean paired difference, its 95 % bootstrap interval over words, and the exact p-value of there being none."""

    mean: float
    low: float
    high: float
    p_value: float


def bootstrap_weights(words: int, seed: int, draws: int = DRAWS) -> Ints:
    """Return how often each word occurs in each resampling of ``words`` words, shape (draws, words)."""
    return np.random.default_rng(seed).multinomial(words, np.full(words, 1 / words), size=draws)


def paired_difference(differences: Ints, cells: Ints, weights: Ints) -> Difference | None:
    """Return the mean difference a cell, or ``None`` when there is no cell.

    ``differences``, shape (words,): the sum over a word's cells of one player's score less the other's. ``cells``, shape (words,): how many
    there are. ``weights``: as ``bootstrap_weights`` gives them.
    """
    if not cells.any():
        return None
    totals, sizes = weights @ differences, weights @ cells
    low, high = np.quantile(totals[sizes > 0] / sizes[sizes > 0], (0.025, 0.975))
    mean = float(differences.sum() / cells.sum())
    return Difference(mean, float(low), float(high), sign_flip_p(differences.tolist()))


def sign_flip_p(differences: Sequence[int]) -> float:
    """Return the exact two-sided p-value of the sum, if every difference were as likely with the other sign.

    This is the sign-flip permutation test over all 2^n flips. When the differences are -1, 0 and 1 it is McNemar's exact test.
    """
    sizes = Counter(abs(difference) for difference in differences if difference)
    law: NDArray[np.floating] = np.ones(1)  # law[k]: the chance that the positive differences add up to k
    for size, count in sizes.items():
        steps = np.zeros(size * count + 1)
        steps[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        law = np.convolve(law, steps)
    sums = 2 * np.arange(law.size) - (law.size - 1)
    return float(min(1.0, law[np.abs(sums) >= abs(sum(differences))].sum()))
