"""Rates and paired differences with intervals and p-values.

Words are the unit of chance: every figure that compares players resamples or flips whole words, because the games on one word are alike.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

DRAWS = 2000
"""Bootstrap samples behind an interval."""

_Z = 1.959963984540054  # the normal distribution's 97.5 % point

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of ``total``, with its 95 % Wilson interval (score interval, no continuity correction)."""

    count: int
    total: int
    rate: float
    low: float
    high: float


def wilson(count: int, total: int, design_effect: float = 1.0) -> Rate:
    """Return ``count / total`` with the interval of ``total / design_effect`` observations; nothing observed gives 0 in [0, 1]."""
    if total == 0:
        return Rate(0, 0, 0.0, 0.0, 1.0)
    share, spread = count / total, _Z**2 * design_effect / total
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    return Rate(count, total, share, centre - half if count else 0.0, centre + half if count < total else 1.0)


def rate_over_words(hits: Ints, totals: Ints) -> Rate:
    """Return the share of all games that are hits, with the interval of as many independent games as they are worth.

    ``hits`` and ``totals``, shape (words,): by word. Games on one word are alike (an attacker opens them with the same utterance, whoever
    defends), so they tell less than as many games on different words: the design effect (Rao and Scott 1992, Biometrics 48). Where no game
    is a hit, or every one, nothing tells how alike they are, and a word counts as one game.
    """
    count, total, words = int(hits.sum()), int(totals.sum()), int(np.count_nonzero(totals))
    if total == 0:
        return wilson(0, 0)
    share, alike = count / total, total / words
    if count in (0, total) or words == 1:
        return wilson(count, total, alike)
    between = words / (words - 1) * float(((hits - share * totals) ** 2).sum())
    return wilson(count, total, min(max(between / (share * (1 - share) * total), 1.0), alike))


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
