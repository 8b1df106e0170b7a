"""Reading ``arena/results.json``, ``health.json`` and ``reasoning/results.json``, checked field by field."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from spag.core.errors import ConfigError, DataError
from spag.evaluation.arena.grid import MatrixCell
from spag.evaluation.arena.paired import PairComparison, RoleComparison
from spag.evaluation.arena.ratings import Rating
from spag.evaluation.arena.standings import RoleTable
from spag.evaluation.health import RoleHealth
from spag.evaluation.reasoning.results import GeometricMean, ItemDifference
from spag.games.base import Game
from spag.games.registry import get
from spag.storage.jsonfile import convert, read_json

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
    subjects: NotRequired[list[str]]
    thinking: NotRequired[bool]
    exact_metrics: NotRequired[dict[str, dict[str, float]]]
    exact_fingerprint: NotRequired[dict[str, str]]


class _Health(TypedDict):
    game: str
    games: int
    outcomes: dict[str, float]
    figures: dict[str, float]
    mean_length: float
    roles: dict[str, RoleHealth]
    empty: float
    repeated: float
    copied: float
    refusals: float
    shared_openings: float
    generic_openings: float
    cut_thoughts: NotRequired[float]
    warnings: list[str]


class _TaskFigure(TypedDict):
    value: float
    se: float | None
    items: int
    difference: ItemDifference
    seconds: NotRequired[float]
    versions: NotRequired[dict[str, str]]


class _ReasoningModel(TypedDict):
    tasks: dict[str, _TaskFigure]
    geometric_mean: GeometricMean | None


class _ReasoningTask(TypedDict):
    label: str
    metric: str
    shots: int | None


class _Reasoning(TypedDict):
    reference: str
    tasks: dict[str, _ReasoningTask]
    models: dict[str, _ReasoningModel]


def load_results(path: Path, played: Game | None = None) -> Json:
    """Return the result of ``arena_report``; ``exact_metrics``, those of policies by player, if any; and perhaps
    ``subjects``, the players that the run is about, and whether they are ``thinking`` in play.

    Raises ``DataError`` naming file and field, also if the game is not the one ``played``.
    """
    results, game = _load_of_game(path, _Arena, played)
    roles, matrix, paired = results["roles"], results["matrix"], results["paired"]
    named: list[tuple[str, Collection[str]]] = [(row["role"], game.roles) for row in (*roles, *paired)]
    named += [(name, game.outcomes) for cell in matrix for name in cell["outcomes"]]
    named += [(row["outcome"], game.outcomes) for row in paired if row["outcome"] is not None]
    for name, known in named:
        if name not in known:
            raise DataError(f"{path}: the game has no {name!r} (it has {', '.join(known)}); redo what wrote the file")
    players = [row["name"] for row in results["ratings"]]
    listed = (*results["pairs"], *matrix, *paired)
    if not players or any(len(row["players"]) != 2 or not set(row["players"]) <= set(players) for row in listed):
        raise DataError(f"{path}: ratings: not those of the players in pairs, matrix and paired; {_REDO}")
    if unknown := sorted(set(results.get("subjects", ())) - set(players)):
        raise DataError(f"{path}: subjects: there is no player {unknown[0]!r}; {_REDO}")
    if any(cell["games"] < 1 for cell in matrix):
        raise DataError(f"{path}: matrix: a pairing has no games; {_REDO}")
    return {"exact_metrics": {}, **results}


def load_health(path: Path, played: Game | None = None) -> Json:
    """Return the result of ``health``. Raises ``DataError`` as ``load_results`` does."""
    found, game = _load_of_game(path, _Health, played)
    figures = [figure.name for figure in game.figures]
    for field, names in (("roles", game.roles), ("outcomes", game.outcomes), ("figures", figures)):
        if missing := [name for name in names if name not in found[field]]:
            raise DataError(f"{path}: {field}: object missing required field `{missing[0]}`; {_REDO}")
    return found


def load_reasoning(path: Path) -> Json:
    """Return the results written by ``spag eval``. Raises ``DataError`` naming file and field."""
    found = read_json(path, Json)
    convert(found, _Reasoning, str(path), _REDO)
    tasks, models = found["tasks"], found["models"]
    have_tasks = all(model["tasks"].keys() == tasks.keys() for model in models.values())
    if not tasks or found["reference"] not in models or not have_tasks:
        raise DataError(f"{path}: models: without the reference, or not on the tasks that are listed; {_REDO}")
    return found


def _load_of_game(path: Path, kind: Any, played: Game | None) -> tuple[Json, Game]:
    found = read_json(path, Json)
    convert(found, kind, str(path), _REDO)
    try:
        game = get(found["game"])
    except ConfigError as error:
        raise DataError(f"{path}: game: {error}") from error
    if played and game.name != played.name:
        raise DataError(f"{path}: figures of {game.name}, and the run plays {played.name}; redo what wrote them")
    return found, game
