"""What a run folder holds. Only the manifest must be there; a run may still be at work, or have no arena or reasoning evaluation."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spag.config.files import load_config
from spag.config.schema import RunConfig
from spag.core.errors import DataError, RunError
from spag.games.taboo.types import Outcome
from spag.runs.manifest import Manifest
from spag.runs.offline import HEALTH, IMITATION, iteration_name

Json = dict[str, Any]
_ITERATION = re.compile(r"iteration-[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class SelfPlay:
    """One iteration's games: who played them, how they ended (shares of ``games``), and their figures of health."""

    name: str
    player: str
    games: int
    outcomes: Mapping[Outcome, float]
    health: Json | None


@dataclass(frozen=True, slots=True)
class RunData:
    """A run folder, read once. ``finished``: when the last stage ended, as the run's log has it. ``metrics``: steps by training stage."""

    folder: Path
    config: RunConfig | None
    config_text: str
    stages: Mapping[str, Json]
    finished: str
    plays: tuple[SelfPlay, ...]
    metrics: Mapping[str, list[Json]]
    arena: Json | None
    reasoning: Json | None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def games_file(self) -> tuple[str, Path] | None:
        """Return name and path of the games to show: the last iteration's, else the arena's."""
        for name in (*reversed(_iterations(self.folder)), "arena"):
            path = self.folder / name / "episodes.jsonl"
            if path.is_file() and path.stat().st_size:
                return name, path
        return None


def read_run(folder: Path) -> RunData:
    """Read a run folder. Raises ``RunError`` when it is none, ``DataError`` or ``ConfigError`` for a file in it that is broken."""
    if not (folder / "manifest.json").is_file():
        raise RunError(f"{folder}: not a run folder: it has no manifest.json; name the --output of spag run")
    stages = Manifest.open(folder).stages
    config_path = folder / "config.yaml"
    has_config = config_path.is_file()
    log = _read_lines(folder / "log.jsonl")
    arena, reasoning = _read(folder / "arena" / "results.json"), _read(folder / "reasoning" / "results.json")
    steps = {name: _read_lines(folder / name / "metrics.jsonl") for name in (IMITATION, *_iterations(folder))}
    return RunData(
        folder=folder,
        config=load_config(str(config_path)) if has_config else None,
        config_text=config_path.read_text(encoding="utf-8") if has_config else "",
        stages=stages,
        finished=str(log[-1].get("finished", "")) if log else "",
        plays=tuple(_plays(folder, stages)),
        metrics={name: rows for name, rows in steps.items() if rows},
        arena=arena if arena and "matrix" in arena else None,  # earlier versions kept less
        reasoning=reasoning,
    )


def _iterations(folder: Path) -> list[str]:
    numbers = sorted(int(path.name.partition("-")[2]) for path in folder.glob("iteration-*") if _ITERATION.fullmatch(path.name))
    return [iteration_name(number) for number in numbers]


def _plays(folder: Path, stages: Mapping[str, Json]) -> list[SelfPlay]:
    found, player = [], IMITATION
    for name in _iterations(folder):
        health, results = _read(folder / name / HEALTH), stages.get(f"{name}/play", {}).get("results")
        if results:
            counts, games = results["outcomes"], results["games"]
            shares = {outcome: counts.get(outcome, 0) / max(1, games) for outcome in Outcome}
            found.append(SelfPlay(name, player, games, shares, health))
        player = name
    return found


def _read(path: Path) -> Json | None:
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}; remove it, or redo what wrote it") from error


def _read_lines(path: Path) -> list[Json]:
    """Return the rows of a JSON-lines file; a last line without its end is one that is being written."""
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            rows.append(dict(json.loads(line)))  # of the standard library: a lost loss is NaN
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}; remove the line") from error
    return rows
