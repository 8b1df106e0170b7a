"""Reading ``arena/results.json`` and ``health.json``, of today's format and of the one that knew Adversarial Taboo alone.

The older format had no ``game``, called tasks ``words``, and named outcomes and roles in its fields (``ties``, ``violations``).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from spag.core.errors import ConfigError, DataError
from spag.core.jsonfile import read_json
from spag.core.types import Outcome
from spag.evaluation.arena.clembench import ClembenchRow
from spag.evaluation.arena.games import RoleTable
from spag.evaluation.arena.paired import MatrixCell, PairComparison, RoleComparison
from spag.evaluation.arena.ratings import Rating
from spag.evaluation.health import RoleHealth
from spag.games.base import Game
from spag.games.registry import DEFAULT, get

Json = dict[str, Any]
_REDO = "remove it, or redo what wrote it"


class _Arena(TypedDict):
    game: str
    settings: Json
    note: str
    tasks: int
    roles: list[RoleTable]
    ratings: list[Rating]
    pairs: list[PairComparison]
    matrix: list[MatrixCell]
    paired: list[RoleComparison]
    yardsticks: NotRequired[dict[str, dict[str, float]]]
    clembench: NotRequired[list[ClembenchRow]]


class _Health(TypedDict):
    game: str
    games: int
    outcomes: dict[str, float]
    figures: dict[str, float]
    mean_length: float
    median_length: float
    roles: dict[str, RoleHealth]
    empty: float
    repeated: float
    copied: float
    refusals: float
    shared_openings: float
    generic_openings: float
    warnings: list[str]


class _Score(TypedDict):
    value: float
    low: float
    high: float
    p: NotRequired[float]


class _TaskFigure(TypedDict):
    value: float
    se: float | None
    items: int
    difference: _Score
    seconds: NotRequired[float]
    versions: NotRequired[dict[str, str]]


class _Mean(TypedDict):
    value: float
    difference: _Score
    se: NotRequired[float | None]


class _ReasoningModel(TypedDict):
    tasks: dict[str, _TaskFigure]
    geometric_mean: _Mean


class _ReasoningTask(TypedDict):
    label: str
    metric: str
    shots: int | None


class _Reasoning(TypedDict):
    reference: str
    tasks: dict[str, _ReasoningTask]
    models: dict[str, _ReasoningModel]


def load_results(path: Path) -> Json:
    """Return what ``arena_report`` gave, and ``yardsticks``: exact figures of policies by player, if any.

    Raises ``DataError`` naming file and field.
    """
    results = _load(path, _Arena, _upgraded_arena)
    game = _game(path, results)
    _check_names(path, (row["role"] for row in (*results["roles"], *results["paired"])), game.roles)
    _check_names(path, (name for cell in results["matrix"] for name in cell["outcomes"]), game.outcomes)
    _check_names(path, (row["outcome"] for row in results["paired"]), game.outcomes)
    players = [row["name"] for row in results["ratings"]]  # an earlier version kept none
    listed = (*results["pairs"], *results["matrix"], *results["paired"])
    if players and any(len(row["players"]) != 2 or not set(row["players"]) <= set(players) for row in listed):
        raise DataError(f"{path}: ratings: not those of the players in pairs, matrix and paired; {_REDO}")
    if any(cell["games"] < 1 for cell in results["matrix"]):
        raise DataError(f"{path}: matrix: a pairing has no games; {_REDO}")
    return {"yardsticks": {}, **results}


def load_health(path: Path) -> Json:
    """Return what ``health`` gave. Raises ``DataError`` naming file and field."""
    found = _load(path, _Health, _upgraded_health)
    game = _game(path, found)
    _check_names(path, found["roles"], game.roles)
    _check_names(path, found["outcomes"], game.outcomes)
    return found


def load_reasoning(path: Path) -> Json:
    """Return what ``spag eval`` wrote. Raises ``DataError`` naming file and field."""
    found = _load(path, _Reasoning, dict)
    tasks, models = found["tasks"], found["models"]
    if not tasks or found["reference"] not in models or any(model["tasks"].keys() != tasks.keys() for model in models.values()):
        raise DataError(f"{path}: models: without the reference, or not on the tasks that are listed; {_REDO}")
    return found


def _load(path: Path, kind: Any, upgrade: Any) -> Json:
    try:
        data = read_json(path, Json)
        data = data if "game" in data else upgrade(data)
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        raise DataError(f"{path}: {place.strip('`').removeprefix('$.') or 'results'}: {what[:1].lower()}{what[1:]}; {_REDO}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not of this version nor of an earlier one ({type(error).__name__}: {error}); {_REDO}") from error
    return data


def _game(path: Path, data: Json) -> Game:
    try:
        return get(data["game"])
    except ConfigError as error:
        raise DataError(f"{path}: game: {error}") from error


def _check_names(path: Path, names: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise DataError(f"{path}: the game knows no {unknown[0]!r} (it has {', '.join(known)}); redo what wrote the file")


def _old_key(outcome: Outcome) -> str:
    """Return the name by which the earlier format counted ``outcome``."""
    return "ties" if outcome.is_draw else "violations" if outcome.fault else str(outcome.name)


def _upgraded_arena(old: Mapping[str, Any]) -> Json:
    game = get(DEFAULT)
    won_by = {outcome.name: outcome.fault or next(iter(outcome.winners), "") for outcome in game.outcomes.values()}
    return {
        "game": game.name,
        "settings": {"judge": old["judge"]} if "judge" in old else {},
        "note": old.get("note", ""),
        "tasks": old.get("words", 0),
        "roles": old["roles"],
        "ratings": old.get("ratings", []),
        "pairs": [row for row in old["pairs"] if "wins" in row],
        "matrix": [
            {
                "players": [cell[role] for role in game.roles],
                "games": cell["games"],
                "outcomes": {str(one.name): cell[_old_key(one)] for one in game.outcomes.values()},
            }
            for cell in old.get("matrix", [])
        ],
        "paired": [{**row, "role": won_by[row["outcome"]]} for row in old.get("paired", [])],
    }


def _upgraded_health(old: Mapping[str, Any]) -> Json:
    game = get(DEFAULT)
    return {
        **{name: value for name, value in old.items() if name in _Health.__annotations__},
        "game": game.name,
        "outcomes": {str(one.name): old[_old_key(one)] for one in game.outcomes.values()},
        "figures": {one.name: old[one.name] for one in game.figures if one.name in old},
        "roles": {role: old[role] for role in game.roles},
    }
