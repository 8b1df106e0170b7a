"""A tiny random Llama with a byte-level tokenizer, and samples for it: training takes milliseconds an update, in
float32, on the CPU.

``train_until`` trains in a process of its own, which is killed at a chosen moment.
"""

import os
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from spag.algorithms.reinforce import ReinforceSettings
from spag.algorithms.settings import UpdateSettings
from spag.config.schema import GameConfig, ModelConfig, PhaseConfig
from spag.core.episodes import SampleType, TrainingSample
from spag.learning.checkpoints import earlier_work
from spag.learning.job import TrainingJob
from spag.learning.metrics import TrainProgress
from spag.learning.worker import run_job
from spag.models.forward import Capabilities, token_scores
from spag.models.samples import Batch
from spag.storage.store import write_rows

MODEL = ModelConfig(dtype="float32", device="cpu")
SAMPLES = 41


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    checkpoint: Path
    steps: int
    samples: int
    metrics: dict[str, float | None]


def make_samples(count: int) -> list[TrainingSample]:
    """Samples of many lengths, both roles, every fifth an SFT row."""
    roles = ("attacker", "defender")
    return [
        TrainingSample(
            prompt="ask " * (1 + i % 4), completion="x" * (i % 7) + str(i), weight=1 + i % 3, type=SampleType.SFT
        )
        if i % 5 == 4
        else TrainingSample(
            prompt="word " * (1 + i % 5),
            completion="say " * (i % 3) + str(i),
            reward=0.1 + i % 4,
            weight=0.5 + i % 2,
            role=roles[i % 2],
        )
        for i in range(count)
    ]


def sample_logprobs(model: torch.nn.Module, batch: Batch, capabilities: Capabilities) -> torch.Tensor:
    """Each sample's log-probability averaged over its trained tokens, with gradient: (B,)."""
    logprob = token_scores(model, batch, capabilities)[:, 0]
    count = torch.bincount(batch["sample"], minlength=len(batch["weight"]))
    return logprob.new_zeros(len(count)).index_add(0, batch["sample"], logprob) / count


def settings(algorithm: str = "spag", **changes: object) -> PhaseConfig:
    defaults = {
        "learning_rate": 1e-2,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "gradient_checkpointing": False,
        "save_steps": 2,
    }
    return PhaseConfig.model_validate({"algorithm": algorithm, **defaults, **changes})


def job(
    start: Path,
    output: Path,
    chosen: PhaseConfig | None = None,
    count: int = SAMPLES,
    samples: Sequence[TrainingSample] | None = None,
    **others: Any,
) -> TrainingJob:
    """A training of ``samples``, which are written to a file beside ``output``."""
    path = output.parent / f"{output.name}.samples.jsonl"
    if os.environ.get("RANK", "0") == "0":  # of several processes, the first one writes
        write_rows(path, make_samples(count) if samples is None else samples)
    while not path.exists():
        time.sleep(0.01)
    arguments = {"model": MODEL, "game": GameConfig(), "seed": 3, **others}
    return TrainingJob(phase=chosen or settings(), start_from=str(start), output=output, files=[path], **arguments)


def train_tiny(start: Path, output: Path, chosen: PhaseConfig | None = None, **others: Any) -> Trained:
    progress = others.pop("progress", None)
    result = run_job(job(start, output, chosen, **others), progress)
    return Trained(output / "checkpoint", result["steps"], result["trained_samples"], result["metrics"])


def found(
    output: Path, fingerprint: str, chosen: UpdateSettings | None = None
) -> tuple[dict[str, Any] | None, Path | None]:
    """The result, or the checkpoint, that a training of this ``fingerprint`` (online by default) finds."""
    work = SimpleNamespace(output=output, settings=chosen or ReinforceSettings())
    return earlier_work(work, fingerprint, 1)  # type: ignore[arg-type]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Prepare to be killed in the middle of writing one of a checkpoint's files, or between the finished model and the
    record of it.
    """
    from spag.learning import checkpoints

    sync = checkpoints.sync_files

    def torn_sync(folder: Path) -> None:
        if folder.name == "checkpoint-4":
            [shares] = folder.glob("shares/*.distcp")
            os.truncate(shares, shares.stat().st_size // 2)
            die()
        sync(folder)

    if moment == "checkpoint":
        checkpoints.sync_files = torn_sync
    if moment == "finish":
        checkpoints.record_result = lambda *_: die()


def train_until(moment: str, model: Path, output: Path, chosen: PhaseConfig) -> None:
    """Train until ``moment`` (``training 5``: that update), then die. Warnings are errors."""
    warnings.simplefilter("error")
    arm(moment)

    def progress(at: TrainProgress) -> None:
        if moment == f"{at.unit} {at.step}":
            die()

    train_tiny(model, output, chosen, progress=progress)
