"""Metrics from stored items, with error bars: the item files give every number of ``spag eval`` without a model.

Models answer the same items, so differences are paired by item, which is far less noisy than comparing two means.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spag.core.errors import RunError
from spag.core.seeds import derive_seed
from spag.evaluation.intervals import DRAWS, Floats, bootstrap_weights, interval, paired_difference, usual_size

Items = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ItemMean:
    """A mean over ``items``. ``se``: sample standard deviation / sqrt(items), as in lm-eval; ``None`` for one item."""

    value: float
    se: float | None
    items: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A metric with its 95 % interval over items."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ItemDifference(Interval):
    """A model minus the reference on the same items.

    better, worse: items on which the model scored higher, lower. p: two-sided exact test of better against worse; on
    right-or-wrong items this is McNemar's exact test.
    """

    se: float | None
    better: int
    worse: int
    p: float


@dataclass(frozen=True, slots=True)
class GeometricMean(Interval):
    """The geometric mean of the means of ``tasks``, and its difference to the reference's (0 for the reference)."""

    difference: Interval
    tasks: list[str]


def check_same_prompts(task: str, items: Mapping[str, Items], *, chat: bool) -> None:
    """Raise ``RunError`` unless all models answered the same prompts in order; with ``chat``, the same items."""
    keys = ("task", "doc", "doc_hash", *(() if chat else ("prompt_hash",)))
    asked = {name: [tuple(row[key] for key in keys) for row in rows] for name, rows in items.items()}
    first, *others = asked
    for name in others:
        if asked[name] != asked[first]:
            fix = "evaluate both again in a new --output folder"
            raise RunError(f"{name} and {first} were asked different items of {task}; {fix}")


def figures_of(metrics: Mapping[str, str], items: Mapping[str, Mapping[str, Items]], seed: int) -> dict[str, Any]:
    """Return each model's metrics: ``tasks`` (the mean with its error, the difference to the reference, every metric,
    the parts of a group) and ``geometric_mean``, or ``None``.

    metrics: the metric shown, by task. items: rows by task and model, the reference first.
    """
    models = list(next(iter(items.values())))
    tasks: dict[str, dict[str, Any]] = {name: {} for name in models}
    columns: dict[str, Floats] = {}
    for task, metric in metrics.items():
        values = {name: [row["metrics"][metric] for row in rows] for name, rows in items[task].items()}
        columns[task] = np.asarray(list(values.values()), dtype=np.float64).T
        for name, rows in items[task].items():
            difference = item_difference(values[name], values[models[0]])
            parts = dict.fromkeys(row["task"] for row in rows)
            tasks[name][task] = {
                **asdict(mean_of(values[name])),
                "difference": asdict(difference),
                "metrics": _means(rows),
                "parts": {
                    part: _means([row for row in rows if row["task"] == part]) for part in parts if len(parts) > 1
                },
            }
    means: Sequence[GeometricMean | None] = geometric_means(columns, seed) or [None] * len(models)
    return {
        name: {"tasks": tasks[name], "geometric_mean": mean and asdict(mean)}
        for name, mean in zip(models, means, strict=True)
    }


def mean_of(values: Sequence[float]) -> ItemMean:
    """Return the mean of per-item ``values``. Raises ``ValueError`` when there are none."""
    if not values:
        raise ValueError("no items")
    array = np.asarray(values, dtype=np.float64)
    se = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return ItemMean(float(array.mean()), se, len(array))


def item_difference(values: Sequence[float], reference: Sequence[float]) -> ItemDifference:
    """Return the difference of two models on the same items in the same order."""
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    mean = mean_of(differences)
    rows, counts = np.unique(np.asarray(differences, dtype=np.float64), return_counts=True)
    most, usual = max(1.0, float(np.abs(rows).max())), usual_size(rows, counts)  # graded metrics differ by less than 1
    found = paired_difference(rows, np.ones_like(counts), counts, most=most, usual=usual)
    assert found is not None
    better, worse = int(counts[rows > 0].sum()), int(counts[rows < 0].sum())
    return ItemDifference(mean.value, found.low, found.high, mean.se, better, worse, found.p_value)


def geometric_means(columns: Mapping[str, Floats], seed: int) -> list[GeometricMean]:
    """Return each model's, over the tasks on which all models score: a single 0 would make a mean 0. Empty if there are
    none. ``columns``: arrays (items, models) by task, the reference in column 0.

    A draw resamples the items of every task, the same ones for all models, so that differences are paired.
    """
    scored = {task: scores for task, scores in columns.items() if (scores.mean(axis=0) > 0).all()}
    if not scored:
        return []
    values = _geometric([one.mean(axis=0) for one in scored.values()])
    draws = _geometric([bootstrap_means(one, derive_seed(seed, "overall", k)) for k, one in enumerate(scored.values())])
    found = []
    for value, draw in zip(values, draws.T, strict=True):
        difference = Interval(float(value - values[0]), *interval(draw - draws[:, 0]))
        found.append(GeometricMean(float(value), *interval(draw), difference, [*scored]))
    return found


def bootstrap_means(columns: Floats, seed: int, draws: int = DRAWS) -> Floats:
    """Return the means (draws, models) of resampled items, from ``columns`` (items, models); items stay whole."""
    rows, counts = np.unique(columns, axis=0, return_counts=True)
    means: Floats = bootstrap_weights(counts, seed, draws) @ rows / len(columns)
    return means


def _geometric(means: Sequence[Floats]) -> Floats:
    with np.errstate(divide="ignore"):
        result: Floats = np.exp(np.log(np.stack(means)).mean(axis=0))
    return result


def _means(rows: Items) -> dict[str, Any]:
    """Return every metric that is in all rows."""
    names = [name for name in rows[0]["metrics"] if all(name in row["metrics"] for row in rows)]
    return {name: asdict(mean_of([row["metrics"][name] for row in rows])) for name in names}
