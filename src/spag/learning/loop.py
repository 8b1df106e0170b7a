"""The learning loop of every algorithm, offline and online: games, credit, batches, forward, loss, update, metrics.

    output/  checkpoint/ (complete or absent)  metrics.jsonl  training.json (the result)
             reference.jsonl, samples.jsonl (offline)  state/ (to resume from; removed when the checkpoint is complete)

A step asks the source for samples, with the algorithm's credit, and trains on them in one or more updates. Online, each
step is a row of metrics; files are one step, and each update is a row. Every process runs the loop; the first one
writes. Weights are float32 under autocast, because small updates vanish in bfloat16 weights.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor

from spag.algorithms.base import FILLER, TokenBatch, Totals, needs_at
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import OfflineSettings
from spag.core.episodes import TrainingSample
from spag.learning import checkpoints
from spag.learning.batches import TrainingData, Update, merge_equal, offline_updates, online_updates
from spag.learning.devices import make_accelerator
from spag.learning.job import TrainingJob
from spag.learning.metrics import MetricsLog, OnProgress, Row, StepMetrics, Trackers, TrainProgress, Unit
from spag.learning.policy import TrainedPolicy
from spag.learning.references import LogprobCache, logprobs_of, reference_of_files
from spag.learning.sources import Source
from spag.learning.updates import apply_gradients, checked_norm, set_learning_rate, syncing
from spag.models.forward import Entropy, to_device, token_scores
from spag.models.packed_attention import short_length
from spag.models.samples import Batch, EncodedSample, encode_sampled, encode_samples, group_names
from spag.models.tokens import PromptStyle
from spag.storage.machine import trim_heap
from spag.storage.store import write_rows

OpenSource = Callable[[TrainingJob, TrainedPolicy, MetricsLog | None, int], Source]


@dataclass(frozen=True, slots=True)
class StepData:
    """A step's samples as tokens, and its updates. If not ``trains``, the loss has no gradient and is only measured."""

    data: TrainingData
    updates: Sequence[Update]
    trains: bool = True


class Loop:
    """One phase of training, from start model to checkpoint."""

    def __init__(self, job: TrainingJob, open_source: OpenSource, progress: OnProgress | None) -> None:
        self.job, self.settings, self.open_source = job, job.settings, open_source
        self.online = job.settings if isinstance(job.settings, OnlineSettings) else None
        self.accelerator = make_accelerator(job.model, job.settings, job.seed)
        self.is_first = self.accelerator.is_main_process
        self.progress = progress if self.is_first else None  # only one process writes the progress file
        self.fingerprint = checkpoints.phase_fingerprint(job) if self.is_first else ""  # reads all of the model
        self.total_updates = 0

    def run(self) -> dict[str, Any]:
        """Train, write ``checkpoint/``, and return the result, or the earlier result if training is complete."""
        began, job, processes = time.perf_counter(), self.job, self.accelerator.num_processes
        earlier = [*checkpoints.earlier_work(job, self.fingerprint, processes)] if self.is_first else [None, None]
        finished, resume_from = broadcast_object_list(earlier)
        if finished is not None:
            return dict(finished)
        state = checkpoints.read_state(resume_from) if resume_from else {}
        credited = state.get("algorithm") if self.online else None  # games from files are credited again
        self.algorithm = job.algorithm(job.settings, seed=job.credit_seed, state=credited)
        self.samples_seen = int(state.get("samples_seen", 0))
        self.updates_done = checkpoints.checkpoint_updates(resume_from) if resume_from else 0
        each = self.online.updates if self.online else 1
        rows_done = self.updates_done // each
        self.policy = TrainedPolicy(job, self.accelerator, needs_reference=self.algorithm.needs.reference)
        self.style, self.cache = PromptStyle(job.model.prompt_style), LogprobCache()
        self.metrics = MetricsLog(job.output / "metrics.jsonl", rows_done) if self.is_first else None
        report_to = job.report_to if self.is_first else ()
        self.trackers = Trackers(report_to, job.output / "tensorboard", job.output.name, rows_done)
        with self.open_source(job, self.policy, self.metrics, rows_done) as self.source:
            if self.online is None:
                self._train_on_files(resume_from)
            else:
                self.total_updates = self.online.steps * each
                if resume_from is not None:
                    checkpoints.load(resume_from, self.policy)
                for step in range(1 + rows_done, self.online.steps + 1):
                    if not self._train_on_play(step, self.online):
                        break
            result: dict[str, Any] = {"steps": self.updates_done // each, "trained_samples": self.samples_seen}
            result |= self.algorithm.summary()
            result |= {"metrics": self.metrics.last if self.metrics else {}, **self.source.results()}
        self.trackers.close()
        self._finish({**result, "seconds": round(time.perf_counter() - began, 1)})
        return result

    def _train_on_files(self, resume_from: Path | None) -> None:
        """Train on the samples of files; each update is a row."""
        made = self._data_of_files()
        trim_heap()
        if resume_from is not None:  # after the reference pass, which uses the start model
            checkpoints.load(resume_from, self.policy)
        for update in made.updates[self.updates_done :]:
            began, metrics = time.perf_counter(), StepMetrics(self.accelerator.device)
            row = self._update(made, update, self.updates_done + 1, metrics)
            row |= {"step": self.updates_done, **metrics.take(self.accelerator, f"update {self.updates_done}")}
            row["samples_per_second"] = len(update.samples) / (time.perf_counter() - began)
            self._record(row, Unit.UPDATES, self.updates_done, row["samples_per_second"])
            self._save_at(self.updates_done)

    def _train_on_play(self, step: int, online: OnlineSettings) -> bool:
        """Play, credit, train, evaluate: one online step, one row. Returns whether to continue."""
        began = time.perf_counter()
        samples = self.source.next(step, self.policy, self.algorithm)
        played = time.perf_counter()
        made = self._data_of_play(samples, step, online)
        trim_heap()
        encoded, metrics = time.perf_counter(), StepMetrics(self.accelerator.device)
        row: Row = {"learning_rate": None, "grad_norm": None}
        for update in made.updates:
            if made.trains:
                row |= self._update(made, update, step, metrics)
            else:
                self._measure(made, update, step, metrics)
        trim_heap()
        seconds = {"logprobs_s": encoded - played, "train_s": time.perf_counter() - encoded}
        self.updates_done = step * online.updates
        means = metrics.take(self.accelerator, f"step {step}")
        trained = means["tokens"] if made.trains else 0.0
        means = {**means, "loss": means["loss"] / online.updates, "tokens": trained / online.updates}
        row = {"step": step, "samples": len(samples), **means, **self.algorithm.summary(), **row, **seconds}
        row["tokens_per_second"] = row["tokens"] * online.updates / max(seconds["train_s"], 1e-9)
        if self.policy.average is not None:
            self.policy.average.move(1.0 if step == 1 else 1.0 - online.average_decay)
        if self.policy.reference is not None and self.policy.reference.after_step(step):
            self.cache = LogprobCache()
        if online.evaluates_after(step):
            speed = len(samples) / (time.perf_counter() - began)
            self._show(Unit.STEPS, step - 1, speed, row["loss"], f"evaluating step {step}")
        goes_on = self.source.finish(step, row, samples, self.policy)
        row["step_s"] = time.perf_counter() - began - float(row.get("evaluate_s") or 0.0)
        self._record(row, Unit.STEPS, step, len(samples) / row["step_s"])
        if goes_on:
            self._save_at(step)
        return goes_on

    def _data_of_files(self) -> StepData:
        """Return the samples from files with their reference log-probabilities, and all updates."""
        settings, output = self.settings, self.job.output
        assert isinstance(settings, OfflineSettings)
        samples = self.source.next(1, self.policy, self.algorithm)
        # By game and turn, so that training does not depend on the order in which games finished.
        samples.sort(key=lambda sample: (sample.episode_id or "", -1 if sample.turn is None else sample.turn))
        if self.is_first:
            write_rows(output / "samples.jsonl", samples)
        generation = getattr(self.policy.bare, "generation_config", None)
        encoded = encode_samples(samples, self.policy.tokenizer, self.style, settings.max_length, generation)
        data, size = self._data(encoded, group_names(samples)), settings.global_batch_size
        self.samples_seen = (settings.max_steps or 0) * size or len(samples) * settings.epochs
        order: dict[str, Any] = {"seed": self.job.seed, "batch_size": size, "total": self.samples_seen}
        shares_prefixes = settings.template != "random"  # the prompts of a game
        games = [sample.episode_id for sample in samples] if shares_prefixes else None
        updates = list(offline_updates(encoded, **order, loss_group=settings.loss_group, games=games))
        self.total_updates = len(updates)
        if self.algorithm.needs.reference:
            file = output / "reference.jsonl"
            data.columns["ref_logprob"] = reference_of_files(data, self.policy, file, self.fingerprint, self.progress)
        return StepData(data, updates)

    def _data_of_play(self, samples: list[TrainingSample], step: int, online: OnlineSettings) -> StepData:
        """Return an online step's samples with the inputs of the loss, and the step's updates."""
        policy = self.policy
        needs, ever = needs_at(self.algorithm, step), self.algorithm.needs
        encoded = encode_sampled(samples, policy.tokenizer, self.style, self.job.roles)
        trains = any(sample.reward for sample in encoded) or needs.entropy
        # The gradient of a policy's KL to itself is only rounding error, which AdamW would turn into full steps.
        has_kl = policy.reference is not None and (trains or not policy.reference.equals_policy())
        trains = trains or (needs.reference and has_kl)
        # If others train, a sample without an advantage matters only for the KL term and the entropy bonus.
        keeps_all = ever.reference or ever.entropy or not trains
        encoded = [sample for sample in encoded if sample.weight and (sample.reward or keeps_all)]
        self.samples_seen += len(encoded) if trains else 0
        data = self._data(merge_equal(encoded, by_advantage=online.clips), ("sft", "other", *self.job.roles))
        logprobs = partial(logprobs_of, data, policy)
        if online.updates > 1 and trains:
            data.columns["old_logprob"] = logprobs(range(len(data.samples)))
        if policy.reference is not None and has_kl:
            with policy.reference.in_place():
                data.columns["ref_logprob"] = self.cache.values(data.samples, logprobs)
        left_out = sum(sample.weight for sample in samples) - sum(sample.weight for sample in encoded)
        passes: dict[str, Any] = {"epochs": online.epochs, "minibatches": online.minibatches} if trains else {}
        plan = online_updates(data.samples, seed=f"{self.job.seed}-{step}", left_out=left_out, **passes)
        return StepData(data, [update for update in plan if update.samples], trains)

    def _data(self, encoded: Sequence[EncodedSample], groups: Sequence[str]) -> TrainingData:
        processes = {"rank": self.accelerator.process_index, "world_size": self.accelerator.num_processes}
        packed, by_group = self.policy.capabilities.packed, self.settings.per_role
        kinds: dict[str, Any] = {"by_group": by_group, "short_length": short_length(self.policy.bare.config)}
        return TrainingData(encoded, self.settings.micro_batch_size, packed=packed, groups=groups, **kinds, **processes)

    def _update(self, made: StepData, update: Update, step: int, metrics: StepMetrics) -> Row:
        """Accumulate an update's gradients over its micro-batches, then apply them; return learning rate and norm."""
        batches, policy = made.data.batches(update), self.policy
        rate = set_learning_rate(policy, self.updates_done, self.total_updates)
        policy.model.train()
        for index, batch in enumerate(batches):
            last = index == len(batches) - 1
            with syncing(policy, last=last):
                loss = self._loss(batch, made, update.totals, step, metrics)
                self.accelerator.backward(loss * self.accelerator.num_processes)  # gradients are averaged over these
        norm = apply_gradients(policy)
        self.updates_done += 1
        what = f"update {self.updates_done}" if self.online is None else f"step {step}"
        return {"learning_rate": rate, "grad_norm": checked_norm(norm, what, self.job.model.dtype)}

    @torch.no_grad()
    def _measure(self, made: StepData, update: Update, step: int, metrics: StepMetrics) -> None:
        """Add the metrics of an update that would not change the weights."""
        for batch in made.data.batches(update):
            self._loss(batch, made, update.totals, step, metrics)

    def _loss(self, batch: Batch, made: StepData, totals: Totals, step: int, metrics: StepMetrics) -> Tensor:
        """Return a micro-batch's share of the update's loss."""
        self.policy.use_role(batch, made.data.groups)
        batch = to_device(batch, self.accelerator.device)
        entropy = Entropy.NONE if self.online is None else Entropy.VALUE
        entropy = Entropy.GRADIENT if needs_at(self.algorithm, step).entropy else entropy
        with self.accelerator.autocast():
            scores = token_scores(self.policy.model, batch, self.policy.capabilities, entropy=entropy)
        frozen = scores.detach()[:, 0]
        names = ("old_logprob", "sampling_logprob", "played_logprob", "ref_logprob")
        known = {name: batch.get(name, frozen) for name in names}
        entropies = scores[:, 1] if entropy is not Entropy.NONE else torch.zeros_like(frozen)
        tokens = TokenBatch(
            logprob=scores[:, 0],
            entropy=entropies if entropy is Entropy.GRADIENT else entropies.detach(),
            **known,
            **{name: batch[name] for name in ("sample", "advantage", "weight", "group")},
            groups=made.data.groups,
            totals=totals,
            step=step,
        )
        loss, found = self.algorithm.loss(tokens)
        weight = tokens.weight[tokens.sample]
        # Online, a weight counts merged duplicates; offline it is a factor of the loss.
        trained = weight if self.online is not None else tokens.group[tokens.sample] != FILLER
        metrics.add(loss, found, trained.sum())
        if "played_logprob" in batch:
            mismatch = (tokens.old_logprob - tokens.played_logprob).abs()
            metrics.peak("mismatch_max", mismatch.where(weight > 0, mismatch.new_zeros(())))
        return loss

    def _record(self, row: Row, unit: Unit, done: int, speed: float) -> None:
        """Write a row, and show progress."""
        if self.metrics is not None:
            self.metrics.append(row)
            self.trackers.log(row)
        self._show(unit, done, speed, row["loss"], self.source.describe())

    def _show(self, unit: Unit, done: int, speed: float, loss: float, detail: str) -> None:
        if self.progress is not None:
            total = self.online.steps if self.online else self.total_updates
            self.progress(TrainProgress(unit, done, total, speed, loss, detail))

    def _save_at(self, done: int) -> None:
        """Save a checkpoint to resume from, every ``save_steps``; at the end, the finished model is saved instead."""
        if done % self.settings.save_steps or self.updates_done >= self.total_updates:
            return
        self.source.settle()
        state = {"algorithm": self.algorithm.state(), "samples_seen": self.samples_seen}
        checkpoints.save(self.job.output, self.updates_done, self.policy, state)
        self.cache = LogprobCache()  # a resumed run has none, and values computed in other batches differ by rounding

    def _finish(self, result: dict[str, Any]) -> None:
        """Gather and save the model, then record that it is finished."""
        if self.policy.average is not None:
            self.policy.average.swap()
        self.policy.save(self.job.output / "checkpoint")
        if self.is_first:
            checkpoints.record_result(self.job.output, self.fingerprint, result)
        self.accelerator.wait_for_everyone()
