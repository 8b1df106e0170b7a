"""The training job: a JSON file that any process can run, alone or together with others.

    output/processes/  job.json  progress.json (of the first process)  one folder of logs per launch

``python -m spag.training.worker JOB`` is what each of several processes runs (``processes.py`` starts them, on Ray ``ray.py``). The folder
is removed when training ends.
"""

import os
import sys
from pathlib import Path

import torch
from pydantic import BaseModel, TypeAdapter
from torch.distributed.elastic.multiprocessing.errors import record

from spag.config.schema import ModelConfig, OfflineRLConfig, TrainingConfig
from spag.core.episodes import read_samples
from spag.core.errors import ConfigError
from spag.training.callbacks import OnProgress, TrainProgress
from spag.training.run import Stage, TrainResult, train

PROGRESS = TypeAdapter(TrainProgress)


class Job(BaseModel, frozen=True):
    """The arguments of ``train``, with the samples' file instead of the samples. Offline RL if ``training`` is an ``OfflineRLConfig``."""

    samples: Path
    model: ModelConfig
    training: TrainingConfig | OfflineRLConfig
    start_from: str
    output: Path
    seed: int

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
        paths = {
            "samples": self.samples.absolute(),
            "start_from": str(start.absolute()) if start.exists() else self.start_from,
            "output": self.output.absolute(),
        }
        return self.model_copy(update=paths).model_dump_json(indent=2)


def train_job(job: Job, progress: OnProgress | None = None) -> TrainResult:
    """Run ``job`` in this process, together with the others of its process group if there is one. Raises what ``train`` raises."""
    if not job.samples.is_file():
        raise ConfigError(f"{job.samples}: not seen by {os.uname().nodename}; every node must see the samples and the run folder")
    return train(
        Stage.OFFLINE_RL if isinstance(job.training, OfflineRLConfig) else Stage.IMITATION,
        # by game and turn, so that training does not depend on the order in which games ended
        sorted(read_samples(job.samples), key=lambda sample: (sample.episode_id or "", -1 if sample.turn is None else sample.turn)),
        model=job.model,
        training=job.training,
        start_from=job.start_from,
        output=job.output,
        seed=job.seed,
        progress=progress,
    )


def train_in_group(text: str) -> None:
    """Run the job that ``text`` describes as one of several processes, and write progress to a file."""
    job = Job.model_validate_json(text)

    def report(at: TrainProgress) -> None:
        beside = job.progress_file.with_suffix(".new")
        beside.write_bytes(PROGRESS.dump_json(at))
        beside.replace(job.progress_file)  # a reader sees the old file or the new one

    train_job(job, report)


@record
def main() -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])))
    train_in_group(Path(sys.argv[1]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
