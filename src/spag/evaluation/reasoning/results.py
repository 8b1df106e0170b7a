"""Figures from stored items: every number of ``spag eval`` can be recomputed from the item files, without model or lm-eval."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from spag.core.episodes import raw_rows
from spag.core.errors import RunError
from spag.core.seeds import derive_seed
from spag.evaluation.reasoning.stats import item_difference, mean_of, overall

Items = list[dict[str, Any]]


def read_items(path: Path) -> Items:
    """Return the rows of one model's item file for one task."""
    return [row for _, row in raw_rows(path)]


def check_same_items(task: str, items: Mapping[str, Items]) -> None:
    """Raise ``RunError`` unless all models answered the same prompts of ``task`` in the same order."""
    asked = {name: [(row["task"], row["doc"], row["doc_hash"], row["prompt_hash"]) for row in rows] for name, rows in items.items()}
    first, *others = asked
    for name in others:
        if asked[name] != asked[first]:
            raise RunError(f"{name} and {first} were asked different items of {task}; evaluate both again in a new --output folder")


def figures_of(metrics: Mapping[str, str], items: Mapping[str, Mapping[str, Items]], seed: int) -> dict[str, dict[str, Any]]:
    """Return each model's figures.

    ``metrics``: the metric shown, by task. ``items``: rows by task and model, the reference model first. The result by model holds
    ``tasks`` (the mean with its error, the difference to the reference, every metric, the parts of a group) and ``geometric_mean``.
    """
    models = list(next(iter(items.values())))
    figures: dict[str, dict[str, Any]] = {name: {"tasks": {}} for name in models}
    columns = []
    for task, metric in metrics.items():
        values = {name: [row["metrics"][metric] for row in items[task][name]] for name in models}
        columns.append(np.asarray(list(values.values()), dtype=np.float64).T)
        for name in models:
            difference = item_difference(values[name], values[models[0]], derive_seed(seed, "difference", task))
            rows = items[task][name]
            parts = dict.fromkeys(row["task"] for row in rows)
            figures[name]["tasks"][task] = {
                **asdict(mean_of(values[name])),
                "difference": asdict(difference),
                "metrics": _means(rows),
                "parts": {part: _means([row for row in rows if row["task"] == part]) for part in parts} if len(parts) > 1 else {},
            }
    for name, figure in zip(models, overall(columns, seed), strict=True):
        figures[name]["geometric_mean"] = asdict(figure)
    return figures


def _means(rows: Items) -> dict[str, Any]:
    """Return every metric that all rows have."""
    names = [name for name in rows[0]["metrics"] if all(name in row["metrics"] for row in rows)]
    return {name: asdict(mean_of([row["metrics"][name] for row in rows])) for name in names}
