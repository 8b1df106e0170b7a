"""The parts of a run returned by its reader: files of games, progress of stages, self-play, online phases."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spag.games.base import Game
from spag.runs.layout import PlannedModel
from spag.runs.records import CollapseWarning, Json, checked, read_collapse, read_evaluations, read_opponents, read_rows


@dataclass(frozen=True, slots=True)
class GameFile:
    """A file of episodes, and its display name.

    ``phase``: the model of its online phase, else empty; ``step``: its online step, ``None`` if it has none, such as an
    evaluation.
    """

    name: str
    path: Path
    phase: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage of a run. ``status``: done, started or waiting. ``idle_s``: seconds since a started one last wrote."""

    name: str
    status: str
    seconds: float
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class SelfPlay:
    """One iteration's games: the players, the outcomes (shares of ``games``), and health metrics.

    ``game``: the one that was played, which each phase may choose.
    """

    name: str
    game: Game
    player: str
    games: int
    outcomes: Mapping[str, float]
    health: Json | None


@dataclass(frozen=True)
class OnlinePhase:
    """An online phase: its model's name, its folder, its games, and why it ended early (else empty)."""

    name: str
    folder: Path
    games: list[Game]
    steps: int
    stopped: str = ""

    def rows(self) -> list[Json]:
        """Return the metrics of every finished step, oldest first."""
        return read_metrics(self.folder)

    def evaluations(self) -> list[Json]:
        """Return the evaluations between steps, oldest first: results by opponent and role, and exact metrics."""
        return read_evaluations(self.folder / "evaluations.jsonl")

    def opponents(self) -> list[Json]:
        """Return the policy's results against each opponent after the last step; empty if it met only itself."""
        rows = read_opponents(self.folder / "opponents.jsonl")
        return rows[-1]["opponents"] if rows else []

    def collapse(self) -> list[CollapseWarning]:
        """Return the collapse warnings, in order."""
        return read_collapse(self.folder / "warnings.jsonl")


def games_of(model: PlannedModel) -> list[Game]:
    """Return the games that a model is trained on: those of its online mix, else its phase's game."""
    return [game for game, _ in model.phase.mix(model.game)]


def read_metrics(folder: Path, last_bytes: int | None = None) -> list[Json]:
    """Return the logged training steps, oldest first; for a long file, those in its last bytes."""
    path = folder / "metrics.jsonl"
    return [checked(path, "a row", row, step=int) for row in read_rows(path, last_bytes)]
