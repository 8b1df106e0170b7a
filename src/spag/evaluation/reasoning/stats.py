"""Error bars for reasoning figures: standard errors, paired differences, and the geometric mean with a bootstrap interval.

Two models answer the same items, so what matters is the difference item by item: it is far less noisy than the difference of two means.
Every function takes per-item values and no model, so all figures can be recomputed from the stored items.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from spag.core.seeds import derive_seed

REPLICATES = 2000
_QUANTILES = (0.025, 0.975)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over ``items`` with its standard error: sample standard deviation / sqrt(items), as lm-eval; ``None`` for one item."""

    value: float
    se: float | None
    items: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A model minus the reference model on the same items.

    low, high: 95 % percentile bootstrap interval over items. better, worse: items on which the model scored higher, lower. p: two-sided
    exact test of better against worse; on right-or-wrong items this is McNemar's exact test.
    """

    value: float
    se: float | None
    low: float
    high: float
    better: int
    worse: int
    p: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % percentile bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Overall(Interval):
    """A geometric mean of task means, and its difference to the reference's (0 for the reference itself)."""

    difference: Interval


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of per-item ``values``. Raises ``ValueError`` when there are none."""
    if not values:
        raise ValueError("no items")
    array = np.asarray(values, dtype=np.float64)
    se = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return Mean(float(array.mean()), se, len(array))


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided exact p-value of ``better`` against ``worse`` under a fair coin; 1 when no item differs."""
    return float(binomtest(better, better + worse, 0.5).pvalue) if better + worse else 1.0


def bootstrap_means(columns: Floats, seed: int, replicates: int = REPLICATES) -> Floats:
    """Return the means (replicates, models) of resampled items, from ``columns`` (items, models); an item keeps its row whole.

    Drawing counts of the distinct rows from a multinomial is the same as drawing items, and much faster when answers are right or wrong.
    """
    rows, counts = np.unique(columns, axis=0, return_counts=True)
    total = len(columns)
    draws = np.random.default_rng(seed).multinomial(total, counts / total, size=replicates)
    means: Floats = draws @ rows / total
    return means


def paired_difference(values: Sequence[float], reference: Sequence[float], seed: int = 0) -> Difference:
    """Return the difference of two models on the same items in the same order. Raises ``ValueError`` when the lengths differ."""
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    mean = mean_of(differences)
    low, high = _interval(bootstrap_means(np.asarray(differences, dtype=np.float64)[:, None], seed)[:, 0])
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Difference(mean.value, mean.se, low, high, better, worse, sign_test(better, worse))


def overall(tasks: Sequence[Floats], seed: int = 0) -> list[Overall]:
    """Return for each model its geometric mean over ``tasks``, each an array (items, models) with the reference in column 0.

    A replicate resamples the items of every task, the same ones for all models, so that differences are paired.
    """
    values = _geometric(np.stack([task.mean(axis=0) for task in tasks]))
    replicates = _geometric(np.stack([bootstrap_means(task, derive_seed(seed, "overall", number)) for number, task in enumerate(tasks)]))
    shown = []
    for model, value in enumerate(values):
        low, high = _interval(replicates[:, model])
        difference = Interval(float(value - values[0]), *_interval(replicates[:, model] - replicates[:, 0]))
        shown.append(Overall(float(value), low, high, difference))
    return shown


def _geometric(means: Floats) -> Floats:
    """Return the geometric mean over the first axis."""
    with np.errstate(divide="ignore"):
        result: Floats = np.exp(np.log(means).mean(axis=0))
    return result


def _interval(replicates: Floats) -> tuple[float, float]:
    low, high = np.quantile(replicates, _QUANTILES)
    return float(low), float(high)
