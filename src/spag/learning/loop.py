"""The learning loop, for every algorithm, offline and online: games, credit, batches, forward, loss, update, record.

    output/  checkpoint/ (complete or absent)  metrics.jsonl  training.json (the result)
             reference.jsonl, samples.jsonl (offline)  state/ (to resume from; removed when the checkpoint is complete)

A step asks the source for games and the algorithm for credit, and trains on the samples in one or more updates. Online,
a step is a row of metrics; files are one step, in which every update is a row. Every process runs the loop, the first
one writes. Weights are float32 under autocast, because updates with small learning rates vanish in bfloat16 weights.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.algorithms.base import Algorithm, TokenBatch, Totals
from spag.algorithms.settings import OfflineSettings, OnlineSettings, UpdateSettings
from spag.config.schema import ModelConfig
from spag.core.episodes import TrainingSample
from spag.core.errors import DataError
from spag.learning import checkpoints
from spag.learning.batches import Batch, TrainingData, Update, offline_updates, online_updates
from spag.learning.devices import make_accelerator, make_optimizer
from spag.learning.encoding import encode_sampled, encode_samples, group_names, merge_equal
from spag.learning.forward import Entropy, to_device, token_scores
from spag.learning.metrics import MetricsLog, Row, StepMetrics
from spag.learning.references import LogprobCache, logprobs_of, read_reference, write_reference
from spag.learning.schedule import learning_rate_share
from spag.learning.sharding import is_sharded, whole_weights
from spag.learning.sources import Source
from spag.learning.start import trainable
from spag.learning.trackers import OnProgress, Trackers, TrainProgress, Unit
from spag.learning.updates import apply_gradients, checked_norm, save_policy, syncing
from spag.learning.weights import Reference, WeightCopy
from spag.models.adapters import use_adapter
from spag.models.loading import load_tokenizer, no_progress_bars
from spag.models.roles import adapter_name, models_of
from spag.models.tokens import PromptStyle
from spag.storage.machine import trim_heap
from spag.storage.store import write_rows


@dataclass(frozen=True, slots=True)
class Phase:
    """What a phase trains, and where. ``roles``: every ``GAME/ROLE`` of online games. ``identity``: what the source's
    games depend on; state of something else is not resumed.
    """

    model: ModelConfig
    settings: UpdateSettings
    start_from: str
    output: Path
    seed: int
    credit_seed: int
    algorithm: type[Algorithm]
    identity: Any = None
    roles: Sequence[str] = ()
    report_to: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """What a source may need to open: the policy as engines load it, the tokenizer, this process, the steps done."""

    policy: str
    tokenizer: PreTrainedTokenizerBase
    rank: int
    world_size: int
    step: int


class Loop:
    """One phase of training, from start model to checkpoint."""

    def __init__(self, phase: Phase, open_source: Callable[[Start], Source], progress: OnProgress | None) -> None:
        self.phase, self.settings, self.open_source = phase, phase.settings, open_source
        self.online = phase.settings if isinstance(phase.settings, OnlineSettings) else None
        self.accelerator = make_accelerator(phase.model, phase.settings, phase.seed)
        self.is_first = self.accelerator.is_main_process
        self.progress = progress if self.is_first else None  # one file of progress has one writer
        self.state = phase.output / "state"
        self.fingerprint = checkpoints.phase_fingerprint(phase)
        self.updates_done, self.total_updates = 0, 0
        self.cache = LogprobCache()

    def run(self) -> dict[str, Any]:
        """Train, write ``checkpoint/``, and return the result; that of earlier work where it is complete."""
        began, phase = time.perf_counter(), self.phase
        processes = self.accelerator.num_processes
        earlier = checkpoints.earlier_work(phase.output, self.fingerprint, phase.settings, processes)
        finished, resume_from = broadcast_object_list(list(earlier()) if self.is_first else [None, None])
        if finished is not None:
            return dict(finished)
        self._load_policy(resume_from)
        updates = self.online.updates if self.online else 1
        self.updates_done = checkpoints.checkpoint_updates(resume_from) if resume_from else 0
        rows_done = self.updates_done // updates
        start = Start(self._playable(), self.tokenizer, self.accelerator.process_index, self.data_processes, rows_done)
        self.metrics = MetricsLog(phase.output / "metrics.jsonl", rows_done) if self.is_first else None
        trackers = phase.report_to if self.is_first else ()
        self.trackers = Trackers(trackers, phase.output / "tensorboard", phase.output.name, rows_done)
        with no_progress_bars(), self.open_source(start) as self.source:
            first = 1 + (rows_done if self.online else 0)
            if self.online:
                self.total_updates = self.source.steps * updates
                self._resume(resume_from)
            for step in range(first, self.source.steps + 1):
                if not self._step(step, resume_from):
                    break
            result: dict[str, Any] = {"steps": self.updates_done // updates, "trained_samples": self.samples_seen}
            result |= self.algorithm.summary()
            result |= {"metrics": self.metrics.last if self.metrics else {}, **self.source.results()}
        self.trackers.close()
        self._finish({**result, "seconds": round(time.perf_counter() - began, 1)})
        return result

    def _load_policy(self, resume_from: Path | None) -> None:
        """Load model, algorithm and optimiser; a resumed algorithm with its state."""
        phase, settings = self.phase, self.settings
        self.tokenizer = load_tokenizer(models_of(phase.start_from)[0], trust_remote_code=phase.model.trust_remote_code)
        self.style = PromptStyle(phase.model.prompt_style)
        kept = "both" if self.online is None else self.online.roles
        self.adapters = (
            {role: kept in ("both", role.rpartition("/")[2]) for role in phase.roles} if settings.per_role else {}
        )
        start = phase.model.model_copy(update={"name": phase.start_from})
        longest = settings.max_length if isinstance(settings, OfflineSettings) else checkpoints.LONGEST
        policy, self.capabilities = trainable(
            start, settings.lora, self.accelerator, phase.seed, longest, self.adapters
        )
        if settings.gradient_checkpointing and settings.parallel != "fsdp":  # fsdp has its own
            policy.gradient_checkpointing_enable({"use_reentrant": False})
        self.bare: Any = policy
        self.model, self.optimizer = self.accelerator.prepare(policy, make_optimizer(policy, settings))
        state = checkpoints.read_state(resume_from) if resume_from else {}
        self.algorithm = phase.algorithm(settings, seed=phase.credit_seed, state=state.get("algorithm"))
        self.data_processes, self.samples_seen = self.accelerator.num_processes, int(state.get("samples_seen", 0))
        needs = self.algorithm.needs
        self.reference = None
        if self.online and needs.reference:
            self.reference = Reference(self._trained(), self.online.reference, phase.output)
        self.average = WeightCopy(self._trained()) if self.online and self.online.average_decay else None

    def _playable(self) -> str:
        """Return the folder or name that engines load: the start model, or new adapters, which are written first."""
        start = self.phase.start_from
        is_adapter = (Path(start) / "adapter_config.json").is_file()
        if self.online is None or (not self.adapters and (self.settings.lora is None or is_adapter)):
            return start
        folder = self.phase.output / "start"
        if self.is_first and not folder.is_dir():
            save_policy(self.bare, self.tokenizer, folder, self.settings, [*self.adapters])
        self.accelerator.wait_for_everyone()
        return str(folder)

    def _step(self, step: int, resume_from: Path | None) -> bool:
        """Play or read, credit, train; return whether to go on."""
        began = time.perf_counter()
        material = self.source.next(step, self if self.online else None)
        samples = [*material.samples]
        for game, episodes in material.games:
            samples += self.algorithm.credit(episodes, game, self.source.learner)
        seconds = {"logprobs_s": -time.perf_counter()}
        data, updates = self._online_data(samples, step) if self.online else self._offline_data(samples)
        trim_heap()
        seconds["logprobs_s"] += time.perf_counter()
        if self.online is None:
            self._resume(resume_from)  # after the reference pass, which is the start model's
        metrics = StepMetrics(self.accelerator.device)
        row: Row = {"learning_rate": None, "grad_norm": None}
        seconds["train_s"] = -time.perf_counter()
        for update in updates if self.online else updates[self.updates_done :]:
            update_began = time.perf_counter()
            row |= self._update(data, update, step if self.online else self.updates_done + 1, metrics)
            if self.online is None:
                row |= {"step": self.updates_done, **metrics.take(self.accelerator, f"update {self.updates_done}")}
                row["samples_per_second"] = len(update.samples) / (time.perf_counter() - update_began)
                self._record(row, Unit.UPDATES, self.updates_done, row["samples_per_second"])
                self._save_at(self.updates_done)
        if self.online is None:
            return True
        trim_heap()
        seconds["train_s"] += time.perf_counter()
        return self._end_step(step, row, metrics, samples, seconds, began)

    def _end_step(
        self, step: int, row: Row, metrics: StepMetrics, samples: Sequence[TrainingSample], seconds: dict[str, float],
        began: float,
    ) -> bool:  # fmt: skip
        """Close an online step: its row, the moving policies, evaluation, checkpoint; return whether to go on."""
        assert self.online is not None
        self.updates_done = step * self.online.updates
        means = metrics.take(self.accelerator, f"step {step}")
        means = {**means, "loss": means["loss"] / self.online.updates, "tokens": means["tokens"] / self.online.updates}
        counts = {"samples": len(samples), "unknown_token_samples": self.unreadable}
        row = {"step": step, **counts, **means, **self.algorithm.summary(), **row, **seconds}
        row["tokens_per_second"] = row["tokens"] * self.online.updates / max(seconds["train_s"], 1e-9)
        if self.average is not None:
            self.average.move(1.0 if step == 1 else 1.0 - self.online.average_decay)
        if self.reference is not None and self.reference.after_step(step):
            self.cache = LogprobCache()
        goes_on = broadcast_object_list([self.source.finish(step, row, samples, self)])[0]
        row["step_s"] = time.perf_counter() - began
        self._record(row, Unit.STEPS, step, len(samples) / row["step_s"])
        if goes_on:
            self._save_at(step)
        return bool(goes_on)

    def _offline_data(self, samples: list[TrainingSample]) -> tuple[TrainingData, list[Update]]:
        """Return the samples of files with their reference, and all updates."""
        settings = self.settings
        assert isinstance(settings, OfflineSettings)
        if not any(sample.completion for sample in samples):
            raise DataError(f"{self.phase.output}: no game gave a sample to train on; play more games, or train longer")
        # By game and turn, so that training does not depend on the order in which games ended.
        samples.sort(key=lambda sample: (sample.episode_id or "", -1 if sample.turn is None else sample.turn))
        if self.is_first:
            write_rows(self.phase.output / "samples.jsonl", samples)
        self.groups = group_names(samples)
        encoded = encode_samples(samples, self.tokenizer, self.style, settings.max_length)
        data = self._data(encoded)
        self.samples_seen = (settings.max_steps or 0) * settings.global_batch_size or len(samples) * settings.epochs
        size, total, group = settings.global_batch_size, self.samples_seen, settings.loss_group
        updates = list(offline_updates(encoded, seed=self.phase.seed, batch_size=size, total=total, loss_group=group))
        self.total_updates = len(updates)
        if self.algorithm.needs.reference:
            data.columns["ref_logprob"] = self._file_reference(data)
        return data, updates

    def _file_reference(self, data: TrainingData) -> Mapping[int, Sequence[float]]:
        """Return the start model's log-probabilities of all samples but the SFT mix, from the file or computed."""
        path = self.phase.output / "reference.jsonl"
        known = broadcast_object_list([read_reference(path, self.fingerprint) if self.is_first else None])[0]
        indices = [at for at, sample in enumerate(data.samples) if sample.group != 0]
        if known is None:
            began, done = time.perf_counter(), 0

            def on_batch(count: int) -> None:
                nonlocal done
                done = min(done + count * self.data_processes, len(indices))
                if self.progress is not None:
                    speed = done / (time.perf_counter() - began)
                    self.progress(TrainProgress(Unit.REFERENCE, done, len(indices), speed, None))

            known = dict(logprobs_of(data, indices, self.model, self.capabilities, self.accelerator, on_batch=on_batch))
            if self.is_first:
                write_reference(path, self.fingerprint, known)
        return {at: known.get(at) or [0.0] * len(sample.completion) for at, sample in enumerate(data.samples)}

    def _online_data(self, samples: list[TrainingSample], step: int) -> tuple[TrainingData, list[Update]]:
        """Return a step's samples with what the loss needs, and the step's updates."""
        settings = self.online
        assert settings is not None
        self.groups = ("sft", "other", *self.phase.roles)
        encoded = encode_sampled(samples, self.tokenizer, self.style, self.phase.roles)
        self.unreadable = len(samples) - len(encoded)
        needs = self.algorithm.needs
        if not (needs.reference or needs.entropy):  # then a sample without an advantage teaches nothing
            encoded = [sample for sample in encoded if sample.reward]
        data = self._data(merge_equal(encoded, by_advantage=settings.clips))
        everything = range(len(data.samples))
        arguments = (self.model, self.capabilities, self.accelerator)
        if settings.updates > 1:
            data.columns["old_logprob"] = logprobs_of(data, everything, *arguments, before=self._use_role)
        if self.reference is not None:
            missing = self.cache.missing(data.samples)
            with self.reference.in_place():
                found = logprobs_of(data, missing, *arguments, before=self._use_role)
            data.columns["ref_logprob"] = self.cache.complete(data.samples, found)
        self.samples_seen += len(encoded)
        left_out = sum(sample.weight for sample in samples) - sum(sample.weight for sample in encoded)
        passes: dict[str, Any] = {"epochs": settings.epochs, "minibatches": settings.minibatches}
        plan = online_updates(data.samples, seed=f"{self.phase.seed}-{step}", left_out=left_out, **passes)
        return data, [update for update in plan if update.samples]

    def _data(self, encoded: Sequence[Any]) -> TrainingData:
        return TrainingData(
            encoded,
            self.settings.micro_batch_size,
            packed=self.capabilities.packed,
            by_group=self.settings.per_role,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
        )

    def _update(self, data: TrainingData, update: Update, step: int, metrics: StepMetrics) -> Row:
        """Add up the gradients of an update's micro-batches and change the weights; return learning rate and norm."""
        batches, totals = data.batches(update), data.totals(update)
        rate = self.settings.learning_rate * self._rate_share()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        for index, batch in enumerate(batches):
            last = index == len(batches) - 1
            with syncing(self.accelerator, self.model, last=last, by_hand=self.settings.per_role):
                loss = self._loss(to_device(batch, self.accelerator.device), totals, step, metrics)
                self.accelerator.backward(loss * self.accelerator.num_processes)  # gradients are averaged over these
        norm = apply_gradients(self.accelerator, self.model, self.optimizer, self.settings)
        self.updates_done += 1
        what = f"update {self.updates_done}" if self.online is None else f"step {step}"
        return {"learning_rate": rate, "grad_norm": checked_norm(norm, what, self.phase.model.dtype)}

    def _loss(self, batch: Batch, totals: Totals, step: int, metrics: StepMetrics) -> Tensor:
        """Return a micro-batch's share of the update's loss."""
        self._use_role(batch)
        needs = self.algorithm.needs
        with self.accelerator.autocast():  # masks are made outside the model, in the precision of its products
            scores = token_scores(self.model, batch, self.capabilities, entropy=self._entropy)
        logprob, frozen = scores[:, 0], scores[:, 0].detach()
        entropy = scores[:, 1] if scores.shape[1] > 1 else torch.zeros_like(frozen)
        tokens = TokenBatch(
            sample=batch["sample"],
            logprob=logprob,
            old_logprob=batch.get("old_logprob", frozen),
            sampling_logprob=batch.get("sampling_logprob", frozen),
            ref_logprob=batch.get("ref_logprob", frozen),
            entropy=entropy if needs.entropy else entropy.detach(),
            advantage=batch["advantage"],
            weight=batch["weight"],
            group=batch["group"],
            groups=self.groups,
            totals=totals,
            step=step,
        )
        loss, found = self.algorithm.loss(tokens)
        weight = batch["weight"][batch["sample"]]
        metrics.add(loss, found, weight.sum())
        if "sampling_logprob" in batch:
            mismatch = (tokens.old_logprob - tokens.sampling_logprob).abs()
            metrics.peak("mismatch_max", mismatch.where(weight > 0, mismatch.new_zeros(())))
        return loss

    @property
    def _entropy(self) -> Entropy:
        if self.algorithm.needs.entropy:
            return Entropy.GRADIENT
        return Entropy.NONE if self.online is None else Entropy.VALUE

    def _use_role(self, batch: Batch) -> None:
        """Let the adapter compute that a micro-batch is for, where each role has its own."""
        if self.adapters:
            use_adapter(self.bare, adapter_name(self.groups[int(batch["group"].max())]))

    def _rate_share(self) -> float:
        total = self.total_updates
        warmup = checkpoints.warmup_updates(self.settings.warmup_ratio, total)
        name = self.settings.lr_scheduler
        return learning_rate_share(name, self.updates_done, warmup=warmup, total=total, online=self.online is not None)

    def _record(self, row: Row, unit: Unit, done: int, speed: float) -> None:
        """Write a row, and show progress."""
        if self.metrics is not None:
            self.metrics.append(row)
            self.trackers.log(row)
        if self.progress is not None:
            total = self.source.steps if self.online else self.total_updates
            self.progress(TrainProgress(unit, done, total, speed, row["loss"], self.source.describe()))

    def _save_at(self, done: int) -> None:
        """Save a checkpoint to resume from, after every ``save_steps``; the finished model is saved instead of one."""
        if done % self.settings.save_steps or self.updates_done >= self.total_updates:
            return
        self.source.settle()
        folder = checkpoints.checkpoint_folder(self.state, self.updates_done)
        state = {"algorithm": self.algorithm.state(), "samples_seen": self.samples_seen}
        checkpoints.save(folder, self.accelerator, self.model, self.optimizer, state, self._moving)

    @property
    def _moving(self) -> dict[str, WeightCopy | None]:
        """The policies beside the trained one that change from step to step."""
        follows = self.reference is not None and self.reference.settings is not None
        return {"average": self.average, "reference": self.reference if follows else None}

    def _resume(self, folder: Path | None) -> None:
        if folder is not None:
            checkpoints.load(folder, self.accelerator, self.model, self.optimizer, self._moving)

    def _finish(self, result: dict[str, Any]) -> None:
        """Gather and save the model, then record that it is finished."""
        if self.average is not None:
            self.average.swap()
        self.save(self.phase.output / "checkpoint")
        if self.is_first:
            checkpoints.record_result(self.phase.output, self.fingerprint, result)
        self.accelerator.wait_for_everyone()

    def _trained(self) -> list[nn.Parameter]:
        return [weight for weight in self.accelerator.unwrap_model(self.model).parameters() if weight.requires_grad]

    # What a source may see of the policy: ``spag.learning.sources.Policy``.

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()

    def weights(self) -> dict[str, Tensor]:
        model = self.accelerator.unwrap_model(self.model)
        if is_sharded(model):
            return whole_weights(model)
        return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}

    def save(self, folder: Path) -> None:
        weights = checkpoints.final_weights(self.accelerator, self.model)
        if self.is_first:
            save_policy(self.bare, self.tokenizer, folder, self.settings, [*self.adapters], weights)

    def policy(self) -> PreTrainedModel | None:
        return None if is_sharded(self.bare) else self.bare

    @contextmanager
    def final(self) -> Iterator[None]:
        average = self.average.in_place() if self.average is not None else nullcontext()
        with average, self.accelerator.autocast():
            yield
