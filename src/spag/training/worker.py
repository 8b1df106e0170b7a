"""The training job: a JSON file that any process can run, alone or together with others.

    output/processes/  job.json  progress.json (of the first process)  one folder of logs per launch

``python -m spag.training.worker JOB PARENT`` is what each of several processes runs (``processes.py`` starts them, on Ray ``ray.py``). The
folder is removed when training ends.
"""

import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import BaseModel, TypeAdapter
from torch.distributed.elastic.multiprocessing.errors import record

from spag.config.schema import ModelConfig, OfflineRLConfig, TrainingConfig, UpdateConfig
from spag.core.episodes import read_samples
from spag.core.errors import ConfigError
from spag.core.parents import end_with
from spag.training.callbacks import OnProgress, TrainProgress
from spag.training.run import Stage, train

PROGRESS = TypeAdapter(TrainProgress)


class Job(BaseModel, ABC, frozen=True):
    """Training that one or several processes do. ``module``: what ``python -m`` starts for each of several; it calls ``work``."""

    module: ClassVar[str]
    model: ModelConfig
    start_from: str
    output: Path

    @property
    @abstractmethod
    def settings(self) -> UpdateConfig:
        """How weights are updated, by how many processes."""

    @abstractmethod
    def run(self, progress: OnProgress | None = None) -> None:
        """Do it in this process, together with the others of its process group if there is one."""

    @property
    def folder(self) -> Path:
        """Where the processes and their launcher exchange files."""
        return self.output / "processes"

    @property
    def progress_file(self) -> Path:
        return self.folder / "progress.json"

    def to_json(self) -> str:
        """Return the job with absolute paths, for processes that may work in another folder."""
        start = Path(self.start_from).expanduser()
        paths = {name: value.absolute() for name, value in self if isinstance(value, Path)} | {
            "start_from": str(start.absolute()) if start.exists() else self.start_from
        }
        return self.model_copy(update=paths).model_dump_json(indent=2)


class TrainJob(Job, frozen=True):
    """The arguments of ``train``, with the samples' file instead of the samples. Offline RL if ``training`` is an ``OfflineRLConfig``."""

    module: ClassVar[str] = "spag.training.worker"
    samples: Path
    training: TrainingConfig | OfflineRLConfig
    seed: int

    @property
    def settings(self) -> UpdateConfig:
        return self.training

    def run(self, progress: OnProgress | None = None) -> None:
        """Raises what ``train`` raises."""
        if not self.samples.is_file():
            raise ConfigError(f"{self.samples}: not seen by {os.uname().nodename}; every node must see the samples and the run folder")
        train(
            Stage.OFFLINE_RL if isinstance(self.training, OfflineRLConfig) else Stage.IMITATION,
            # by game and turn, so that training does not depend on the order in which games ended
            sorted(read_samples(self.samples), key=lambda sample: (sample.episode_id or "", -1 if sample.turn is None else sample.turn)),
            model=self.model,
            training=self.training,
            start_from=self.start_from,
            output=self.output,
            seed=self.seed,
            progress=progress,
        )


def run_in_group(kind: type[Job], text: str) -> None:
    """Run the job that ``text`` describes as one of several processes, and write progress to a file."""
    job = kind.model_validate_json(text)

    def report(at: TrainProgress) -> None:
        beside = job.progress_file.with_suffix(".new")
        beside.write_bytes(PROGRESS.dump_json(at))
        beside.replace(job.progress_file)  # a reader sees the old file or the new one

    job.run(report)


@record
def work(kind: type[Job]) -> None:
    """The main program of one of several processes. Its arguments: the job's file, and the id of the process that started it."""
    end_with(int(sys.argv[2]))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])))
    run_in_group(kind, Path(sys.argv[1]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    work(TrainJob)
