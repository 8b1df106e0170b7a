"""The one reader of run folders, for report, page, export and evaluation.

All of it is optional, and a run may be writing it right now. A ``RunFolder`` reads each part once, when it is first asked for; the page
makes a new one for each request. A damaged part raises ``DataError`` naming file and field; the others stay readable.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spag.config.files import load_config
from spag.config.schema import ModelConfig, RunConfig
from spag.core.episodes import read_episodes
from spag.core.errors import RunError
from spag.core.manifest import Manifest
from spag.evaluation.results import load_health, load_reasoning, load_results
from spag.games.base import Game
from spag.games.registry import DEFAULT, get
from spag.runs.folder import (
    BASE,
    EPISODES,
    HEALTH,
    IMITATION,
    ONLINE,
    iterations,
    learns_online,
    offline_iterations,
    planned_stages,
    trained_models,
)
from spag.runs.records import CollapseSign, Json, check_results, checked, online_files, read_collapse, read_evaluations, read_rows
from spag.runs.stages import TEACHER, resolve_dtype, teacher_path


@dataclass(frozen=True, slots=True)
class Source:
    """A file of episodes, and the name that it is shown by."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run. ``status``: done, started or waiting. ``idle_s``: how long ago a started one last wrote to a file."""

    name: str
    status: str
    seconds: float
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class SelfPlay:
    """One iteration's games: who played them, how they ended (shares of ``games``), and their figures of health."""

    name: str
    player: str
    games: int
    outcomes: Mapping[str, float]
    health: Json | None


@dataclass(frozen=True)
class RunFolder:
    """A run folder, or for the page one file of episodes."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> "RunFolder":
        """Raises ``RunError`` when ``folder`` is not a run folder."""
        if not (folder / "manifest.json").exists():
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
    def game(self) -> Game:
        """The game that the settings name, else that of the first episode; Adversarial Taboo while neither is known."""
        return self._game()

    def _game(self) -> Game:
        if self.config is not None:
            return self.config.game.build()
        episodes = (episode.game for source in self.sources() for episode in read_episodes(source.path))
        return get(next(episodes, DEFAULT))

    @property
    def plan(self) -> str:
        """How the policy learns after imitation, in words; empty without settings."""
        if self.config is None:
            return ""
        count = offline_iterations(self.config)
        parts = [f"{count} iteration{'' if count == 1 else 's'} of self-play"] if count else []
        return " · ".join([*parts, f"{self.config.online.steps} online steps"] if learns_online(self.config) else parts)

    @cached_property
    def stages(self) -> Mapping[str, Json]:
        """What the manifest says of each stage that was begun."""
        stages = Manifest.open(self.folder).stages if self.folder.is_dir() else {}
        for name, entry in stages.items():
            check_results(self.folder / "manifest.json", name, entry.get("results", {}))
        return stages

    @cached_property
    def trained_on_held_out(self) -> int | None:
        """How many games on held-out tasks the run's models were trained on, by what the stages recorded; ``None`` where one did not.

        Online steps draw tasks of the training split alone.
        """
        trained = [name.removesuffix("/train") for name in self.stages if name.endswith("/train")]
        results = [{"held_out": 0} if name == ONLINE else self.stages.get(f"{name}/samples", {}).get("results") for name in trained]
        counts = [one.get("held_out") if isinstance(one, dict) else None for one in results]
        known = [count for count in counts if type(count) is int]
        return sum(known) if known and len(known) == len(counts) else None

    @property
    def held_out_doubt(self) -> str:
        """Why the arena's tasks cannot be called held out, in a sentence; empty where they can."""
        count = self.trained_on_held_out
        if count is None:
            return "The run does not record whether games on these tasks were trained on."
        return f"Games on tasks of the held-out split were trained on, {count:,} of them, so some tasks may not be new." if count else ""

    def progress(self) -> list[Stage]:
        """Return every stage that the settings ask for, in order."""
        planned = planned_stages(self.config) if self.config else []
        waiting: Json = {"status": "waiting", "seconds": 0.0}
        entries = {name: self.stages.get(name, waiting) for name in (*planned, *self.stages)}
        return [
            Stage(name, one["status"], one["seconds"], self._idle(name) if one["status"] == "started" else None)
            for name, one in entries.items()
        ]

    def _idle(self, stage: str) -> float:
        folder = self.folder / stage.partition("/")[0]
        files = [self.folder / "manifest.json", *folder.glob("*"), *folder.glob("episodes/*"), *folder.glob("evaluations/*")]
        return max(0.0, time.time() - max(file.stat().st_mtime for file in files if file.is_file()))

    @cached_property
    def finished(self) -> str:
        """When the last stage ended, as the run's log has it."""
        log = read_rows(self.folder / "log.jsonl")
        return str(log[-1].get("finished", "")) if log else ""

    def sources(self) -> Iterator[Source]:
        """Yield the files of games that exist by now: teacher play, iterations in order, online steps and their evaluations, the arena."""
        if self.folder.is_file():
            yield Source(self.folder.stem, self.folder)
            return
        if self.config is not None and TEACHER in self.config.imitation.episodes:
            yield Source(TEACHER, teacher_path(self.config.game.build()))
        for name in (IMITATION, *iterations(self.folder)):
            if (path := self.folder / name / EPISODES).is_file():
                yield Source(name, path)
        yield from (Source(name, path) for name, path in online_files(self.folder / ONLINE))
        for name in ("arena", ""):
            if (path := self.folder / name / EPISODES).is_file():
                yield Source(name or "episodes", path)

    def health(self, name: str) -> Json | None:
        """Return an iteration's figures of health; ``None`` where it has none. Raises ``DataError``."""
        path = self.folder / name / HEALTH
        return load_health(path) if path.exists() else None

    @cached_property
    def plays(self) -> list[SelfPlay]:
        """The finished self-play of each iteration."""
        return self._plays()

    def _plays(self) -> list[SelfPlay]:
        found, player = [], IMITATION
        for name in iterations(self.folder):
            if results := self.stages.get(f"{name}/play", {}).get("results"):
                counts = checked(self.folder / "manifest.json", f"{name}/play", results, games=int, outcomes=dict)["outcomes"]
                shares = {outcome: counts.get(outcome, 0) / max(1, results["games"]) for outcome in self.game.outcomes}
                found.append(SelfPlay(name, player, results["games"], shares, self.health(name)))
            player = name
        return found

    def metrics(self, name: str, last_bytes: int | None = None) -> list[Json]:
        """Return the logged training steps, oldest first; of a long file those in its last bytes."""
        path = self.folder / name / "metrics.jsonl"
        return [checked(path, "a row", row, step=int) for row in read_rows(path, last_bytes)]

    @cached_property
    def training(self) -> Mapping[str, list[Json]]:
        """All logged steps, by training."""
        return {name: rows for name in (IMITATION, *iterations(self.folder)) if (rows := self.metrics(name))}

    @cached_property
    def online(self) -> list[Json]:
        """The figures of every finished online step, oldest first."""
        return self.metrics(ONLINE)

    @cached_property
    def online_games(self) -> list[Game]:
        """The games that online steps play."""
        mix = self.config.online.mix if self.config else []
        return [part.build() for part in mix] or [self.game]

    @cached_property
    def evaluations(self) -> list[Json]:
        """The evaluations between online steps, oldest first: how the policy did in each role against an opponent, and exact figures."""
        return read_evaluations(self.folder / ONLINE / "evaluations.jsonl")

    @cached_property
    def collapse(self) -> list[CollapseSign]:
        """The signs of a collapse that online training noticed, in the order in which they came."""
        return read_collapse(self.folder / ONLINE / "warnings.jsonl")

    def exact_figures(self, game: Game) -> Json:
        """Return the arena's exact figures of a solved game, by model; empty before the arena, and for another game than the arena's."""
        return dict(self.arena["yardsticks"]) if self.arena and self.arena["game"] == game.name else {}

    @property
    def stopped(self) -> str:
        """Why online training ended before its last step; empty where it did not."""
        return str((self.stages.get(f"{ONLINE}/train", {}).get("results") or {}).get("stopped", ""))

    @cached_property
    def arena(self) -> Json | None:
        path = self.folder / "arena" / "results.json"
        return load_results(path) if path.exists() else None

    @cached_property
    def reasoning(self) -> Json | None:
        path = self.folder / "reasoning" / "results.json"
        return load_reasoning(path) if path.exists() else None

    def checkpoints(self) -> dict[str, str]:
        """Return what opens each model, by name: base, and those that are trained. Empty without settings."""
        return {} if self.config is None else {BASE: self.config.model.name, **trained_models(self.folder)}

    def model(self, name: str) -> ModelConfig:
        """Return a model as the run's settings load it. Raises ``RunError`` when there is none of that name."""
        checkpoints = self.checkpoints()
        if self.config is None or name not in checkpoints:
            raise RunError(f"{self.folder}: no trained model {name!r}; there are: {', '.join(checkpoints) or 'none'}")
        measured = Manifest.open(self.folder).measured.get("dtype")
        config = resolve_dtype(self.config, lambda measure: str(measured or measure()))
        return config.model.model_copy(update={"name": checkpoints[name]})
