"""Training on a Ray cluster with Ray Train: the same work as local processes, one worker per GPU, on any nodes.

The samples, the start model and the run folder must be on a file system that all nodes see.
"""

import shutil

from ray.exceptions import RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from spag.core.errors import RunError, SpagError, first_line
from spag.learning.processes import watching
from spag.learning.trackers import OnProgress
from spag.learning.worker import TrainingJob, run_in_group
from spag.rollout.ray.connection import connected, nodes
from spag.storage.disk import storage_errors


def train_on_ray(job: TrainingJob, address: str, progress: OnProgress) -> None:
    """Run ``job`` on the cluster at ``address``, with ``processes`` workers, else one per GPU (one if there is none).

    Raises ``ConfigError`` if there is no cluster, a worker's error if it is a ``SpagError``, else ``RunError`` naming
    the worker.
    """
    with connected(address):
        gpus = int(sum(node.get("GPU", 0) for node in nodes()))
        on_gpus = gpus > 0 and job.model.device != "cpu"
        count = job.settings.processes or (gpus if on_gpus else 1)
        with storage_errors(job.folder):
            shutil.rmtree(job.folder, ignore_errors=True)
            job.folder.mkdir(parents=True)
        text = job.to_json()
        trainer = TorchTrainer(
            lambda: run_in_group(text),
            torch_config=TorchConfig(backend=None if on_gpus else "gloo"),
            scaling_config=ScalingConfig(num_workers=count, use_gpu=on_gpus),
            run_config=RunConfig(
                name="ray",
                storage_path=str(job.folder.absolute()),
                failure_config=FailureConfig(max_failures=0),
                callbacks=[],
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
    rank = min(
        causes, key=lambda rank: not isinstance(causes[rank], RayActorError), default=None
    )  # a lost worker first
    where = (
        f"{job.output}: training on Ray"
        if rank is None
        else f"{job.output}: worker {rank} of {count} (they count from 0)"
    )
    what = first_line(failed if rank is None else causes[rank], 200).rstrip(".")
    return RunError(f"{where} failed: {what}; the same command resumes the training")
