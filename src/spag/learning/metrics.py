"""Training metrics: means accumulated over micro-batches and processes, and the file of their rows."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from spag.algorithms.base import Metrics
from spag.core.errors import DataError, RunError
from spag.storage.jsonfile import json_lines
from spag.storage.store import cut_torn_line, write_atomically

Row = dict[str, Any]
"""A row of metrics.jsonl: the step, and numbers by name; ``None`` if there is nothing to average."""


class StepMetrics:
    """The loss and the metrics of a step: means by name, as sums, and largest values by name (``peaks``)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
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
        """Return loss, tokens, means and peaks over all processes, and reset. Every process must call it.

        Raises ``RunError``, naming ``what``, if the loss is not finite.
        """
        names = sorted(self.parts)
        flat = torch.cat([torch.stack([self.loss, self.tokens]), *(self.parts[name] for name in names)])
        loss, tokens, *rest = accelerator.reduce(flat, reduction="sum").tolist()
        highest = {name: float(accelerator.gather(self.peaks[name][None]).max()) for name in sorted(self.peaks)}
        self.__init__(self.device)  # type: ignore[misc]
        if not math.isfinite(loss):
            fix = "lower the learning rate, or look for broken weights in the start model"
            raise RunError(f"{what}: the loss is {loss}; {fix}")
        sums = zip(names, rest[::2], rest[1::2], strict=True)
        means = {name: total / weight if weight else None for name, total, weight in sums}
        return {"loss": loss, "tokens": tokens, **means, **highest}


class MetricsLog:
    """``metrics.jsonl``: one row per step, on disk before training goes on.

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
    for place, row in json_lines(path):
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise DataError(f"{place}: not a row of metrics (no step); remove {path} to go on without its rows")
        yield row
