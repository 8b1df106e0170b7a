"""What all trainers here share: FSDP2 on any device, checkpoints in shards, schedules of our own, and the finished model."""

from collections.abc import Callable
from pathlib import Path
from pickle import PickleError
from typing import Any

import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import PreTrainedModel, Trainer, TrainerControl

from spag.core.errors import RunError
from spag.models.refusals import Refusals, told
from spag.training.policy import Capabilities
from spag.training.sharding import load_shares, save_shares, whole_weights, whole_zero3_weights

_SCHEDULER = "scheduler.pt"

Row = dict[str, float | None]


class ShardedTrainer(Trainer):  # type: ignore[misc]
    """A Trainer of a policy with ``capabilities``. ``schedule`` replaces the scheduler that the arguments name (``schedule.py``)."""

    control: TrainerControl

    def __init__(self, *, capabilities: Capabilities, schedule: Callable[[int], float] | None = None, **trainer_arguments: Any) -> None:
        super().__init__(**trainer_arguments)
        self.capabilities, self.schedule = capabilities, schedule
        self.model_accepts_loss_kwargs = True  # Trainer then leaves the loss as compute_loss scales it

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if self.args.fsdp and self.args.device.type == "cpu":
            # accelerate knows FSDP2 on GPUs only, and would keep replicas
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.accelerator.state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled: bool = True

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.schedule is None:
            super().create_scheduler(num_training_steps, optimizer)
        elif self.lr_scheduler is None:
            self.lr_scheduler: LRScheduler = LambdaLR(optimizer or self.optimizer, self.schedule)
        return self.lr_scheduler

    def finished(self) -> tuple[PreTrainedModel, dict[str, Tensor] | None]:
        """Return the model and, where it is sharded, its weights gathered on the first process. Every process must call it."""
        policy = self.accelerator.unwrap_model(self.model)
        if self.is_deepspeed_enabled:
            return policy, whole_zero3_weights(policy)
        return policy, whole_weights(policy) if self.is_fsdp_enabled else None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Make the checkpoint's folder; the weights are saved with the shards."""
        Path(output_dir or self.args.output_dir).mkdir(parents=True, exist_ok=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_deepspeed_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_shares(Path(output_dir), self.model, self.optimizer.optimizer)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / _SCHEDULER)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load nothing yet: the shards fit the model once it is sharded."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or self.is_deepspeed_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        with _resuming(checkpoint):
            load_shares(Path(checkpoint), self.model, self.optimizer.optimizer)
            self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / _SCHEDULER, weights_only=True))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _resuming(checkpoint):
            super()._load_rng_state(checkpoint)

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        reduced: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return reduced


def _resuming(checkpoint: str | None) -> Refusals:
    """Translate what torch raises over a checkpoint that was damaged after it was complete."""

    def explain(error: BaseException) -> RunError:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            return RunError(f"{checkpoint}: out of memory while it was read; free memory, then start again: training resumes")
        fix = f"remove {Path(checkpoint or '').parent} to train from the start"
        return RunError(f"{checkpoint}: cannot be resumed, a file of it is damaged ({told(error, 120)}); {fix}")

    return Refusals(explain, also=(CheckpointException, PickleError))
