"""Online training from start model to checkpoint: ``train_online``.

    output/  checkpoint/ (complete or absent)  metrics.jsonl  training.json (the result)
             state/ (to resume from; removed when the checkpoint is complete)  start/ (new adapters, before their first update)

Every process calls it; the first one writes. What plays the games is given as ``open_selfplay``.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as Arguments

from spag.config.schema import FREE_TO_CHANGE, ModelConfig, OnlineConfig
from spag.core.jsonfile import read_json
from spag.core.store import write_json
from spag.models.loading import load_adapters, load_model, load_tokenizer, no_progress_bars, save_model, save_roles
from spag.models.roles import models_of, read_roles
from spag.models.tokens import PromptStyle
from spag.training.callbacks import OnProgress, Phase, TrainProgress, integrations
from spag.training.failures import clear_failures
from spag.training.online import OnlineTrainer
from spag.training.policy import set_packed_attention
from spag.training.selfplay import Selfplay
from spag.training.setup import training_arguments
from spag.training.sharding import check_resumable
from spag.training.start import trainable
from spag.training.state import (
    checkpoint_step,
    fingerprint,
    finish_checkpoint,
    finished_result,
    model_identity,
    open_state,
    record_result,
)

_SELFPLAY = "selfplay.json"


@dataclass(frozen=True, slots=True)
class Opening:
    """What a process needs to open its part of self-play.

    ``policy``: the model that engines load, whose weights are then replaced. ``step``: the last step that is done. ``state``: what
    ``Selfplay.state`` returned after it, ``None`` at the start.
    """

    policy: str
    tokenizer: PreTrainedTokenizerBase
    rank: int
    world_size: int
    step: int
    state: dict[str, Any] | None


OpenSelfplay = Callable[[Opening], AbstractContextManager[Selfplay]]


def train_online(
    open_selfplay: OpenSelfplay,
    roles: Sequence[str],
    *,
    model: ModelConfig,
    settings: OnlineConfig,
    start_from: str,
    output: Path,
    seed: int,
    belongs_to: Sequence[Any] = (),
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Train ``start_from`` on games that it plays meanwhile, write ``output/checkpoint`` and return steps and seconds.

    ``belongs_to``: what the games depend on besides (their settings); a state of something else is not resumed. Raises ``ConfigError`` for
    settings that do not fit, ``ModelError``, ``RunError`` when the loss is not finite or memory runs out, ``StorageError``.
    """
    with clear_failures(output):
        output.mkdir(parents=True, exist_ok=True)
        origin = str(Path(start_from).resolve()) if Path(start_from).is_dir() else start_from
        return _OnlineTraining(open_selfplay, roles, model, settings, origin, output, seed, belongs_to, progress).run()


@dataclass
class _OnlineTraining:
    open_selfplay: OpenSelfplay
    roles: Sequence[str]
    model: ModelConfig
    settings: OnlineConfig
    start_from: str
    output: Path
    seed: int
    belongs_to: Sequence[Any]
    progress: OnProgress | None

    def __post_init__(self) -> None:
        self.state, self.updates = self.output / "state", self.settings.epochs * self.settings.minibatches
        self.arguments = training_arguments(self.state, self.model, self.settings, self.settings.steps * self.updates, self.seed)
        self.arguments.save_steps = self.settings.save_steps * self.updates
        self.arguments.logging_steps = self.updates
        chosen = self.settings.roles
        self.adapters = {role: chosen in ("both", role.rpartition("/")[2]) for role in self.roles} if self.settings.per_role else {}
        self.is_first = self.arguments.process_index == 0
        if not self.is_first:
            self.progress = None  # one file of progress has one writer
        settings = self.settings.model_dump(mode="json", exclude=set(FREE_TO_CHANGE))
        origin = [model_identity(self.start_from), self.model.prompt_style, self.model.dtype, self.model.trust_remote_code]
        self.fingerprint = fingerprint([origin, settings, self.seed, *self.belongs_to])

    def run(self) -> dict[str, Any]:
        began = time.perf_counter()
        finished, resume_from = broadcast_object_list(list(self._find_earlier_work()) if self.is_first else [None, None])
        if finished is not None:
            return dict(finished)
        step = checkpoint_step(resume_from) // self.updates if resume_from else 0
        state = read_json(resume_from / _SELFPLAY, dict[str, Any]) if resume_from else None
        tokenizer = load_tokenizer(models_of(self.start_from)[0], trust_remote_code=self.model.trust_remote_code)
        start = self.model.model_copy(update={"name": self.start_from})
        policy, capabilities = trainable(start, self.settings.lora, self.arguments, self.settings.max_length, self.adapters)
        reference = self._reference(packed=capabilities.packed)
        opening = Opening(
            policy=self._playable(policy, tokenizer),
            tokenizer=tokenizer,
            rank=self.arguments.process_index,
            world_size=self.arguments.world_size,
            step=step,
            state=state,
        )
        with no_progress_bars(), self.open_selfplay(opening) as selfplay:
            trainer = OnlineTrainer(
                model=policy,
                args=self.arguments,
                selfplay=selfplay,
                settings=self.settings,
                roles=self.roles,
                tokenizer=tokenizer,
                style=PromptStyle(self.model.prompt_style),
                reference=reference,
                capabilities=capabilities,
            )
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(_Keeper(trainer, selfplay, self.state, self.progress))
            for callback in integrations(self.settings.report_to, self.output / "tensorboard", step) if self.is_first else []:
                trainer.add_callback(callback)
            trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
            steps = int(trainer.state.global_step) // self.updates
            result = {"steps": steps, "seconds": round(time.perf_counter() - began, 1), **selfplay.results()}
            self._finish(trainer, tokenizer, result)
        trainer.accelerator.wait_for_everyone()
        return result

    def _find_earlier_work(self) -> tuple[dict[str, Any] | None, Path | None]:
        """Return the result if this training has finished, else the checkpoint to resume from; delete stale files."""
        if (finished := finished_result(self.output, self.fingerprint)) is not None:
            return finished, None
        resume_from = open_state(self.state, self.fingerprint)
        if resume_from is not None:
            check_resumable(resume_from, self.settings.parallel, self.arguments.world_size)
        return None, resume_from

    def _reference(self, *, packed: bool) -> PreTrainedModel | None:
        """Return the frozen reference policy, whole on every process, if the loss needs one."""
        if not (self.settings.kl_coef or self.settings.kl_coef_end):
            return None
        options: dict[str, Any] = {"device": str(self.arguments.device), "trust_remote_code": self.model.trust_remote_code}
        if read_roles(self.start_from):
            reference = load_adapters({Path(name).name: name for name in models_of(self.start_from)}, dtype="float32", **options)
        else:
            reference = load_model(self.start_from, dtype="float32", **options)
        reference.requires_grad_(False)
        if packed:
            set_packed_attention(reference)
        return reference

    def _playable(self, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the folder or name that engines load: the start model, or new adapters, which are written first."""
        if not self.adapters and (self.settings.lora is None or (Path(self.start_from) / "adapter_config.json").is_file()):
            return self.start_from
        folder = self.output / "start"
        if self.is_first and not folder.is_dir():
            self._save(policy, tokenizer, folder)
        broadcast_object_list([None])  # the others wait for the first
        return str(folder)

    def _finish(self, trainer: OnlineTrainer, tokenizer: PreTrainedTokenizerBase, result: dict[str, Any]) -> None:
        """Gather and save the model, then record that it is finished."""
        policy, weights = trainer.finished()
        if not self.is_first:
            return
        policy.config.use_cache = True  # Trainer switches the cache off, and the setting would be saved with the model
        self._save(policy, tokenizer, self.output / "checkpoint", weights)
        record_result(self.output, self.fingerprint, result)

    def _save(
        self, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, weights: dict[str, Tensor] | None = None
    ) -> None:
        if self.adapters:
            save_roles(policy, tokenizer, folder, [*self.adapters])
        else:
            save_model(policy, tokenizer, folder, weights)


class _Keeper(TrainerCallback):  # type: ignore[misc]
    """Times updates, reports steps, and writes complete checkpoints with the state of self-play."""

    def __init__(self, trainer: OnlineTrainer, selfplay: Selfplay, state_folder: Path, progress: OnProgress | None) -> None:
        self.trainer, self.selfplay, self.state_folder, self.progress = trainer, selfplay, state_folder, progress

    def on_step_end(self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.update_ended()
        if state.global_step >= state.max_steps:
            control.should_save = False  # the finished model is saved instead

    def on_log(self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.progress is not None:
            row, updates = self.trainer.row, self.trainer.updates
            speed, told = (row["samples"] or 0.0) / max(row["step_s"] or 0.0, 1e-9), self.selfplay.describe()
            done, steps = state.global_step // updates, state.max_steps // updates
            self.progress(TrainProgress(Phase.STEPS, done, steps, speed, row["loss"], told))

    def on_save(self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()
        if self.trainer.is_world_process_zero():
            write_json(self.state_folder / f"checkpoint-{state.global_step}" / _SELFPLAY, self.selfplay.state())
            finish_checkpoint(self.state_folder, state.global_step)
