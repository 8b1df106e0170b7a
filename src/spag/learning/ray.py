"""Training on a Ray cluster with Ray Train: the same work as local processes, one worker per GPU, on any nodes.

The samples, the start model and the run folder must be on a file system that all nodes see.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from ray.exceptions import RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from spag.core.errors import RunError, SpagError, first_line
from spag.engines.players import endpoint_environment
from spag.learning.devices import PATIENCE, group_backend
from spag.learning.job import TrainingJob
from spag.learning.metrics import OnProgress
from spag.learning.processes import watching
from spag.learning.worker import run_in_group
from spag.rollout.ray.connection import connected, gpu_count
from spag.storage.disk import storage_errors

_STARTS = 10
"""How often Ray Train, which waits a minute for each start, tries to start the workers: nodes may still join."""


def train_on_ray(job: TrainingJob, address: str, progress: OnProgress) -> None:
    """Run ``job`` on the cluster at ``address``, with ``processes`` workers, else one per GPU (one if there is none).

    Raises ``ConfigError`` if there is no cluster, a worker's error if it is a ``SpagError``, else ``RunError`` naming
    the worker.
    """
    with connected(address):
        gpus = gpu_count()
        on_gpus = gpus > 0 and job.model.device != "cpu"
        count = job.settings.processes or (gpus if on_gpus else 1)
        with storage_errors(job.folder):
            shutil.rmtree(job.folder, ignore_errors=True)
            job.folder.mkdir(parents=True)
        text, here = job.to_json(), Path.cwd()
        met = [job.model.model_copy(update={"name": name}) for name in getattr(job.settings, "met", ())]
        environment = endpoint_environment(met)

        def work() -> None:
            with suppress(OSError):  # on a node without it, files that options name must be absolute
                os.chdir(here)  # Ray Train has changed to a folder of its own
            os.environ.update(environment)
            run_in_group(text)

        # typed as the first version of Ray Train, which this is not
        failures = FailureConfig(max_failures=0, controller_failure_limit=_STARTS)  # type: ignore[call-arg]
        trainer = TorchTrainer(
            work,
            torch_config=TorchConfig(
                group_backend(job.settings, on_cpu=not on_gpus), timeout_s=int(PATIENCE.total_seconds())
            ),
            scaling_config=ScalingConfig(num_workers=count, use_gpu=on_gpus),
            run_config=RunConfig(
                name="ray", storage_path=str(job.folder.absolute()), failure_config=failures, callbacks=[]
            ),
        )
        with watching(job, progress):
            try:
                trainer.fit()
            except TrainingFailedError as failed:
                raise _cause(failed, job, count) from None
    shutil.rmtree(job.folder)


def _cause(failed: TrainingFailedError, job: TrainingJob, count: int) -> SpagError:
    failures: dict[int, Exception] = getattr(failed, "worker_failures", {})
    causes = {rank: getattr(error, "cause", None) or error for rank, error in sorted(failures.items())}
    for cause in causes.values():
        if isinstance(cause, SpagError):
            return cause
    failed = getattr(failed, "controller_failure", failed)  # its own text is a heading
    lost_first = sorted(causes.items(), key=lambda found: not isinstance(found[1], RayActorError))
    where, cause = "training on Ray", first_line(failed, 200)
    if lost_first:
        rank, error = lost_first[0]
        where, cause = f"worker {rank} of {count} (they count from 0)", first_line(error, 200)
    return RunError(f"{job.output}: {where} failed: {cause.rstrip('.')}; the same command resumes the training")
