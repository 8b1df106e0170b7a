"""Rates and paired differences with intervals and p-values.

Tasks are the unit of sampling: intervals count each once, bootstraps resample and tests flip whole tasks, because games
on one task are correlated.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
"""Bootstrap samples per interval."""

_Z = 1.959963984540054  # the normal distribution's 97.5 % point

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of ``total`` (or a mean count), with its 95 % interval."""

    count: int
    total: int
    rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference(Mean):
    """A mean paired difference, its 95 % interval, and the exact p-value for no difference."""

    p_value: float


def wilson(count: int, total: int, observations: int | None = None) -> Rate:
    """Return ``count / total`` with its Wilson interval for ``observations``, by default ``total``; if 0, [0, 1]."""
    if total == 0:
        return Rate(0, 0, 0.0, 0.0, 1.0)
    share, spread = count / total, _Z**2 / (observations or total)
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    return Rate(count, total, share, centre - half if count else 0.0, centre + half if count < total else 1.0)


def rate_over_tasks(hits: Ints, totals: Ints) -> Rate:
    """Return the share of hits among all games, with a Wilson interval that counts each task as one observation.

    ``hits`` and ``totals``, shape (tasks,): by task. Games on one task are correlated: a player opens them with the
    same utterance against every opponent. The correlation is not estimated: with few hits, the estimate would make
    the interval for 0 hits wider than for 1.
    """
    return wilson(int(hits.sum()), int(totals.sum()), int(np.count_nonzero(totals)))


def mean_over_tasks(sums: Ints | Floats, totals: Ints) -> Mean:
    """Return the mean per game of an unbounded value, with Student's interval over tasks (none for a single task).

    ``sums``, ``totals``, shape (tasks,): the sum over each task's games, and their number.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import, and only new results need it

    total, tasks = max(int(totals.sum()), 1), int(np.count_nonzero(totals))
    mean = float(sums.sum()) / total
    spread = tasks / (tasks - 1) * float(((sums - mean * totals) ** 2).sum()) if tasks > 1 else 0.0
    half = float(stdtrit(max(tasks - 1, 1), 0.975)) * math.sqrt(spread) / total
    return Mean(mean, mean - half, mean + half)


def bootstrap_weights(counts: Ints, seed: int, draws: int = DRAWS) -> Ints:
    """Return how often each row occurs in each resampling of ``counts.sum()`` units, shape (draws, rows).

    ``counts``, shape (rows,): how many units a row represents; drawing their counts is equivalent to drawing units.
    """
    total = int(counts.sum())
    return np.random.default_rng(seed).multinomial(total, counts / total, size=draws)


def paired_difference(
    differences: Ints | Floats,
    cells: Ints | Floats,
    counts: Ints | int = 1,
    *,
    most: float = 1.0,
    usual: float | None = None,
) -> Difference | None:
    """Return the mean difference per cell, or ``None`` if there is no cell.

    ``differences``, shape (rows,): one player's score minus the other's, summed over a row's cells. ``cells``, shape
    (rows,): their number. ``counts``: how many tasks a row stands for. ``most``: the largest difference of a cell.

    The interval is Agresti and Coull's (The American Statistician 52, 1998), for means: the normal distribution's, as
    if about four more tasks had been seen, half with a difference of ``usual`` a cell (default ``most``), half with
    minus that. So it has a width where all tasks are alike, and no hit never has a wider one than one hit. The p-value
    is from ``sign_flip_p``; if differences are not whole numbers, only their signs are used.
    """
    if not cells.any():
        return None
    tasks = np.where(cells > 0, counts, 0)
    total, per_task, size = float((cells * tasks).sum()), float((cells * tasks).sum() / tasks.sum()), usual or most
    mean, whole = float((differences * tasks).sum()) / total, total + _Z**2 * per_task
    centre = mean * total / whole
    spread = float((tasks * (differences - centre * cells) ** 2).sum()) + (_Z * per_task) ** 2 * (size**2 + centre**2)
    half = _Z * math.sqrt(spread) / whole
    low, high = min(mean, max(-most, centre - half)), max(mean, min(most, centre + half))
    flipped = (differences if differences.dtype.kind == "i" else np.sign(differences)).astype(np.int64)
    return Difference(mean, low, high, sign_flip_p(np.repeat(flipped, counts).tolist()))


def usual_size(differences: Floats, counts: Ints | None = None) -> float | None:
    """Return the root mean square of the ``differences`` other than 0, of any shape, each ``counts`` times; ``None`` if
    all are 0.
    """
    differing = differences != 0
    weights = None if counts is None else counts[differing]
    return math.sqrt(np.average(differences[differing] ** 2, weights=weights)) if differing.any() else None


def interval(replicates: Floats) -> tuple[float, float]:
    """Return the 95 % percentile interval of bootstrap ``replicates``, shape (draws,)."""
    low, high = np.quantile(replicates, (0.025, 0.975))
    return float(low), float(high)


def sign_flip_p(differences: Sequence[int]) -> float:
    """Return the exact two-sided p-value of the sum, if both signs of every difference were equally likely.

    This is the sign-flip permutation test over all 2^n flips; McNemar's exact test if the differences are -1, 0 and 1.
    """
    from scipy.stats import binom  # noqa: PLC0415 - slow to import, and only new results need it

    sizes = Counter(abs(difference) for difference in differences if difference)
    law: NDArray[np.floating] = np.ones(1)  # law[k]: the probability that the positive differences sum to k
    for size, count in sizes.items():
        wider = np.zeros(law.size + size * count)
        for positive, chance in enumerate(binom.pmf(np.arange(count + 1), count, 0.5)):
            wider[positive * size : positive * size + law.size] += chance * law
        law = wider
    sums = 2 * np.arange(law.size) - (law.size - 1)
    return float(min(1.0, law[np.abs(sums) >= abs(sum(differences))].sum()))
