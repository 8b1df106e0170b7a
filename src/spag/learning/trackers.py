"""Progress of training, and experiment trackers that also get the rows of metrics.jsonl."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from accelerate.tracking import TensorBoardTracker, TrackioTracker, WandBTracker

from spag.learning.devices import check_packages
from spag.learning.metrics import Row


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


class Trackers:
    """TensorBoard, Weights & Biases and Trackio, on the first process."""

    def __init__(self, names: Sequence[str], folder: Path, run_name: str, resume_step: int) -> None:
        check_packages(names)
        made: list[Any] = []
        if "tensorboard" in names:  # repeated steps are shown once
            made.append(TensorBoardTracker(folder.name, logging_dir=folder.parent, purge_step=resume_step + 1))
        if "wandb" in names:
            made.append(WandBTracker("spag", name=run_name, reinit="finish_previous"))
        if "trackio" in names:
            made.append(TrackioTracker("spag", name=run_name))
        self.trackers = made
        for tracker in made:
            tracker.start()

    def log(self, row: Row) -> None:
        numbers = {f"train/{name}": value for name, value in row.items() if value is not None and name != "step"}
        for tracker in self.trackers:
            tracker.log(numbers, step=row["step"])

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.finish()
