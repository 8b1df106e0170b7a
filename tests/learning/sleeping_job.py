"""A training job whose processes say who they are and then hang, for tests that kill who started them."""

import os
import time
from pathlib import Path

from spag.config.schema import GameConfig, ModelConfig, PhaseConfig
from spag.learning import processes, worker
from spag.learning.job import TrainingJob
from spag.learning.metrics import OnProgress


def hang(job: TrainingJob, progress: OnProgress | None = None) -> None:
    (job.output / f"worker-{os.getpid()}").touch()
    time.sleep(600)


def launch(output: Path) -> None:
    """Start a process of the job, as a target of ``forked.start``."""
    processes.WORKER[-1] = "sleeping_job"
    phase = PhaseConfig(algorithm="imitation")
    job = TrainingJob(model=ModelConfig(), phase=phase, game=GameConfig(), start_from="none", output=output, seed=0)
    processes.run_in_processes(job, 1, lambda at: None)


if __name__ == "__main__":
    worker.run_job = hang
    worker.main()
