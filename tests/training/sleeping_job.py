"""A training job whose processes say who they are and then hang, for tests that kill who started them."""

import os
import time
from pathlib import Path
from typing import ClassVar

from spag.config.schema import ModelConfig, TrainingConfig, UpdateConfig
from spag.training.callbacks import OnProgress
from spag.training.processes import run_in_processes
from spag.training.worker import Job, work


class SleepingJob(Job, frozen=True):
    module: ClassVar[str] = "sleeping_job"

    @property
    def settings(self) -> UpdateConfig:
        return TrainingConfig()

    def run(self, progress: OnProgress | None = None) -> None:
        (self.output / f"worker-{os.getpid()}").touch()
        time.sleep(600)


def launch(output: Path) -> None:
    """Start a process of the job, as a target of ``forked.start``."""
    run_in_processes(SleepingJob(model=ModelConfig(), start_from="none", output=output), 1, lambda at: None)


if __name__ == "__main__":
    work(SleepingJob)
