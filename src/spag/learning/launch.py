"""The launcher of training: in this process, in several on this machine, or on a Ray cluster, always with the same
worker.

A process that torchrun, ``accelerate launch`` or Ray started joins its group and starts nothing.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from spag.algorithms.settings import UpdateSettings
from spag.config.schema import ModelConfig
from spag.core.progress import Reporter, Tracker
from spag.learning.job import TrainingJob
from spag.rollout.ray import require_ray
from spag.storage.jsonfile import read_json

if TYPE_CHECKING:
    from spag.learning.metrics import OnProgress, TrainProgress, Unit


def train_on(job: TrainingJob, reporter: Reporter, title: str) -> dict[str, Any]:
    """Run ``job`` and return the contents of its training.json, with the library versions that affect results.

    The model is then in ``output/checkpoint``. Raises the errors of ``worker.run_job``, and ``RunError`` naming the
    process if one of several is lost.
    """
    from spag.models.loading import library_versions  # noqa: PLC0415 - imports torch

    with _progress_bars(reporter, title) as show:
        _launch(job, show)
    result = read_json(job.output / "training.json", dict[str, Any])["result"]
    return {**result, "versions": library_versions()}


def process_count(model: ModelConfig, settings: UpdateSettings) -> int:
    """Return how many processes train here: those of torchrun, else as many as requested, or one per visible GPU, and a
    single one on a GPU that ``model.device`` names.
    """
    visible = 1 if model.names_one_device else max(1, gpu_count(model))
    return int(os.environ.get("WORLD_SIZE", "0")) or settings.processes or visible


def gpu_count(model: ModelConfig) -> int:
    """Return how many GPUs are visible; 0 for a model kept on the CPU."""
    import torch  # noqa: PLC0415 - slow to import

    return torch.cuda.device_count() if model.device != "cpu" else 0


def _launch(job: TrainingJob, show: "OnProgress") -> None:
    count, address = process_count(job.model, job.settings), job.cluster.address
    if "WORLD_SIZE" in os.environ or (address is None and count == 1 and job.settings.parallel == "replicas"):
        from spag.learning.worker import run_job  # noqa: PLC0415 - imports torch

        run_job(job, show)
    elif address is not None:
        require_ray(address)
        from spag.learning.ray import train_on_ray  # noqa: PLC0415 - imports ray

        train_on_ray(job, address, show)
    else:
        from spag.learning.processes import run_in_processes  # noqa: PLC0415 - imports torch

        run_in_processes(job, count, show)


@contextmanager
def _progress_bars(reporter: Reporter, title: str) -> "Iterator[OnProgress]":
    """Show a progress bar for each unit of training, one after the other."""
    bars: dict[Unit, Tracker] = {}
    with ExitStack() as stack:

        def show(at: "TrainProgress") -> None:
            if at.unit not in bars:
                stack.close()  # the bar of the previous unit
                earlier = max(0, at.step - 1)  # of a resumed training; else the time left would count them as just done
                bar = reporter.track(f"{title}: {at.unit}", at.total_steps, earlier)
                bars[at.unit] = stack.enter_context(bar)
            loss = "" if at.loss is None else f"  loss {at.loss:.3f}"
            detail = f"{at.samples_per_second:.2f} samples/s{loss}{at.detail and '  ' + at.detail}"
            bars[at.unit].update(at.step, detail)

        yield show
