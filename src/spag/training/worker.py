"""The training job: a JSON file that any process can run, alone or together with others.

    output/processes/  job.json  progress.json (of the first process)  one folder of logs per launch

``python -m spag.training.worker JOB`` is what each of several processes runs (``processes.py`` starts them, on Ray ``ray.py``). The folder
is removed when training ends.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from spag.config.schema import ModelConfig, OfflineRLConfig, TrainingConfig
from spag.core.episodes import TrainingSample, read_samples
from spag.core.errors import ConfigError
from spag.training.callbacks import OnProgress, Phase, TrainProgress
from spag.training.run import Stage, TrainResult, train

_INTERVAL_S = 0.2
"""Minimum seconds between two writes of progress.json."""


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of ``train``, with the samples' file instead of the samples. Offline RL if ``training`` is an ``OfflineRLConfig``."""

    samples: Path
    model: ModelConfig
    training: TrainingConfig
    start_from: str
    output: Path
    seed: int

    @property
    def stage(self) -> Stage:
        return Stage.OFFLINE_RL if isinstance(self.training, OfflineRLConfig) else Stage.IMITATION

    @property
    def folder(self) -> Path:
        """Where the processes and their launcher exchange files."""
        return self.output / "processes"

    def to_json(self) -> str:
        """Return the job with absolute paths, for processes that may work in another folder."""
        start = Path(self.start_from).expanduser()
        texts = {
            "stage": self.stage,
            "samples": str(self.samples.absolute()),
            "start_from": str(start.absolute()) if start.exists() else self.start_from,
            "output": str(self.output.absolute()),
        }
        models = {"model": self.model.model_dump(mode="json"), "training": self.training.model_dump(mode="json")}
        return json.dumps({**texts, **models, "seed": self.seed}, indent=2)

    @staticmethod
    def of_json(text: str) -> "Job":
        values = json.loads(text)
        kind = OfflineRLConfig if values["stage"] == Stage.OFFLINE_RL else TrainingConfig
        return Job(
            samples=Path(values["samples"]),
            model=ModelConfig.model_validate(values["model"]),
            training=kind.model_validate(values["training"]),
            start_from=values["start_from"],
            output=Path(values["output"]),
            seed=values["seed"],
        )


def do(job: Job, progress: OnProgress | None = None) -> TrainResult:
    """Run ``job`` in this process, together with the others of its process group if there is one. Raises what ``train`` raises."""
    if not job.samples.is_file():
        raise ConfigError(f"{job.samples}: not seen by {os.uname().nodename}; every node must see the samples and the run folder")
    return train(
        job.stage,
        in_order(read_samples(job.samples)),
        model=job.model,
        training=job.training,
        start_from=job.start_from,
        output=job.output,
        seed=job.seed,
        progress=progress,
    )


def in_order(samples: Iterable[TrainingSample]) -> list[TrainingSample]:
    """Sort ``samples`` by game and turn, so that training does not depend on the order in which games ended."""
    return sorted(samples, key=lambda sample: (sample.episode_id or "", -1 if sample.turn is None else sample.turn))


def do_with_others(text: str) -> None:
    """Run the job that ``text`` describes as one of several processes, and write progress to a file."""
    job = Job.of_json(text)
    do(job, ProgressFile(job.folder / "progress.json").write)


class ProgressFile:
    """The latest ``TrainProgress`` in a file, for another process to read, written every ``_INTERVAL_S`` at most."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = 0.0

    def write(self, at: TrainProgress) -> None:
        now = time.monotonic()
        if now - self._written < _INTERVAL_S and at.step < at.total_steps:
            return
        self._written = now
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(asdict(at)), encoding="utf-8")
        beside.replace(self.path)

    def read(self) -> TrainProgress | None:
        """Return the last progress written; ``None`` before the first."""
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return TrainProgress(**{**values, "phase": Phase(values["phase"])})


@record
def main() -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])))
    do_with_others(Path(sys.argv[1]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
