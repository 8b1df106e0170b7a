"""The parts of a run folder: files of games, progress, self-play, online phases, and the rows of JSON-lines files.

Rows are checked for the fields that report and web pages need.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from spag.evaluation.arena.paired import PairComparison
from spag.evaluation.intervals import Rate
from spag.games.base import Game
from spag.runs.layout import PlannedModel
from spag.storage.episodes import raw_rows
from spag.storage.jsonfile import convert

Json = dict[str, Any]
_STEP_FILE = re.compile(r"step-([0-9]+)([^/]*)[.]jsonl")


@dataclass(frozen=True, slots=True)
class CollapseWarning:
    """A collapse warning, and the steps at which it held; ``last`` is ``None`` if it holds at the latest step."""

    says: str
    first: int
    last: int | None

    @property
    def when(self) -> str:
        """The steps in words."""
        if self.last is None:
            return f"from step {self.first} on"
        return f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class GameFile:
    """A file of episodes, its name, the model of its online ``phase`` (else empty), and its online ``step``, if any."""

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
    """One iteration's games: its phase's game, the player, outcomes (shares of ``games``), and health metrics."""

    name: str
    game: Game
    player: str
    games: int
    outcomes: Mapping[str, float]
    health: Json | None


@dataclass(frozen=True)
class OnlinePhase:
    """An online phase that has begun: the model that it trains, its folder, and why it ended early (else empty).

    Each part is read once, on first use; a damaged one raises ``DataError`` naming file and field.
    """

    model: PlannedModel
    folder: Path
    stopped: str = ""

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def steps(self) -> int:
        return int(self.model.phase.settings.steps)

    @property
    def thinks(self) -> bool:
        """Whether players think."""
        return bool(self.model.phase.settings.sampling.thinking.enabled)

    @cached_property
    def games(self) -> list[Game]:
        return self.model.games

    @cached_property
    def rows(self) -> list[Json]:
        """The metrics of every finished step, oldest first."""
        return read_metrics(self.folder)

    @cached_property
    def evaluations(self) -> list[Json]:
        """The evaluations between steps, oldest first: results against each opponent by role, and exact metrics."""
        return _read_rows(self.folder / "evaluations.jsonl", _Evaluation)

    @cached_property
    def opponents(self) -> list[Json]:
        """The policy's results against each opponent after the last step; empty if it met only itself."""
        rows = _read_rows(self.folder / "opponents.jsonl", _Met)
        return list(rows[-1]["opponents"]) if rows else []

    @cached_property
    def collapse(self) -> list[CollapseWarning]:
        """The collapse warnings, in order."""
        return _read_collapse(self.folder / "warnings.jsonl")


class StageResults(TypedDict, total=False):
    """The results of a stage that report and web pages show."""

    steps: int
    samples: int | dict[str, int]
    sft: int
    games: int
    games_per_hour: float
    completion_tokens: int
    outcomes: dict[str, int]
    held_out: int | None
    versions: dict[str, str]
    stopped: str


class _Step(TypedDict):
    step: int


class _OfRole(TypedDict):
    role: str
    games: int
    win: Rate
    violation: Rate


class _Evaluation(_Step):
    game: str
    opponent: str
    roles: list[_OfRole]
    exact: dict[str, float]
    pair: list[PairComparison]


class _Opponent(TypedDict):
    game: str
    opponent: str
    games: int
    score: float
    rating: float
    share: float


class _Met(_Step):
    opponents: list[_Opponent]


class _Warnings(_Step):
    warnings: dict[str, str]


def online_files(folder: Path) -> Iterator[tuple[str, int | None, Path]]:
    """Yield name, step (``None`` for an evaluation) and path of each file of games of an online phase. Names:
    ``online-step-00012``, of the second process ``online-step-00012.part1``, ``evaluation-step-00012-GAME-OPPONENT``.
    """
    found = []
    for kind, prefix in (("episodes", "online-step-"), ("evaluations", "evaluation-step-")):
        for path in (folder / kind).glob("step-*.jsonl"):
            if parts := _STEP_FILE.fullmatch(path.name):
                found.append((int(parts[1]), kind, f"{prefix}{parts[1]}{parts[2]}", path))
    yield from ((name, step if kind == "episodes" else None, path) for step, kind, name, path in sorted(found))


def _read_collapse(path: Path) -> list[CollapseWarning]:
    ended: list[CollapseWarning] = []
    shown: dict[str, CollapseWarning] = {}
    for row in _read_rows(path, _Warnings):
        step, warnings = row["step"], row["warnings"]
        ended += [replace(shown.pop(name), last=step - 1) for name in [name for name in shown if name not in warnings]]
        for name, says in warnings.items():
            shown.setdefault(name, CollapseWarning(says, step, None))
    return sorted([*ended, *shown.values()], key=lambda warning: warning.first)


def _read_rows(path: Path, kind: Any) -> list[Json]:
    """Return the rows of a JSON-lines file, each a ``kind``; an incomplete last line is still being written."""
    rows = list(raw_rows(path, torn=b"{")) if path.exists() else []
    for place, row in rows:
        convert(row, kind, place, "remove the file, or redo what wrote it")
    return [row for _, row in rows]


def read_metrics(folder: Path) -> list[Json]:
    """Return the logged training steps, oldest first."""
    return _read_rows(folder / "metrics.jsonl", _Step)
