"""A tiny random Llama with a byte-level tokenizer, and samples for it: training takes milliseconds a step, in float32, on the CPU.

``train_until`` trains in a process of its own, which is killed at a chosen moment.
"""

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import torch

from spag.config.schema import ModelConfig, OfflineRLConfig
from spag.core.episodes import SampleType, TrainingSample
from spag.training import Stage, train
from spag.training.callbacks import TrainProgress
from spag.training.run import TrainResult

MODEL = ModelConfig(dtype="float32", device="cpu")
SAMPLES = 41


def make_samples(count: int) -> list[TrainingSample]:
    """Samples of many lengths, both roles, every fifth an SFT row."""
    roles = ("attacker", "defender")
    return [
        TrainingSample(prompt="ask " * (1 + i % 4), completion="x" * (i % 7) + str(i), weight=1 + i % 3, type=SampleType.SFT)
        if i % 5 == 4
        else TrainingSample(
            prompt="word " * (1 + i % 5), completion="say " * (i % 3) + str(i), reward=0.1 + i % 4, weight=0.5 + i % 2, role=roles[i % 2]
        )
        for i in range(count)
    ]


def settings(**changes: object) -> OfflineRLConfig:
    defaults = {"learning_rate": 1e-2, "global_batch_size": 8, "micro_batch_size": 2, "gradient_checkpointing": False, "save_steps": 2}
    return OfflineRLConfig.model_validate({**defaults, **changes})


def train_tiny(start: Path, output: Path, chosen: OfflineRLConfig | None = None, count: int = SAMPLES, **others: Any) -> TrainResult:
    arguments = {"stage": Stage.OFFLINE_RL, "samples": make_samples(count), "model": MODEL, "seed": 3, **others}
    return train(**arguments, training=chosen or settings(), start_from=str(start), output=output)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Prepare to be killed in the middle of writing one of a checkpoint's files, or between the finished model and the record of it."""
    import spag.training.run as run

    save = torch.save

    def torn_save(value: Any, path: Any) -> None:
        save(value, path)
        if str(path).endswith("checkpoint-4/scheduler.pt"):
            [shares] = Path(path).parent.glob("shares/*.distcp")
            os.truncate(shares, shares.stat().st_size // 2)
            die()

    if moment == "checkpoint":
        torch.save = torn_save
    if moment == "finish":
        run.record_result = lambda *_: die()


def train_until(moment: str, model: Path, output: Path, chosen: OfflineRLConfig) -> None:
    """Train until ``moment`` (``training 5``: that step), then die. Warnings are errors."""
    warnings.simplefilter("error")
    arm(moment)

    def progress(at: TrainProgress) -> None:
        if moment == f"{at.phase} {at.step}":
            die()

    train_tiny(model, output, chosen, progress=progress)
