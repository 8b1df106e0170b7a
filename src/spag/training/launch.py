"""The launcher of training: in this process, in several on this machine, or on a Ray cluster, with the same worker (``worker.py``).

A process that torchrun, ``accelerate launch`` or Ray started joins its group and starts nothing.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spag.config.schema import ClusterConfig, ModelConfig, TrainingConfig, UpdateConfig
from spag.core.jsonfile import read_json
from spag.core.progress import Reporter, Tracker
from spag.rollout.ray import require_ray

if TYPE_CHECKING:
    from spag.training.callbacks import OnProgress, Phase, TrainProgress
    from spag.training.worker import Job


def train_on(
    samples: Path,
    model: ModelConfig,
    training: TrainingConfig,
    *,
    start_from: str,
    output: Path,
    seed: int,
    reporter: Reporter,
    title: str,
    cluster: ClusterConfig | None = None,
) -> dict[str, Any]:
    """Train on the file ``samples`` and return steps, samples, seconds, metrics and versions.

    Offline RL when ``training`` is an ``OfflineRLConfig``, else imitation. The model is in ``output/checkpoint`` afterwards. Raises what
    ``spag.training.train`` raises, and ``RunError`` naming the process when one of several is lost.
    """
    from spag.training.worker import TrainJob  # noqa: PLC0415 - imports torch

    job = TrainJob(samples=samples, model=model, training=training, start_from=start_from, output=output, seed=seed)
    return launch(job, reporter, title, cluster)


def launch(job: "Job", reporter: Reporter, title: str, cluster: ClusterConfig | None = None) -> dict[str, Any]:
    """Do ``job`` and return what it wrote into training.json, with the versions that decide what it computed."""
    from spag.models.loading import library_versions  # noqa: PLC0415 - imports torch

    with _progress_bars(reporter, title) as show:
        _launch(job, cluster.address if cluster else None, show)
    result = read_json(job.output / "training.json", dict[str, Any])["result"]
    return {**result, "seconds": round(result["seconds"], 1), "versions": library_versions()}


def process_count(model: ModelConfig, settings: UpdateConfig) -> int:
    """Return how many processes of this machine train: those that torchrun started, else as many as asked for, or one a visible GPU."""
    return int(os.environ.get("WORLD_SIZE", "0")) or settings.processes or max(1, gpu_count(model))


def gpu_count(model: ModelConfig) -> int:
    """Return how many GPUs are visible, none for a model that is kept on the CPU."""
    import torch  # noqa: PLC0415 - slow to import

    return torch.cuda.device_count() if model.device != "cpu" else 0


def _launch(job: "Job", address: str | None, show: "OnProgress") -> None:
    count = process_count(job.model, job.settings)
    if "WORLD_SIZE" in os.environ or (address is None and count == 1 and job.settings.parallel == "replicas"):
        job.run(show)
    elif address is not None:
        require_ray(address)
        from spag.training.ray import train_on_ray  # noqa: PLC0415 - imports ray

        train_on_ray(job, address, show)
    else:
        from spag.training.processes import run_in_processes  # noqa: PLC0415 - imports torch

        run_in_processes(job, count, show)


@contextmanager
def _progress_bars(reporter: Reporter, title: str) -> "Iterator[OnProgress]":
    """A progress bar for each phase of training, one after the other."""
    bars: dict[Phase, Tracker] = {}
    with ExitStack() as stack:

        def show(at: "TrainProgress") -> None:
            if at.phase not in bars:
                stack.close()  # the bar of the phase before
                bars[at.phase] = stack.enter_context(reporter.track(f"{title}: {at.phase}", at.total_steps))
            loss = "" if at.loss is None else f"  loss {at.loss:.3f}"
            bars[at.phase].update(at.step, f"{at.samples_per_second:.2f} samples/s{loss}{at.told and '  ' + at.told}")

        yield show
