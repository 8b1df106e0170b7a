"""A run in progress: its settings, its folder, and stages that each run once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from spag.config.schema import ModelConfig, PlannedEngine, RunConfig
from spag.engines.players import Kind, is_local, members_of
from spag.games.registry import get as get_game
from spag.models.identity import model_files
from spag.rollout.matches import PlaySetup
from spag.rollout.provenance import named_files
from spag.rollout.steps import SNAPSHOTS
from spag.runs.layout import BASE, PlannedModel, mixed_model, planned_models
from spag.storage.manifest import Action, Manifest, StageDecision
from spag.storage.store import file_digest

Results = Mapping[str, Any]


@dataclass
class Run:
    """A run in progress: what every stage needs."""

    config: RunConfig
    folder: Path
    manifest: Manifest
    setup: PlaySetup
    decisions: dict[str, StageDecision] = field(default_factory=dict)
    """What happened to each stage, or would happen, in a dry run, which changes nothing."""
    engines: Mapping[str, PlannedEngine] = field(default_factory=dict)
    """The planned engines that share GPUs with a trainer, by the name of the trained model."""

    @cached_property
    def models(self) -> dict[str, PlannedModel]:
        """The run's trained models, by name, in order."""
        return {model.name: model for model in planned_models(self.config)}

    def checkpoint(self, name: str) -> str:
        """Return the path or id of a model: ``base``, one that the run trains, or any other by its own name."""
        if name == BASE:
            return self.config.model.name
        if (model := mixed_model(self.config, name)) is not None:
            if not self._stopped_without_snapshot(model):
                return f"{Kind.MIXTURE}{self.folder / model.folder / SNAPSHOTS}"
            self.setup.reporter.note(f"{name}: {model.name} stopped before its first snapshot; its last policy plays")
            name = model.name
        return str(self.folder / self.models[name].folder / "checkpoint") if name in self.models else name

    def _stopped_without_snapshot(self, model: PlannedModel) -> bool:
        stage = f"{model.folder}/train"
        results = self.manifest.stages[stage].get("results", {}) if self.manifest.is_done(stage) else {}
        return "stopped" in results and not (self.folder / model.folder / SNAPSHOTS).is_dir()

    def model(self, name: str) -> ModelConfig:
        return self.config.model.model_copy(update={"name": self.checkpoint(name)})

    def trained(self, *names: str) -> list[str]:
        """Return the stages that produce the models of these names; none for external models."""
        found = [self.models.get(name) or mixed_model(self.config, name) for name in names]
        return list(dict.fromkeys(f"{model.folder}/train" for model in found if model is not None))

    def settings(self, *sections: str, **more: Any) -> dict[str, Any]:
        """Return these sections of the config as a stage's settings, with the digests of the files they name."""
        dumped = self.config.model_dump(mode="json", include=set(sections))
        game = more.get("game", dumped.get("game"))
        files = named_files(get_game(**game)) if game else {}
        return {**dumped, **more, "files": {name: file_digest(path) for name, path in files.items()}}

    def _files_of(self, start: Sequence[str], players: Iterable[str]) -> dict[str, Path]:
        """Return the files of local models that the run does not train; its own names have neither / nor :."""
        others = (name for name in players if set(name) & {"/", ":"} and mixed_model(self.config, name) is None)
        named = [self.model(name) for name in (*start, *others)]
        members = {member.name for model in named for member in members_of(model)}
        return {name: file for one in sorted(members) if is_local(one) for name, file in model_files(one).items()}

    def stage(
        self,
        name: str,
        settings: Mapping[str, Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        work: Callable[[], Results],
        *,
        kept: Sequence[str] | None = None,
        free: Any = None,
        players: Iterable[str] = (),
    ) -> None:
        """Run ``work`` unless the manifest says it is done; a redo first deletes ``outputs``.

        ``kept``: those of ``outputs`` that later stages and people read, by default all; their later replacement is
        detected. Settings with the section ``model`` include the files of a local model, which may be replaced under
        the same name, as may those of ``players``. ``free``: a setting that may change; the stage then continues with
        the existing files.
        """
        model = self._files_of([self.config.model.name] if "model" in settings else [], players)
        decision = self.decisions[name] = self.manifest.begin(name, settings, inputs, free, outputs, model)
        if self.manifest.dry:
            return
        if decision.action is Action.REDO:
            self.setup.reporter.note(f"{name}: redone, because it {decision.reason}")
        if decision.action is Action.SKIP:
            self.setup.reporter.note(f"{name}: {decision.reason}")
            return
        with self.manifest.running(name, outputs if kept is None else kept) as results:
            results.update(work())
