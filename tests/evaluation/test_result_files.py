"""Reading results and figures of health: as written, and broken ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arena_games import FOUL, HANDSHAKE, WIN, ending

from spag.core.errors import DataError
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.health import health
from spag.evaluation.reasoning.results import figures_of
from spag.evaluation.result_files import load_health, load_reasoning, load_results
from spag.games import get
from spag.runs.reading import RunFolder
from taboo_games import TABOO

GAMES = [ending("a", "b", "river", WIN), ending("b", "a", "river", FOUL)]
RESULTS = json.loads(json.dumps(arena_report(GAMES, TABOO)))
HEALTH = json.loads(json.dumps(health(GAMES, TABOO)))


def written(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert load_results(written(tmp_path / "results.json", RESULTS)) == {**RESULTS, "exact_metrics": {}}
    exact = {**RESULTS, "exact_metrics": {"a": {"exploitability": 0.25}}}
    assert load_results(written(tmp_path / "results.json", exact)) == exact
    assert load_health(written(tmp_path / "health.json", HEALTH)) == HEALTH


def without(*path: str | int) -> Callable[[Any], Any]:
    """Return what drops the part of a file at ``path``."""

    def drop(data: Any) -> Any:
        part = data
        for key in path[:-1]:
            part = part[key]
        del part[path[-1]]
        return data

    return drop


def put(value: Any, *path: str | int) -> Callable[[Any], Any]:
    """Return what puts ``value`` into the place of the part of a file at ``path``."""

    def change(data: Any) -> Any:
        part = data
        for key in path[:-1]:
            part = part[key]
        assert path[-1] in part or isinstance(part, list)
        part[path[-1]] = value
        return data

    return change


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            without("pairs", 0, "wins"),
            r"results\.json: pairs\[0\]: object missing required field `wins`; remove it, or redo what wrote it",
        ),
        (without("roles", 1, "win", "low"), r"roles\[1\]\.win: object missing required field `low`"),
        (
            put(True, "roles", 2, "figures", "guess"),
            r"roles\[2\]\.figures\[\.\.\.\]: expected `object`, got `bool`; remove it",
        ),
        (put(True, "roles", 2, "figures", "guess", "rate"), r"\.figures\[\.\.\.\]\.rate: expected `float`, got `bool`"),
        (put(True, "ratings", 0, "points"), r"ratings\[0\]\.points: expected `float`, got `bool`"),
        (put("", "paired", 1, "outcome"), "the game has no ''"),
        (lambda data: {**data, "tasks": "many"}, "tasks: expected `int`, got `str`"),
        (lambda data: {**data, "game": "chess"}, "game: there is no game called 'chess'"),
        (lambda data: {**data, "matrix": [{**data["matrix"][0], "outcomes": {"won": 1}}]}, "the game has no 'won'"),
        (lambda data: {**data, "paired": [{**data["paired"][0], "role": "judge"}]}, "the game has no 'judge'"),
        (without("game"), r"results\.json: object missing required field `game`; remove it"),
        (lambda _: [], "expected `object`, got `array`"),
        (lambda _: "{", "not JSON"),
    ],
)
def test_a_broken_file_is_an_error_that_names_the_field(
    broken: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "results.json", broken(json.loads(json.dumps(RESULTS))))
    with pytest.raises(DataError, match=message) as caught:
        load_results(path)
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "name"), [("roles", "defender"), ("outcomes", "tie"), ("figures", "first_wrong_guess")]
)
def test_figures_of_health_are_all_there(field: str, name: str, tmp_path: Path) -> None:
    broken = without(field, name)(json.loads(json.dumps(HEALTH)))
    with pytest.raises(DataError, match=f"health.json: {field}: object missing required field `{name}`; remove it"):
        load_health(written(tmp_path / "health.json", broken))


def test_a_file_of_a_game_that_is_not_installed_or_that_cannot_be_read(tmp_path: Path) -> None:
    found = json.loads(json.dumps(health([], HANDSHAKE)))
    with pytest.raises(DataError, match="there is no game called 'handshake'"):
        load_health(written(tmp_path / "health.json", found))
    with pytest.raises(DataError, match="cannot be read"):
        load_health(tmp_path)


def test_figures_of_another_game_than_the_run_plays_are_refused(tmp_path: Path) -> None:
    message = "figures of adversarial_taboo, and the run plays kuhn_poker; redo what wrote them"
    for load, data in ((load_results, RESULTS), (load_health, HEALTH)):
        path = written(tmp_path / "file.json", data)
        assert load(path, TABOO)["game"] == TABOO.name
        with pytest.raises(DataError, match=message):
            load(path, get("kuhn_poker"))


def test_the_arena_of_a_run_is_of_its_game(tmp_path: Path) -> None:
    (tmp_path / "arena").mkdir()
    written(tmp_path / "config.yaml", "model: {name: tiny}\ngame: {name: kuhn_poker}\n")
    path = written(tmp_path / "arena" / "results.json", RESULTS)
    with pytest.raises(DataError, match=f"{path}: figures of adversarial_taboo, and the run plays kuhn_poker"):
        _ = RunFolder(tmp_path).arena


def test_reasoning_need_not_have_a_geometric_mean(tmp_path: Path) -> None:
    items = {"t": {"a": [{"task": "t", "metrics": {"acc": 0.0}}]}}
    found = {"reference": "a", "tasks": {"t": {"label": "T", "metric": "acc", "shots": 0}}}
    found["models"] = figures_of({"t": "acc"}, items, 0)
    assert load_reasoning(written(tmp_path / "results.json", found))["models"]["a"]["geometric_mean"] is None


def test_a_comparison_on_a_task_has_a_p_value(tmp_path: Path) -> None:
    score = {"value": 0.0, "low": -0.1, "high": 0.1}
    counted = {**score, "se": None, "better": 0, "worse": 0}
    model = {
        "tasks": {"t": {"value": 0.5, "se": None, "items": 1, "difference": counted}},
        "geometric_mean": {"value": 0.5, "difference": score, "tasks": ["t"]},
    }
    found = {"reference": "a", "tasks": {"t": {"label": "T", "metric": "acc", "shots": 0}}, "models": {"a": model}}
    with pytest.raises(DataError, match=r"models\[...\].tasks\[...\].difference: object missing required field `p`"):
        load_reasoning(written(tmp_path / "results.json", found))
