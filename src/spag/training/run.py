"""One training stage from samples to checkpoint: ``train``.

    output/  checkpoint/ (complete or absent)  metrics.jsonl  reference.jsonl  training.json (the result)
             state/ (to resume from; removed when the checkpoint is complete)  tensorboard/ (with report_to)

Weights are float32 under bfloat16 autocast, because updates with small learning rates vanish in bfloat16 weights. Under torchrun every
process calls ``train``; the first one writes. Differs from upstream: see ``losses.py``, ``order.py``, ``trainers.py`` and ``reference.py``.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase, PrinterCallback

from spag.algorithms.base import Objective
from spag.algorithms.imitation import Imitation
from spag.algorithms.spag import OfflineRL
from spag.config.schema import FREE_TO_CHANGE, ModelConfig, OfflineRLConfig, TrainingConfig
from spag.core.episodes import TrainingSample
from spag.core.errors import ConfigError, DataError
from spag.models.loading import load_tokenizer, no_progress_bars, save_model
from spag.models.tokens import PromptStyle
from spag.training.callbacks import OnProgress, ReferencePass, StepKeeper, integrations
from spag.training.data import SFT, TrainingSet, encode_samples, group_names
from spag.training.failures import clear_failures
from spag.training.order import MicroBatches
from spag.training.reference import read_reference
from spag.training.schedule import schedule
from spag.training.setup import training_arguments
from spag.training.sharding import check_resumable
from spag.training.start import trainable
from spag.training.state import (
    MetricsLog,
    checkpoint_step,
    discard_state,
    fingerprint,
    finished_result,
    model_identity,
    open_state,
    record_result,
)
from spag.training.trainers import PolicyTrainer


class Stage(StrEnum):
    """The stage to train: imitation of teacher play, or offline RL on self-play."""

    IMITATION = "imitation"
    OFFLINE_RL = "offline_rl"


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of ``train``.

    ``samples`` counts each epoch anew; ``seconds`` is the last call's time; ``metrics`` is the last row of metrics.jsonl
    (empty on all but the first process).
    """

    checkpoint: Path
    steps: int
    samples: int
    seconds: float
    metrics: dict[str, float | None]


def train(
    stage: Stage,
    samples: Sequence[TrainingSample],
    *,
    model: ModelConfig,
    training: TrainingConfig | OfflineRLConfig,
    start_from: str,
    output: Path,
    seed: int,
    progress: OnProgress | None = None,
) -> TrainResult:
    """Train the model ``start_from`` on ``samples`` and write ``output/checkpoint``, a plain transformers or LoRA adapter folder.

    A call with the samples, model and settings of an interrupted call resumes it; of a finished one, returns its result. Raises
    ``DataError`` without samples, ``ConfigError`` for settings that do not fit, ``ModelError``, ``RunError`` when the loss is not finite or
    memory runs out, and ``StorageError`` when the disk is full.
    """
    if not samples:
        raise DataError(f"{stage} training: there are no samples to train on")
    if stage is Stage.OFFLINE_RL and not isinstance(training, OfflineRLConfig):
        raise ConfigError(f"{stage} training needs offline_rl settings, got {type(training).__name__}")
    if isinstance(training, OfflineRLConfig) and training.objective == "sft" and any(sample.reward < 0 for sample in samples):
        raise ConfigError(
            "offline_rl.objective=sft would imitate samples with negative rewards; set rewards.loser_reward and tie_reward to 0"
        )
    with clear_failures(output):
        output.mkdir(parents=True, exist_ok=True)
        origin = str(Path(start_from).resolve()) if Path(start_from).is_dir() else start_from
        return _Training(stage, samples, model, training, origin, output, seed, progress).run()


@dataclass
class _Training:
    stage: Stage
    samples: Sequence[TrainingSample]
    model: ModelConfig
    training: TrainingConfig
    start_from: str
    output: Path
    seed: int
    progress: OnProgress | None

    def __post_init__(self) -> None:
        self.state = self.output / "state"
        steps, batch = self.training.max_steps, self.training.global_batch_size
        self.samples_seen = steps * batch if steps else len(self.samples) * self.training.epochs
        if self.training.drop_last and self.samples_seen > batch:
            self.samples_seen -= self.samples_seen % batch
        self.epochs = math.ceil(self.samples_seen / len(self.samples))
        self.steps = math.ceil(self.samples_seen / batch)
        self.arguments = training_arguments(self.state, self.model, self.training, self.steps, self.seed)
        self.is_first = self.arguments.process_index == 0
        if not self.is_first:
            self.progress = None
        self.reference_fingerprint = self._reference_fingerprint()
        settings = self.training.model_dump(mode="json", exclude=set(FREE_TO_CHANGE))
        rows = ([s.reward, s.weight, s.role] for s in self.samples)
        self.fingerprint = fingerprint([self.reference_fingerprint, settings, self.seed, *rows])

    def _reference_fingerprint(self) -> str:
        """Return a digest of all that the reference log-probabilities depend on: the start model, how it computes, and the tokens."""
        model, lora = self.model, self.training.lora
        computing = [model.dtype, model.trust_remote_code, lora is not None and lora.quantize]
        tokens = ([s.prompt, s.prompt_ids, s.completion, s.type, s.completion_ids, s.truncated] for s in self.samples)
        origin = [self.stage, model_identity(self.start_from), *computing, model.prompt_style, self.training.max_length]
        return fingerprint([*origin, *tokens])

    def run(self) -> TrainResult:
        began = time.perf_counter()
        finished, resume_from = broadcast_object_list(list(self._find_earlier_work()) if self.is_first else [None, None])
        checkpoint = self.output / "checkpoint"
        if finished is not None:
            return TrainResult(checkpoint, **finished)
        tokenizer = load_tokenizer(self.start_from, trust_remote_code=self.model.trust_remote_code)
        resume_step = checkpoint_step(resume_from) if resume_from else 0
        metrics = MetricsLog(self.output / "metrics.jsonl", resume_step) if self.is_first else None
        trainer = self._trainer(tokenizer, metrics)
        for callback in integrations(self.training.report_to, self.output / "tensorboard", resume_step) if self.is_first else []:
            trainer.add_callback(callback)
        with no_progress_bars():
            trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
            result = TrainResult(checkpoint, self.steps, self.samples_seen, time.perf_counter() - began, metrics.last if metrics else {})
            self._finish(trainer, tokenizer, result)
        trainer.accelerator.wait_for_everyone()
        return result

    def _find_earlier_work(self) -> tuple[dict[str, Any] | None, Path | None]:
        """Return the result if this stage has finished, else the checkpoint to resume from; delete stale files."""
        if (finished := finished_result(self.output, self.fingerprint)) is not None:
            return finished, None
        if read_reference(self.output / "reference.jsonl", self.reference_fingerprint) is None:
            discard_state(self.state)
        resume_from = open_state(self.state, self.fingerprint)
        if resume_from is not None:
            check_resumable(resume_from, self.training.parallel, self.arguments.world_size)
        return None, resume_from

    def _trainer(self, tokenizer: PreTrainedTokenizerBase, metrics: MetricsLog | None) -> PolicyTrainer:
        encoded = encode_samples(self.samples, tokenizer, PromptStyle(self.model.prompt_style), self.training.max_length)
        train_set = TrainingSet(encoded)
        start, longest = self.model.model_copy(update={"name": self.start_from}), max(len(sample.input_ids) for sample in encoded)
        policy, capabilities = trainable(start, self.training.lora, self.arguments, longest)
        order = MicroBatches(
            [sample.input_ids for sample in encoded],
            [sample.group == SFT for sample in encoded],
            epochs=self.epochs,
            global_batch_size=self.training.global_batch_size,
            micro_batch_size=self.training.micro_batch_size,
            seed=self.seed,
            packed=capabilities.packed,
            loss_group=self.training.loss_group,
            world_size=self.arguments.world_size,
            rank=self.arguments.process_index,
        )
        trainer = PolicyTrainer(
            model=policy,
            args=self.arguments,
            objective=self._objective(),
            groups=group_names(self.samples),
            train_set=train_set,
            order=order,
            capabilities=capabilities,
            on_row=metrics.append if metrics else None,
            schedule=schedule(self.training.lr_scheduler, warmup=self.arguments.warmup_steps, total=self.steps),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(ReferencePass(trainer, train_set, self.output / "reference.jsonl", self.reference_fingerprint, self.progress))
        trainer.add_callback(StepKeeper(trainer, self.state, self.training.global_batch_size, self.samples_seen, self.progress))
        return trainer

    def _objective(self) -> Objective:
        training = self.training
        if self.stage is Stage.IMITATION or not isinstance(training, OfflineRLConfig):
            return Imitation(training.kl_coef, training.sft_coef)
        if training.objective == "sft":
            return Imitation(0.0, training.sft_coef)
        return OfflineRL(training.kl_coef, training.sft_coef, training.clip_range)

    def _finish(self, trainer: PolicyTrainer, tokenizer: PreTrainedTokenizerBase, result: TrainResult) -> None:
        """Gather and save the model, then record that it is finished."""
        policy, weights = trainer.finished()
        if not self.is_first:
            return
        policy.config.use_cache = True  # Trainer switches the cache off, and the setting would be saved with the model
        save_model(policy, tokenizer, result.checkpoint, weights)
        values = {"steps": result.steps, "samples": result.samples, "seconds": result.seconds, "metrics": result.metrics}
        record_result(self.output, self.fingerprint, values)
