"""Callbacks around the optimiser steps: the reference pass, progress, metrics, complete checkpoints, and trackers of experiments."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list, gather_object
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from spag.training.data import SFT, TrainingSet
from spag.training.reference import compute_reference, read_reference, write_reference
from spag.training.state import finish_checkpoint
from spag.training.trainers import PolicyTrainer

REFERENCE_BATCH = 4
"""Factor by which batches without gradients are larger."""


class Phase(StrEnum):
    """The unit of a ``TrainProgress``: samples of the reference pass, optimiser steps, or online steps of play and training."""

    REFERENCE = "reference"
    TRAINING = "training"
    STEPS = "steps"


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """The progress of training. ``loss`` is ``None`` in the reference phase; ``told`` are figures of play."""

    phase: Phase
    step: int
    total_steps: int
    samples_per_second: float
    loss: float | None
    told: str = ""


OnProgress = Callable[[TrainProgress], None]


class ReferencePass(TrainerCallback):  # type: ignore[misc]
    """Fills in the reference log-probabilities before the first step, from ``path`` or by computing them."""

    def __init__(self, trainer: PolicyTrainer, train_set: TrainingSet, path: Path, fingerprint: str, progress: OnProgress | None) -> None:
        self.trainer, self.train_set, self.path, self.fingerprint, self.progress = trainer, train_set, path, fingerprint, progress

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: nn.Module, **_: Any) -> None:
        logprobs = read_reference(self.path, self.fingerprint) if self.trainer.is_world_process_zero() else None
        logprobs = broadcast_object_list([logprobs])[0]
        if logprobs is None:
            assert state.global_step == 0, "a checkpoint without its reference file is never resumed"
            logprobs = self._compute(args, model)
        for sample, logprob in logprobs.items():
            self.train_set.ref_logprobs[sample] = logprob

    def _compute(self, args: TrainingArguments, model: nn.Module) -> dict[int, float]:
        samples = self.train_set.samples
        indices = [index for index, sample in enumerate(samples) if sample.group != SFT]
        started, done = time.perf_counter(), 0

        def report(count: int) -> None:
            nonlocal done
            done = min(done + count * args.world_size, len(indices))
            if self.progress is not None:
                speed = done / (time.perf_counter() - started)
                self.progress(TrainProgress(Phase.REFERENCE, done, len(indices), speed, None))

        with self.trainer.accelerator.autocast():
            share = compute_reference(
                model,
                samples,
                indices,
                device=args.device,
                batch_size=args.per_device_train_batch_size * REFERENCE_BATCH,
                capabilities=self.trainer.capabilities,
                world_size=args.world_size,
                rank=args.process_index,
                on_batch=report,
            )
        logprobs = dict(gather_object(list(share.items())))
        if self.trainer.is_world_process_zero():
            write_reference(self.path, self.fingerprint, logprobs)
        return logprobs


class StepKeeper(TrainerCallback):  # type: ignore[misc]
    """Times the steps, reports them, logs the last one whatever ``log_steps`` is, and marks checkpoints as complete."""

    def __init__(
        self, trainer: PolicyTrainer, state_folder: Path, global_batch_size: int, samples: int, progress: OnProgress | None
    ) -> None:
        self.trainer, self.state_folder, self.progress = trainer, state_folder, progress
        self.global_batch_size, self.samples = global_batch_size, samples
        self.step_began = 0.0

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.step_began = time.perf_counter()

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.reduce_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        last = state.global_step >= state.max_steps
        batch = self.samples - (state.max_steps - 1) * self.global_batch_size if last else self.global_batch_size
        self.trainer.samples_per_second = batch / (time.perf_counter() - self.step_began)
        if last:
            control.should_log = True
            control.should_save = False  # the finished model is saved instead
        if self.progress is not None:
            loss, speed = self.trainer.step_metrics["loss"], self.trainer.samples_per_second
            self.progress(TrainProgress(Phase.TRAINING, state.global_step, state.max_steps, speed, loss))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()  # every process adds its own random state to the checkpoint
        if self.trainer.is_world_process_zero():
            finish_checkpoint(self.state_folder, state.global_step)


class OneWandbRun(WandbCallback):  # type: ignore[misc]
    """Ends the run that it began, so that the next stage of the same process gets a run of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = self._wandb.run is None

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        super().on_train_end(args, state, control, **others)
        if self.own and state.is_world_process_zero:
            self._wandb.finish()


def integrations(names: Sequence[str], folder: Path, resume_step: int) -> list[TrainerCallback]:
    """Return the callbacks for ``tensorboard`` (which writes to ``folder``), ``wandb`` and ``trackio``, on the first process."""
    made: list[TrainerCallback] = []
    if "tensorboard" in names:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional package

        made.append(TensorBoardCallback(SummaryWriter(str(folder), purge_step=resume_step + 1)))  # repeated steps show once
    if "wandb" in names:
        made.append(OneWandbRun())
    if "trackio" in names:
        made.append(TrackioCallback())
    return made
