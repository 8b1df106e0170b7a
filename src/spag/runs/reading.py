"""The reader of run folders, for report, web pages, export and evaluation.

Every part is optional, and a run may be writing it right now. A ``RunFolder`` reads each part once, on first use; the
web pages make a new one for each request. A damaged part raises ``DataError`` naming file and field; the others stay
readable.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spag.config.files import load_config
from spag.config.schema import ModelConfig, RunConfig
from spag.core.errors import DataError, RunError
from spag.core.visible import counted
from spag.evaluation.result_files import load_health, load_reasoning, load_results
from spag.games.base import Game
from spag.games.registry import DEFAULT, game_of, get, settings_of
from spag.runs import records
from spag.runs.execute import resolve_dtype
from spag.runs.layout import BASE, EPISODES, HEALTH, PlannedModel, planned_models, planned_stages, trained_models
from spag.runs.records import GameFile, Json, OnlinePhase, SelfPlay, StageProgress, online_files, read_metrics
from spag.runs.teachers import TEACHER, teacher_path
from spag.storage.episodes import read_episodes
from spag.storage.jsonfile import convert
from spag.storage.manifest import MANIFEST, Manifest

_WAITING: Json = {"status": "waiting", "seconds": 0.0}


@dataclass(frozen=True)
class RunFolder:
    """A run folder, or for the web pages one file of episodes."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> "RunFolder":
        """Raises ``RunError`` if ``folder`` is not a run folder."""
        if not (folder / MANIFEST).exists():
            raise RunError(f"{folder}: not a run folder: it has no manifest.json; name the --output of spag run")
        return cls(folder)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def config(self) -> RunConfig | None:
        """The run's settings; ``None`` before they are written. Raises ``ConfigError``."""
        path = self.folder / "config.yaml"
        return load_config(str(path)) if path.is_file() else None

    @cached_property
    def models(self) -> list[PlannedModel]:
        """The run's trained models, in order; none before the settings are written."""
        return planned_models(self.config) if self.config else []

    @cached_property
    def game(self) -> Game:
        """The game in the settings, else that of the first episode; Adversarial Taboo while neither is known."""
        if self.config is not None:
            return self.config.game.build()
        for source in self.sources():
            for episode in read_episodes(source.path, torn_ok=True):
                return game_of(episode)
        return get(DEFAULT)

    @cached_property
    def games(self) -> Mapping[str, Game]:
        """Every game that the run plays, by name: the one in the settings first, then those of phases."""
        found = {self.game.name: self.game}
        for model in self.models:
            for game in model.games:
                found.setdefault(game.name, game)
        return found

    @property
    def plan(self) -> str:
        """How the run learns, in a few words; empty without settings."""
        return " · ".join(phase.algorithm for phase in self.config.phases) if self.config else ""

    @cached_property
    def stages(self) -> Mapping[str, Json]:
        """The manifest's entry of each stage that has begun; done stages with a pending redo are waiting."""
        manifest = Manifest.open(self.folder)
        valid, stages = manifest.valid_stages(), dict[str, Json]()
        for name, entry in manifest.stages.items():
            convert(entry.get("results", {}), records.StageResults, f"{self.folder / MANIFEST}: {name}: results")
            stages[name] = _WAITING if manifest.is_done(name) and name not in valid else dict(entry)
        return stages

    def _waits(self, *stages: str) -> bool:
        """Whether one of ``stages`` is to be redone. ``False`` if the manifest is damaged, which ``stages`` reports."""
        with suppress(DataError):
            return any(self.stages.get(name, {}).get("status") == "waiting" for name in stages)
        return False

    def results(self, stage: str) -> Json:
        """Return the results of a stage; empty until it is done."""
        return dict(self.stages.get(stage, {}).get("results") or {})

    @cached_property
    def trained_on_held_out(self) -> int | None:
        """How many games on held-out tasks the run's models were trained on; ``None`` if a stage did not record it.

        Online steps draw tasks of the training split alone.
        """
        trained = [model for model in self.models if f"{model.folder}/train" in self.stages]
        counts = [0 if one.is_online else self.results(f"{one.folder}/train").get("held_out") for one in trained]
        known = [count for count in counts if type(count) is int]
        return sum(known) if known and len(known) == len(counts) else None

    @property
    def held_out_doubt(self) -> str:
        """Why the arena's tasks cannot be called held out, in a sentence; empty if they can."""
        count = self.trained_on_held_out
        if count is None:
            return "The run does not record whether games on these tasks were trained on."
        if not count:
            return ""
        games = f"{counted(count, 'game')} on tasks of the held-out split {'was' if count == 1 else 'were'}"
        return f"{games} trained on, so some tasks may not be new."

    def progress(self) -> list[StageProgress]:
        """Return every stage in the settings, in order."""
        planned = planned_stages(self.config) if self.config else []
        entries = {name: self.stages.get(name, _WAITING) for name in (*planned, *self.stages)}
        return [
            StageProgress(name, one["status"], one["seconds"], self._idle(name) if one["status"] == "started" else None)
            for name, one in entries.items()
        ]

    def _idle(self, stage: str) -> float:
        folder = self.folder / stage.removesuffix("/play").removesuffix("/train")
        files = (found for at in ("", "episodes", "evaluations") for found in (folder / at).glob("*"))
        latest = 0.0
        for file in (self.folder / MANIFEST, *files):
            with suppress(OSError):  # a temporary file may be gone already
                latest = max(latest, file.stat().st_mtime)
        return max(0.0, time.time() - latest)

    @cached_property
    def finished(self) -> str:
        """When the last stage ended, such as ``2026-01-02T03:04:05Z``; empty before the first did."""
        return max((str(entry.get("finished", "")) for entry in self.stages.values()), default="")

    def sources(self) -> Iterator[GameFile]:
        """Yield the existing files of games: teacher play, then each model's in order, then the arena's."""
        if self.folder.is_file():
            yield GameFile(self.folder.stem.encode(errors="replace").decode(), self.folder)
            return
        several = sum(model.is_online for model in self.models) > 1
        for model in self.models:
            if TEACHER in getattr(model.phase.settings, "episodes", ()):
                game = model.game.build()
                suffix = "" if game.name == self.game.name else f"-{game.name}"
                yield GameFile(TEACHER + suffix, teacher_path(game))
            stage = f"{model.folder}/{'train' if model.is_online else 'play'}"
            if self._waits(stage):
                continue
            if (path := self.folder / model.folder / EPISODES).is_file():
                yield GameFile(model.name, path)
            if model.is_online:
                prefix = f"{model.name}-" if several else ""
                for name, step, path in online_files(self.folder / model.folder):
                    yield GameFile(prefix + name, path, model.name, step)
        for name in ("arena", ""):
            if (path := self.folder / name / EPISODES).is_file() and not self._waits(name):
                yield GameFile(name or "episodes", path)

    @cached_property
    def plays(self) -> list[SelfPlay]:
        """The finished self-play of each iteration."""
        found = []
        for model in self.models:
            stage = f"{model.folder}/play"
            if model.iteration is None or not (results := self.results(stage)):
                continue
            if not results.keys() >= {"games", "outcomes"}:
                raise DataError(f"{self.folder}/manifest.json: {stage}: results: without games or outcomes")
            game, count = model.game.build(), results["games"]
            shares = {outcome: results["outcomes"].get(outcome, 0) / max(1, count) for outcome in game.outcomes}
            found.append(SelfPlay(model.name, game, model.start, count, shares, self.health(model)))
        return found

    def plays_by_game(self) -> list[tuple[Game, list[SelfPlay]]]:
        """Return the self-play of each game separately, since games differ in outcomes and figures."""
        found: dict[str, tuple[Game, list[SelfPlay]]] = {}
        for play in self.plays:
            found.setdefault(play.game.name, (play.game, []))[1].append(play)
        return [*found.values()]

    @cached_property
    def training(self) -> Mapping[str, list[Json]]:
        """All logged updates of the offline phases, by model."""
        offline = [model for model in self.models if not model.is_online]
        return {model.name: rows for model in offline if (rows := self.metrics(model))}

    @cached_property
    def online_phases(self) -> list[OnlinePhase]:
        """The online phases that have begun."""
        found = []
        for model in self.begun_online:
            stopped = str(self.results(f"{model.folder}/train").get("stopped", ""))
            found.append(OnlinePhase(model, self.folder / model.folder, stopped))
        return found

    @property
    def begun_online(self) -> list[PlannedModel]:
        """The models of online phases that have begun and are not waiting to be redone."""
        online = [model for model in self.models if model.is_online and (self.folder / model.folder).is_dir()]
        return [model for model in online if not self._waits(f"{model.folder}/train")]

    def steps_of(self, name: str) -> list[Json]:
        """Return the metrics of every online step that trained a model."""
        return next((phase.rows for phase in self.online_phases if phase.name == name), [])

    def metrics(self, model: PlannedModel) -> list[Json]:
        """Return the logged updates of a model's training, oldest first."""
        return [] if self._waits(f"{model.folder}/train") else read_metrics(self.folder / model.folder)

    def health(self, model: PlannedModel) -> Json | None:
        """Return an iteration's health metrics; ``None`` if it has none. Raises ``DataError``."""
        path = self.folder / model.folder / HEALTH
        return load_health(path, model.games[0]) if path.exists() else None

    def exact_figures(self, game: Game) -> Json:
        """Return the arena's exact metrics of a solved game, by model; empty for another game or other settings."""
        arena = self.arena
        if not arena or arena["game"] != game.name or not arena["settings"].items() <= settings_of(game).items():
            return {}
        return dict(arena["exact_metrics"])

    @cached_property
    def arena(self) -> Json | None:
        path = self.folder / "arena" / "results.json"
        return load_results(path, self.game) if path.exists() and not self._waits("arena") else None

    @cached_property
    def reasoning(self) -> Json | None:
        path = self.folder / "reasoning" / "results.json"
        waits = self._waits(*(f"{model.folder}/train" for model in self.models))
        return load_reasoning(path) if path.exists() and not waits else None

    def checkpoints(self) -> dict[str, str]:
        """Return the path or id of each model, by name: base, and the trained ones. Empty without settings."""
        return {} if self.config is None else {BASE: self.config.model.name, **trained_models(self.config, self.folder)}

    def model(self, name: str) -> ModelConfig:
        """Return the settings to load a model as in the run. Raises ``RunError`` if there is none of that name."""
        checkpoints = self.checkpoints()
        if self.config is None or name not in checkpoints:
            raise RunError(f"{self.folder}: no trained model {name!r}; there are: {', '.join(checkpoints) or 'none'}")
        config = resolve_dtype(self.config, lambda: Manifest.open(self.folder).measured.get("dtype"))
        return config.model.model_copy(update={"name": checkpoints[name]})
