"""Online training: a transformers Trainer whose batches are the games that the policy has just played.

A step: new weights for the engines, games, samples, one or more updates. ``Selfplay`` (``spag.runs.online``) plays and credits;
``OnlineTrainer`` trains; Trainer keeps the optimiser, the schedule, checkpoints and the sharing of the model between processes, as it does
offline. Every process plays its share of a step's games and trains its share of the samples. With ``overlap`` the next step's games are
played in a thread while this step's samples are trained: they are then one update old, which the importance weights correct.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.algorithms.reinforce import TokenBatch, merge_equal, reinforce_loss, scheduled
from spag.config.schema import OnlineConfig
from spag.core.episodes import TrainingSample
from spag.core.errors import RunError
from spag.models.adapters import use_adapter
from spag.models.roles import adapter_name
from spag.models.tokens import PromptStyle
from spag.training.average import WeightAverage
from spag.training.base import Row, ShardedTrainer
from spag.training.callbacks import REFERENCE_BATCH
from spag.training.data import Batch, EncodedSample, collate
from spag.training.online_batches import StepSamples, Values
from spag.training.online_metrics import StepSums, Timer
from spag.training.order import micro_batches
from spag.training.policy import to_device, token_scores
from spag.training.selfplay import Selfplay
from spag.training.sharding import full_weights, load_tensors, save_tensors

_AVERAGE = "average"
REMEMBERED = 4096
"""Samples whose reference log-probabilities are kept: in a small game the same ones come in every step."""


class OnlineTrainer(ShardedTrainer):
    """REINFORCE with role baselines (``spag.algorithms.reinforce``) on the games of ``selfplay``.

    ``reference``: the frozen reference policy where ``settings.kl_coef`` is not 0. ``roles``: every ``GAME/ROLE`` that may be trained, for
    metrics.
    """

    def __init__(
        self,
        *,
        selfplay: Selfplay,
        settings: OnlineConfig,
        roles: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        style: PromptStyle,
        reference: PreTrainedModel | None,
        **trainer_arguments: Any,
    ) -> None:
        self.updates = settings.epochs * settings.minibatches
        super().__init__(train_dataset=range(settings.steps * self.updates), **trainer_arguments)
        self.selfplay, self.settings, self.roles, self.reference = selfplay, settings, tuple(roles), reference
        self.tokenizer, self.style = tokenizer, style
        self.model_accepts_loss_kwargs = True  # Trainer leaves the loss as compute_loss scales it
        self.sums = StepSums(self.roles, settings.clip_range, self.args.device)
        self.parts: list[list[Batch]] = []
        self.row: Row = {}
        self.seconds: dict[str, float] = {}
        self.step_began, self.update_began, self.samples = 0.0, 0.0, 0.0
        self.average = WeightAverage(settings.average_decay)
        self._reference_logprobs: dict[tuple[int, int, bytes], list[float]] = {}
        self._thread = ThreadPoolExecutor(1, "spag-play")
        self._ahead: tuple[int, Future[None]] | None = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the numbers of the updates, from 0; ``get_batch_samples`` makes their batches."""
        return DataLoader(self.train_dataset, batch_size=1, collate_fn=_only)

    def get_batch_samples(self, epoch_iterator: Iterator[int], num_batches: int, device: torch.device) -> tuple[list[Any], None]:
        """Return the micro-batches of the next update, after playing the games when it is the first of its step."""
        step, part = divmod(int(next(epoch_iterator)), self.updates)
        if part == 0:
            self._begin_step(step + 1)
        self.update_began = time.perf_counter()
        return [{"micro_batches": self.parts[part]}], None

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Add up the gradients of all micro-batches of an update; processes exchange them with the last."""
        model.train()
        total = torch.zeros((), device=self.args.device)
        batches = inputs["micro_batches"]
        per_role = self.settings.per_role
        for index, batch in enumerate(batches):
            self._use_role(model, batch)
            with nullcontext() if index == len(batches) - 1 and not per_role else self.accelerator.no_sync(model):
                loss = self.compute_loss(model, to_device(batch, self.args.device))
                assert isinstance(loss, Tensor)
                self.accelerator.backward(loss)
            total += loss.detach()
        if per_role:
            self._exchange_gradients()
        return total

    def _use_role(self, model: nn.Module, batch: Batch) -> None:
        """Let the adapter compute that a micro-batch is for, where each role has its own."""
        if not self.settings.per_role:
            return
        bare, name = self.accelerator.unwrap_model(model), adapter_name(self.roles[int(batch["group"][0])])
        if name in getattr(bare, "peft_config", ()):  # a reference may be one model for all roles
            use_adapter(bare, name)

    def _exchange_gradients(self) -> None:
        """Average all gradients over the processes; those of an adapter without samples in this update are 0.

        DDP would wait for gradients of adapters that had no part in its last micro-batch.
        """
        trained = self._trained()
        gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in trained]
        whole: Tensor = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), reduction="mean")
        for weight, part in zip(trained, torch.split(whole, [weight.numel() for weight in trained]), strict=True):
            weight.grad = part.view_as(weight)

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Any]:
        settings, steps = self.settings, self.settings.anneal_steps or self.settings.steps
        entropy_coef = scheduled(settings.entropy_coef, settings.entropy_coef_end, self.online_step, steps)
        kl_coef = scheduled(settings.kl_coef, settings.kl_coef_end, self.online_step, steps)
        with self.accelerator.autocast():
            scores = token_scores(model, inputs, self.capabilities, entropy=True)
        logprob, entropy = scores[:, 0], scores[:, 1] if entropy_coef else scores[:, 1].detach()
        batch = TokenBatch(
            logprob=logprob,
            old_logprob=inputs.get("old_logprob", logprob.detach()),
            sampling_logprob=inputs["sampling_logprob"],
            ref_logprob=inputs.get("token_ref_logprob", logprob.detach()),
            entropy=entropy,
            advantage=inputs["reward"][inputs["sample"]],
            share=inputs["share"],
        )
        loss = reinforce_loss(
            batch,
            clip_range=settings.clip_range,
            kl_coef=kl_coef,
            entropy_coef=entropy_coef,
            correction_limit=settings.correction_limit,
        )
        self.sums.add(loss, batch, inputs)
        loss = loss * self.accelerator.num_processes  # gradients are averaged over the processes
        return (loss, None) if return_outputs else loss

    @property
    def online_step(self) -> int:
        """The step that is being trained, from 1."""
        return int(self.state.global_step) // self.updates + 1

    def weights(self) -> dict[str, Tensor]:
        """Return the trained weights by name, whole, on every process."""
        model = self.accelerator.unwrap_model(self.model)
        if self.is_fsdp_enabled:
            return full_weights(model)
        return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Close the step that just ended: figures, the average of the weights, evaluation. Trainer calls it after a step's last update.

        Raises ``RunError`` when loss or gradient are not finite.
        """
        if "grad_norm" not in logs:  # Trainer's own summary at the end
            return
        step = int(self.state.global_step) // self.updates
        if not math.isfinite(logs["grad_norm"]):
            raise RunError(f"online step {step}: the gradient's norm is {logs['grad_norm']}; lower the learning rate")
        self.average.add(self._trained())
        row: Row = {
            "step": step,
            "samples": self.samples,
            **self.sums.take(step, self.updates, self.accelerator, has_reference=self.reference is not None),
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs["grad_norm"],
        }
        row["tokens_per_second"] = (row["tokens"] or 0.0) * self.updates / max(self.seconds["train_s"], 1e-9)
        row |= {**self.seconds, "step_s": time.perf_counter() - self.step_began}
        if self.selfplay.needs_weights(step):
            if self._ahead is not None:
                self._ahead[1].result()  # the engines are free then
            self._update_engines()
        whole = None if self.is_fsdp_enabled else self.accelerator.unwrap_model(self.model)
        goes_on = broadcast_object_list([self.selfplay.finish_step(step, row, whole)])[0]
        numbers = {name: value for name, value in row.items() if value is not None and name != "step"}
        self.row = row
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, numbers)
        if not goes_on:
            self.control.should_training_stop = True
            self._stop_playing()

    def _stop_playing(self) -> None:
        """Let the games that are played ahead end: the engines close next."""
        if self._ahead is not None:
            self._ahead[1].result()
            self._ahead = None

    def update_ended(self) -> None:
        """Add the last update's seconds."""
        self.seconds["train_s"] += time.perf_counter() - self.update_began

    def finished(self) -> tuple[PreTrainedModel, dict[str, Tensor] | None]:
        """Return the final policy, averaged if the settings say so. Every process must call it."""
        self.average.copy_to(self._trained())
        return super().finished()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        save_tensors(Path(output_dir) / _AVERAGE, self.average.values)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.average.decay:
            self.average.values = [weight.detach().clone() for weight in self._trained()]
            load_tensors(Path(checkpoint) / _AVERAGE, self.average.values)

    def _trained(self) -> list[nn.Parameter]:
        return [weight for weight in self.accelerator.unwrap_model(self.model).parameters() if weight.requires_grad]

    def _begin_step(self, step: int) -> None:
        """Play and prepare the micro-batches of every update of ``step``."""
        self.seconds = dict.fromkeys(("play_s", "update_weights_s", "logprobs_s", "train_s", "evaluate_s"), 0.0)
        self.step_began = time.perf_counter()
        self._play(step)
        samples = self.selfplay.samples(step)
        if not samples:
            raise RunError(f"online step {step}: no game gave an utterance of the policy to train on; play more games a step")
        if self.settings.overlap and step < self.settings.steps:
            self._update_engines()
            self._ahead = step + 1, self._thread.submit(self.selfplay.play, step + 1)
        self.samples = sum(sample.weight for sample in samples)
        with self.timed("logprobs_s"):
            self._prepare(merge_equal(samples), step)

    def _play(self, step: int) -> None:
        if self._ahead is not None and self._ahead[0] == step:
            with self.timed("play_s"):
                self._ahead[1].result()
            self._ahead = None
        else:
            self._update_engines()
            with self.timed("play_s"):
                self.selfplay.play(step)
        with self.timed("play_s"):
            self.accelerator.wait_for_everyone()

    def _update_engines(self) -> None:
        with self.timed("update_weights_s"):
            self.selfplay.update_weights(self.weights())

    def timed(self, name: str) -> Timer:
        return Timer(self.seconds, name)

    def _prepare(self, samples: Sequence[TrainingSample], step: int) -> None:
        """Make the micro-batches of every update of ``step``."""
        made = StepSamples(samples, self.tokenizer, self.style, self.settings, self.roles)
        if self.updates > 1:
            made.add("old_logprob", self._logprobs(made.encoded, range(len(made)), self.accelerator.unwrap_model(self.model)))
        if self.reference is not None:
            made.add("token_ref_logprob", self._reference_values(made.encoded, self.reference))
        args, packed = self.args, self.capabilities.packed
        self.parts = list(made.updates(f"{args.seed}-{step}", packed=packed, rank=args.process_index, world_size=args.world_size))

    def _reference_values(self, encoded: Sequence[EncodedSample], reference: nn.Module) -> Values:
        """Return the reference's log-probabilities, those of samples seen lately from memory: the reference never changes."""
        keys = [(row.group, row.completion_start, row.input_ids.tobytes()) for row in encoded]
        new = [index for index, key in enumerate(keys) if key not in self._reference_logprobs]
        self._reference_logprobs |= {keys[index]: values for index, values in self._logprobs(encoded, new, reference).items()}
        found = {index: self._reference_logprobs[key] for index, key in enumerate(keys)}
        while len(self._reference_logprobs) > REMEMBERED:
            del self._reference_logprobs[next(iter(self._reference_logprobs))]
        return found

    def _logprobs(self, encoded: Sequence[EncodedSample], indices: Sequence[int], model: nn.Module) -> Values:
        """Return the log-probabilities of the trained tokens of the samples at ``indices``; each process computes a share."""
        size, world = self.settings.micro_batch_size * REFERENCE_BATCH, self.args.world_size
        groups = [row.group for row in encoded] if self.settings.per_role else None
        found = micro_batches(indices, [row.input_ids for row in encoded], size, packed=self.capabilities.packed, groups=groups)
        model.eval()
        mine: list[tuple[int, list[float]]] = []
        with torch.no_grad(), self.accelerator.autocast():
            for start in range(0, len(found), world):
                part = found[min(start + self.args.process_index, len(found) - 1)]  # a process without any left repeats the last
                batch = to_device(collate([(encoded[index], 0.0) for index in part], packed=self.capabilities.packed), self.args.device)
                self._use_role(model, batch)
                flat = token_scores(model, batch, self.capabilities)[:, 0].tolist()
                for index in part:
                    count = len(encoded[index].completion)
                    mine.append((index, flat[:count]))
                    flat = flat[count:]
        return dict(gather_object(mine))


def _only(rows: list[int]) -> int:
    return rows[0]
