"""A transformers Trainer for any algorithm of ``spag.algorithms``: ``compute_loss`` only calls its ``loss``.

Trainer's own normalisation averages micro-batches, so a sample's share in the gradient would depend on how samples were split. Here every
loss is a sum divided by counts of the whole global batch (all micro-batches of an optimiser step, all processes), so that any split gives
the same step. Upstream averages per process and micro-batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from spag.algorithms.base import Objective, PolicyBatch
from spag.algorithms.spag import importance_ratio
from spag.core.errors import RunError
from spag.training.base import Row, ShardedTrainer
from spag.training.data import OTHER, SFT, Batch, TrainingSet, collate
from spag.training.order import MicroBatches
from spag.training.policy import completion_logprobs


class PolicyTrainer(ShardedTrainer):
    """Batches, global normalisation and metrics for an ``objective``.

    ``groups``: the groups of samples with metrics of their own (``data.group_names``). ``on_row`` is called with each logged step's
    metrics, on the first process.
    """

    def __init__(
        self,
        *,
        objective: Objective,
        groups: Sequence[str],
        train_set: TrainingSet,
        order: MicroBatches,
        on_row: Callable[[Row], None] | None,
        **trainer_arguments: Any,
    ) -> None:
        super().__init__(train_dataset=train_set, **trainer_arguments)
        self.objective, self.groups = objective, groups
        self.order, self.on_row = order, on_row
        self.sums = torch.zeros(1 + len(groups) * 5, device=self.args.device)
        self.step_metrics: Row = {}
        self.samples_per_second = 0.0

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


def _ratio(total: float, n: float) -> float | None:
    return total / n if n else None
