"""A transformers Trainer for any algorithm of ``spag.algorithms``: ``compute_loss`` only calls its ``loss``.

Trainer's own normalisation averages micro-batches, so a sample's share in the gradient would depend on how samples were split. Here every
loss is a sum divided by counts of the whole global batch (all micro-batches of an optimiser step, all processes), so that any split gives
the same step. Upstream averages per process and micro-batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerControl

from spag.algorithms.base import Objective, PolicyBatch
from spag.algorithms.spag import importance_ratio
from spag.core.errors import RunError
from spag.training.data import OTHER, SFT, Batch, TrainingSet, collate
from spag.training.order import MicroBatches
from spag.training.policy import Capabilities, completion_logprobs
from spag.training.sharding import load_shares, save_shares, whole_weights, whole_zero3_weights

_SCHEDULER = "scheduler.pt"

Row = dict[str, float | None]


class PolicyTrainer(Trainer):  # type: ignore[misc]
    """Batches, global normalisation and metrics for an ``objective``.

    ``groups``: the groups of samples with metrics of their own (``data.group_names``). ``on_row`` is called with each logged step's
    metrics, on the first process. ``schedule`` replaces the scheduler that the arguments name (``schedule.py``).
    """

    control: TrainerControl

    def __init__(
        self,
        *,
        objective: Objective,
        groups: Sequence[str],
        train_set: TrainingSet,
        order: MicroBatches,
        capabilities: Capabilities,
        on_row: Callable[[Row], None] | None,
        schedule: Callable[[int], float] | None = None,
        **trainer_arguments: Any,
    ) -> None:
        super().__init__(train_dataset=train_set, **trainer_arguments)
        self.objective, self.groups = objective, groups
        self.order, self.capabilities, self.on_row, self.schedule = order, capabilities, on_row, schedule
        self.model_accepts_loss_kwargs = True  # with counts given, Trainer then leaves the loss as compute_loss scales it
        self.sums = torch.zeros(1 + len(groups) * 5, device=self.args.device)
        self.step_metrics: Row = {}
        self.samples_per_second = 0.0

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

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return batches of this process; the schedule already splits them, so accelerate must not."""
        rows = partial(collate, packed=self.capabilities.packed)
        return DataLoader(self.train_dataset, batch_sampler=self.order, collate_fn=rows, pin_memory=self.args.device.type == "cuda")

    def get_batch_samples(self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device) -> tuple[list[Batch], Tensor]:
        """Return the micro-batches of one optimiser step, and the samples of each group in the global batch: (G,)."""
        batches = list(islice(epoch_iterator, num_batches))
        groups = torch.cat([batch["group"] for batch in batches])
        counts = torch.bincount(groups[groups >= 0], minlength=len(self.groups)).to(device)
        return batches, self._sum_over_processes(counts)

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Any]:
        assert num_items_in_batch is not None
        with self.accelerator.autocast():  # masks are made outside the model, in the precision of its products
            logprob = completion_logprobs(model, inputs, self.capabilities)
        policy_batch = PolicyBatch(
            logprob=logprob,
            ref_logprob=inputs["ref_logprob"],
            reward=inputs["reward"],
            weight=inputs["weight"],
            is_sft=inputs["group"] == SFT,
            n=num_items_in_batch.sum() - num_items_in_batch[SFT],
            n_sft=num_items_in_batch[SFT],
        )
        loss = self.objective.loss(policy_batch)
        with torch.no_grad():
            self._add_up(loss, policy_batch, inputs["group"])
        loss = loss * self.accelerator.num_processes  # gradients are averaged over the processes
        return (loss, None) if return_outputs else loss

    def _add_up(self, loss: Tensor, batch: PolicyBatch, group: Tensor) -> None:
        ratio = importance_ratio(batch.logprob, batch.ref_logprob)
        clipped = (ratio - 1.0).abs() > (self.objective.clip_range or math.inf)
        log_ratio = batch.logprob - batch.ref_logprob
        features = torch.stack([torch.ones_like(log_ratio), self.objective.terms(batch), log_ratio, ratio, clipped.float()], dim=1)
        member = group.unsqueeze(0) == torch.arange(len(self.groups), device=group.device).unsqueeze(1)
        self.sums[0] += loss
        self.sums[1:] += (member.float() @ features).flatten()

    def reduce_step(self) -> None:
        """Turn the sums of one optimiser step, over all processes, into ``step_metrics``.

        Raises ``RunError`` when the loss is not finite.
        """
        loss, *rest = self._sum_over_processes(self.sums).tolist()
        self.sums.zero_()
        step = self.state.global_step + 1
        if not math.isfinite(loss):
            raise RunError(
                f"training step {step}: the loss is {loss}; lower the learning rate, or look for broken weights in the start model"
            )
        by_group = [rest[start : start + 5] for start in range(0, len(rest), 5)]
        self.step_metrics = {"step": step, "loss": loss, **self._means(by_group)}

    def _means(self, by_group: list[list[float]]) -> Row:
        shown = [*range(OTHER + 1, len(self.groups)), SFT]
        row: Row = {f"loss_{self.groups[group]}": _ratio(by_group[group][1], by_group[group][0]) for group in shown}
        n, _, kl, ratio, clipped = (sum(column) for column in zip(*by_group[OTHER:], strict=True))  # the SFT mix has no reference
        row["kl"] = _ratio(kl, n)
        if self.objective.clip_range is not None:
            row["importance_ratio"], row["clip_fraction"] = _ratio(ratio, n), _ratio(clipped, n)
        return row

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Pass a step's row to ``on_row`` and, without nulls, to the integrations. Trainer's own history is not kept.

        Raises ``RunError`` when the gradient is not finite.
        """
        if "grad_norm" not in logs:  # Trainer's own summary at the end
            return
        if not math.isfinite(logs["grad_norm"]) and not self.args.fp16:  # in float16 the loss scaler skips such steps
            raise RunError(f"training step {self.state.global_step}: the gradient's norm is {logs['grad_norm']}; lower the learning rate")
        speed = {"samples_per_second": self.samples_per_second}
        row: Row = {**self.step_metrics, "learning_rate": logs["learning_rate"], "grad_norm": logs["grad_norm"], **speed}
        if self.on_row is not None:
            self.on_row(row)
        numbers = {name: value for name, value in row.items() if value is not None and name != "step"}
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, numbers)

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
        load_shares(Path(checkpoint), self.model, self.optimizer.optimizer)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / _SCHEDULER, weights_only=True))

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        reduced: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return reduced


def _ratio(total: float, n: float) -> float | None:
    return total / n if n else None
