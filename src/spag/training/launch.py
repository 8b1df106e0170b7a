"""The launcher of training: in this process, in several on this machine, or on a Ray cluster, with the same worker (``worker.py``).

A process that torchrun, ``accelerate launch`` or Ray started joins its group and starts nothing.
"""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spag.config.schema import ClusterConfig, ModelConfig, TrainingConfig
from spag.core.progress import Reporter, Tracker
from spag.rollout.ray import require_ray

if TYPE_CHECKING:
    from spag.training import Phase, TrainProgress
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
    from spag.models.loading import library_versions  # noqa: PLC0415 - imports torch
    from spag.training.worker import Job  # noqa: PLC0415 - imports torch

    job = Job(samples, model, training, start_from, output, seed)
    with _Bars(reporter, title) as bars:
        _do(job, cluster or ClusterConfig(), bars)
    result = json.loads((output / "training.json").read_text(encoding="utf-8"))["result"]
    return {**result, "seconds": round(result["seconds"], 1), "versions": library_versions()}


def _do(job: "Job", cluster: ClusterConfig, bars: "_Bars") -> None:
    from spag.training.processes import default_processes, run_in_processes  # noqa: PLC0415 - imports torch
    from spag.training.worker import do  # noqa: PLC0415 - imports torch

    if "WORLD_SIZE" in os.environ:
        do(job, bars.show)
        return
    if cluster.address is not None:
        require_ray(cluster.address)
        from spag.training.ray import train_on_ray  # noqa: PLC0415 - imports ray

        train_on_ray(job, cluster.address, bars.show)
        return
    count = job.training.processes or default_processes(job.model.device)
    if count == 1 and job.training.parallel == "replicas":
        do(job, bars.show)
    else:
        run_in_processes(job, count, bars.show)


class _Bars:
    """A progress bar for each phase of training, one after the other."""

    def __init__(self, reporter: Reporter, title: str) -> None:
        self._reporter, self._title = reporter, title
        self._stack = ExitStack()
        self._bars: dict[Phase, Tracker] = {}

    def __enter__(self) -> "_Bars":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, at: "TrainProgress") -> None:
        if at.phase not in self._bars:
            self._stack.close()  # the bar of the phase before
            self._bars[at.phase] = self._stack.enter_context(self._reporter.track(f"{self._title}: {at.phase}", at.total_steps))
        loss = "" if at.loss is None else f"  loss {at.loss:.3f}"
        self._bars[at.phase].update(at.step, f"{at.samples_per_second:.2f} samples/s{loss}")
