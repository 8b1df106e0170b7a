"""Error bars for reasoning figures: standard errors, paired differences, and the geometric mean with a bootstrap interval.

Models answer the same items, so differences are paired by item: far less noisy than the difference of two means.
Every function takes per-item values and no model, so all figures can be recomputed from the stored items.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spag.core.seeds import derive_seed
from spag.evaluation.stats import DRAWS, Floats, bootstrap_weights, interval, paired_difference


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over ``items`` with its standard error: sample standard deviation / sqrt(items), as lm-eval; ``None`` for one item."""

    value: float
    se: float | None
    items: int


@dataclass(frozen=True, slots=True)
class ItemDifference:
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


def bootstrap_means(columns: Floats, seed: int, draws: int = DRAWS) -> Floats:
    """Return the means (draws, models) of resampled items, from ``columns`` (items, models); an item keeps its row whole."""
    rows, counts = np.unique(columns, axis=0, return_counts=True)
    means: Floats = bootstrap_weights(counts, seed, draws) @ rows / len(columns)
    return means


def item_difference(values: Sequence[float], reference: Sequence[float], seed: int = 0) -> ItemDifference:
    """Return the difference of two models on the same items in the same order. Raises ``ValueError`` when the lengths differ."""
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    mean = mean_of(differences)
    rows, counts = np.unique(np.asarray(differences, dtype=np.float64), return_counts=True)
    found = paired_difference(rows, np.ones_like(counts), bootstrap_weights(counts, seed), counts)
    assert found is not None
    better, worse = int(counts[rows > 0].sum()), int(counts[rows < 0].sum())
    return ItemDifference(mean.value, mean.se, found.low, found.high, better, worse, found.p_value)


def overall(tasks: Sequence[Floats], seed: int = 0) -> list[Overall]:
    """Return for each model its geometric mean over ``tasks``, each an array (items, models) with the reference in column 0.

    A draw resamples the items of every task, the same ones for all models, so that differences are paired.
    """
    values = _geometric(np.stack([task.mean(axis=0) for task in tasks]))
    draws = _geometric(np.stack([bootstrap_means(task, derive_seed(seed, "overall", number)) for number, task in enumerate(tasks)]))
    return [
        Overall(float(value), *interval(draw), Interval(float(value - values[0]), *interval(draw - draws[:, 0])))
        for value, draw in zip(values, draws.T, strict=True)
    ]


def _geometric(means: Floats) -> Floats:
    """Return the geometric mean over the first axis."""
    with np.errstate(divide="ignore"):
        result: Floats = np.exp(np.log(means).mean(axis=0))
    return result
