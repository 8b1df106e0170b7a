"""Training metrics: means over micro-batches and processes, the file of their rows, trackers, and progress."""

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import TensorBoardTracker, TrackioTracker, WandBTracker
from torch import Tensor

from spag.algorithms.base import Metrics
from spag.core.errors import DataError, RunError
from spag.learning.devices import check_packages
from spag.storage.episodes import raw_rows
from spag.storage.store import cut_torn_line, write_atomically

Row = dict[str, Any]
"""A row of metrics.jsonl: the step, and numbers by name; ``None`` if there is nothing to average."""


class Unit(StrEnum):
    """The unit of a ``TrainProgress``: samples of the reference pass, updates, or steps of play and training."""

    REFERENCE = "reference"
    UPDATES = "training"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """The progress of training. ``loss`` is ``None`` in the reference pass; ``detail`` shows metrics of play."""

    unit: Unit
    step: int
    total_steps: int
    samples_per_second: float
    loss: float | None
    detail: str = ""


OnProgress = Callable[[TrainProgress], None]


class StepMetrics:
    """The loss and the metrics of a step: means by name, as sums, and largest values by name (``peaks``)."""

    def __init__(self, device: torch.device) -> None:
        self.parts: dict[str, Tensor] = {}
        self.peaks: dict[str, Tensor] = {}
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.tokens = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: Tensor, metrics: Metrics, tokens: Tensor) -> None:
        """Add a micro-batch: its ``loss``, ``metrics``, and how many ``tokens`` it trained; scalars."""
        self.loss += loss.detach().double()
        self.tokens += tokens.detach().double()
        for name, pair in metrics.items():
            part = torch.stack([value.detach().double() for value in pair])
            self.parts[name] = self.parts[name] + part if name in self.parts else part

    def peak(self, name: str, values: Tensor) -> None:
        """Keep the largest of ``values``, (N,) with N > 0, and of earlier ones."""
        largest = values.detach().double().max()
        self.peaks[name] = largest.maximum(self.peaks[name]) if name in self.peaks else largest

    def take(self, accelerator: Accelerator, what: str) -> Row:
        """Return loss, tokens, means and peaks over all processes. Every process must call it.

        Raises ``RunError``, naming ``what``, if the loss is not finite.
        """
        names = sorted(self.parts)
        flat = torch.cat([torch.stack([self.loss, self.tokens]), *(self.parts[name] for name in names)])
        loss, tokens, *rest = accelerator.reduce(flat, reduction="sum").tolist()
        highest = {name: float(accelerator.gather(self.peaks[name][None]).max()) for name in sorted(self.peaks)}
        if not math.isfinite(loss):
            fix = "lower the learning rate, or look for broken weights in the start model"
            raise RunError(f"{what}: the loss is {loss}; {fix}")
        sums = zip(names, rest[::2], rest[1::2], strict=True)
        means = {name: total / weight if weight else None for name, total, weight in sums}
        return {"loss": loss, "tokens": tokens, **means, **highest}


class MetricsLog:
    """``metrics.jsonl``: one row per step, on disk before training continues.

    Rows after the step that training resumes from are dropped. Raises ``DataError`` for anything but rows of metrics.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        self.path = path
        cut_torn_line(path)
        self.rows = [row for row in _rows(path) if row["step"] <= resume_step] if path.exists() else []
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in self.rows))

    @property
    def last(self) -> Row:
        return self.rows[-1] if self.rows else {}

    def append(self, row: Row) -> None:
        # in float16 the loss scaler skips updates whose gradient is not finite, and JSON has no such numbers
        row = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _rows(path: Path) -> Iterator[Row]:
    for place, row in raw_rows(path):
        if type(row.get("step")) is not int:
            raise DataError(f"{place}: not a row of metrics (no step); remove {path} to continue without its rows")
        yield row


class Trackers:
    """TensorBoard, Weights & Biases and Trackio, on the first process."""

    def __init__(self, names: Sequence[str], folder: Path, run_name: str, resume_step: int) -> None:
        check_packages(names)
        self.trackers: list[Any] = []
        if "tensorboard" in names:  # repeated steps are shown once
            self.trackers.append(TensorBoardTracker(folder.name, logging_dir=folder.parent, purge_step=resume_step + 1))
        if "wandb" in names:
            self.trackers.append(WandBTracker("spag", name=run_name, reinit="finish_previous"))
        if "trackio" in names:
            self.trackers.append(TrackioTracker("spag", name=run_name))
        for tracker in self.trackers:
            tracker.start()

    def log(self, row: Row) -> None:
        numbers = {f"train/{name}": value for name, value in row.items() if value is not None and name != "step"}
        for tracker in self.trackers:
            tracker.log(numbers, step=row["step"])

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.finish()
