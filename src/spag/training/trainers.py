"""The two stages as transformers Trainers: ``compute_loss`` only calls ``losses.py``.

Trainer's own normalisation averages micro-batches, so a sample's share in the gradient would depend on how samples were split. Here every
loss is a sum divided by counts of the whole global batch (all micro-batches of an optimiser step, all processes), so that any split gives
the same step. Upstream averages per process and micro-batch.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerControl

from spag.core.errors import RunError
from spag.training.data import Batch, Group, TrainingSet, collate
from spag.training.losses import imitation_loss, imitation_terms, importance_ratio, offline_rl_loss, offline_rl_terms
from spag.training.order import MicroBatches
from spag.training.policy import Abilities, target_logprobs
from spag.training.sharding import load_shares, save_shares, shard_on_cpu, whole_weights, whole_zero3_weights

_SCHEDULER = "scheduler.pt"

Row = dict[str, float | None]


class PolicyTrainer(Trainer):  # type: ignore[misc]
    """What both stages share: batches, global normalisation, metrics.

    ``on_row`` is called with each logged step's metrics (on the first process)
    """

    clip_range: float | None = None
    control: TrainerControl

    def __init__(
        self,
        *,
        train_set: TrainingSet,
        order: MicroBatches,
        abilities: Abilities,
        on_row: Callable[[Row], None] | None,
        **trainer_arguments: Any,
    ) -> None:
        super().__init__(train_dataset=train_set, **trainer_arguments)
        self.order, self.abilities, self.on_row = order, abilities, on_row
        self.model_accepts_loss_kwargs = True  # with counts given, Trainer then leaves the loss as compute_loss scales it
        self.sums = torch.zeros(1 + len(Group) * 5, device=self.args.device)
        self.step_metrics: Row = {}
        self.samples_per_second = 0.0

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if self.args.fsdp and self.args.device.type == "cpu":
            shard_on_cpu(self.accelerator.state, self.args.fsdp_plugin_args)
            self.is_fsdp_enabled: bool = True

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return batches of this process; the schedule already shares them out, so accelerate must not."""
        rows = partial(collate, packed=self.abilities.packed)
        return DataLoader(self.train_dataset, batch_sampler=self.order, collate_fn=rows, pin_memory=self.args.device.type == "cuda")

    def get_batch_samples(self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device) -> tuple[list[Batch], Tensor]:
        """Return the micro-batches of one optimiser step, and the samples of each ``Group`` in the global batch: (G,)."""
        batches = list(islice(epoch_iterator, num_batches))
        groups = torch.cat([batch["group"] for batch in batches])
        counts = torch.bincount(groups[groups >= 0], minlength=len(Group)).to(device)
        return batches, self._sum_over_processes(counts)

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Any]:
        assert num_items_in_batch is not None
        with self.accelerator.autocast():  # masks are made outside the model, in the precision of its products
            logprob = target_logprobs(model, inputs, self.abilities)
        loss = self.objective(logprob, inputs, num_items_in_batch)
        with torch.no_grad():
            self._add_up(loss, logprob, inputs)
        loss = loss * self.accelerator.num_processes  # gradients are averaged over the processes
        return (loss, None) if return_outputs else loss

    def objective(self, logprob: Tensor, batch: Batch, counts: Tensor) -> Tensor:
        """Return the batch's share in the global loss. ``logprob`` (B,), ``counts`` (G,)."""
        raise NotImplementedError

    def terms(self, logprob: Tensor, batch: Batch) -> Tensor:
        """Return each sample's loss, for metrics: (B,)."""
        raise NotImplementedError

    def has_reference(self, group: int) -> bool:
        """Whether the loss of a group's samples looks at the reference policy."""
        raise NotImplementedError

    def _add_up(self, loss: Tensor, logprob: Tensor, batch: Batch) -> None:
        ratio = importance_ratio(logprob, batch["ref_logprob"])
        clipped = (ratio - 1.0).abs() > (self.clip_range or math.inf)
        log_ratio = logprob - batch["ref_logprob"]
        features = torch.stack([torch.ones_like(logprob), self.terms(logprob, batch), log_ratio, ratio, clipped.float()], dim=1)
        member = batch["group"].unsqueeze(0) == torch.arange(len(Group), device=logprob.device).unsqueeze(1)
        self.sums[0] += loss
        self.sums[1:] += (member.float() @ features).flatten()

    def reduce_step(self) -> None:
        """Turn the sums of one optimiser step, over all processes, into ``step_metrics``.

        Raises ``RunError`` when the loss is no number.
        """
        loss, *rest = self._sum_over_processes(self.sums).tolist()
        self.sums.zero_()
        step = self.state.global_step + 1
        if not math.isfinite(loss):
            raise RunError(
                f"training step {step}: the loss is {loss}; lower the learning rate, or look for broken weights in the start model"
            )
        by_group = {group: rest[group * 5 : group * 5 + 5] for group in Group}
        self.step_metrics = {"step": step, "loss": loss, **self._means(by_group)}

    def _means(self, by_group: dict[Group, list[float]]) -> Row:
        row: Row = {
            f"loss_{group.name.lower()}": _ratio(by_group[group][1], by_group[group][0]) for group in Group if group is not Group.OTHER
        }
        compared = [by_group[group] for group in Group if self.has_reference(group)]
        n, _, kl, ratio, clipped = (sum(column) for column in zip(*compared, strict=True))
        row["kl"] = _ratio(kl, n)
        if self.clip_range is not None:
            row["importance_ratio"], row["clip_fraction"] = _ratio(ratio, n), _ratio(clipped, n)
        return row

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hand over a step's row, to the integrations less what is no number. Trainer's own history is not kept.

        Raises ``RunError`` when the gradient is no number.
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
        """Return the model and, where it is shared out, its weights, gathered on the first process. Every process must call it."""
        policy = self.accelerator.unwrap_model(self.model)
        if self.is_deepspeed_enabled:
            return policy, whole_zero3_weights(policy)
        return policy, whole_weights(policy) if self.is_fsdp_enabled else None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Make the checkpoint's folder: the weights are among the shares that are saved next."""
        Path(output_dir or self.args.output_dir).mkdir(parents=True, exist_ok=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_deepspeed_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_shares(Path(output_dir), self.model, self.optimizer.optimizer)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / _SCHEDULER)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load nothing yet: the shares are for the model as it is shared out."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or self.is_deepspeed_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        load_shares(Path(checkpoint), self.model, self.optimizer.optimizer)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / _SCHEDULER, weights_only=True))

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        reduced: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return reduced


class ImitationTrainer(PolicyTrainer):
    """Behaviour cloning with a KL term, mixed with instruction data, which has none. Without the KL term it is weighted SFT."""

    def __init__(self, *, kl_coef: float, sft_coef: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.kl_coef, self.sft_coef = kl_coef, sft_coef

    def objective(self, logprob: Tensor, batch: Batch, counts: Tensor) -> Tensor:
        is_sft, n_sft = batch["group"] == Group.SFT, counts[Group.SFT]
        columns = (logprob, batch["ref_logprob"], batch["weight"])
        imitation = imitation_loss(*(column[~is_sft] for column in columns), kl_coef=self.kl_coef, n=counts.sum() - n_sft)
        sft = imitation_loss(*(column[is_sft] for column in columns), kl_coef=0.0, n=n_sft)
        return imitation + self.sft_coef * sft

    def terms(self, logprob: Tensor, batch: Batch) -> Tensor:
        columns = (logprob, batch["ref_logprob"], batch["weight"])
        imitation, sft = (imitation_terms(*columns, kl_coef=coefficient) for coefficient in (self.kl_coef, 0.0))
        return torch.where(batch["group"] == Group.SFT, sft, imitation)

    def has_reference(self, group: int) -> bool:
        return group != Group.SFT


class OfflineRLTrainer(PolicyTrainer):
    """Clipped policy gradient on self-play, mixed with instruction data."""

    def __init__(self, *, kl_coef: float, sft_coef: float, clip_range: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.kl_coef, self.sft_coef, self.clip_range = kl_coef, sft_coef, clip_range

    def objective(self, logprob: Tensor, batch: Batch, counts: Tensor) -> Tensor:
        n_sft = counts[Group.SFT]
        return offline_rl_loss(
            logprob,
            batch["ref_logprob"],
            batch["reward"],
            batch["weight"],
            batch["group"] == Group.SFT,
            kl_coef=self.kl_coef,
            sft_coef=self.sft_coef,
            clip_range=self.clip_range or 0.0,
            n_rl=counts.sum() - n_sft,
            n_sft=n_sft,
        )

    def terms(self, logprob: Tensor, batch: Batch) -> Tensor:
        is_sft = batch["group"] == Group.SFT
        arguments = (logprob, batch["ref_logprob"], batch["reward"], batch["weight"], is_sft)
        return offline_rl_terms(*arguments, kl_coef=self.kl_coef, clip_range=self.clip_range or 0.0)

    def has_reference(self, group: int) -> bool:
        return group != Group.SFT


def _ratio(total: float, n: float) -> float | None:
    return total / n if n else None
