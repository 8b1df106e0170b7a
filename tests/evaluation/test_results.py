"""Reading results and figures of health: today's, those of earlier versions, broken ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arena_games import FOUL, HANDSHAKE, LOSS, TIE, WIN, ending

from spag.core.errors import DataError
from spag.evaluation.arena.games import arena_report
from spag.evaluation.health import health
from spag.evaluation.results import load_health, load_results
from taboo_games import TABOO

EARLIER = Path(__file__).parent / "earlier"
GAMES = [ending("a", "b", "river", WIN), ending("b", "a", "river", FOUL)]
RESULTS = json.loads(json.dumps(arena_report(GAMES, TABOO)))
HEALTH = json.loads(json.dumps(health(GAMES, TABOO)))


def written(path: Path, data: Any) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert load_results(written(tmp_path / "results.json", RESULTS)) == {**RESULTS, "yardsticks": {}}
    exact = {**RESULTS, "yardsticks": {"a": {"exploitability": 0.25}}}
    assert load_results(written(tmp_path / "results.json", exact)) == exact
    assert load_health(written(tmp_path / "health.json", HEALTH)) == HEALTH


def test_figures_of_health_of_earlier_versions_are_named_as_today() -> None:
    then, found = json.loads((EARLIER / "health.json").read_text()), load_health(EARLIER / "health.json")
    outcomes = {WIN: "attacker_wins", LOSS: "defender_wins", FOUL: "violations", TIE: "ties"}
    assert (found["game"], found["outcomes"]) == ("adversarial_taboo", {name: then[old] for name, old in outcomes.items()})
    assert found["figures"] == {name: then[name] for name in ("induced", "wrong_guess", "first_wrong_guess", "hidden_leaks")}
    assert found["roles"] == {role: then[role] for role in ("attacker", "defender")}
    assert (found["warnings"], found["median_length"]) == (then["warnings"], then["median_length"])
    assert found.keys() == HEALTH.keys()


def test_results_that_kept_less_are_read(tmp_path: Path) -> None:
    old = {"judge": "strict", "note": "", "roles": [], "pairs": [{"players": ["a", "b"], "games": 2}]}
    found = load_results(written(tmp_path / "results.json", old))
    assert (found["game"], found["matrix"], found["pairs"], found["settings"]) == ("adversarial_taboo", [], [], {"judge": "strict"})


def without(*path: str | int) -> Callable[[Any], Any]:
    """Return what drops the part of a file at ``path``."""

    def drop(data: Any) -> Any:
        part = data
        for key in path[:-1]:
            part = part[key]
        del part[path[-1]]
        return data

    return drop


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (without("pairs", 0, "wins"), r"results\.json: pairs\[0\]: object missing required field `wins`; remove it, or redo what wrote it"),
        (without("roles", 1, "win", "low"), r"roles\[1\]\.win: object missing required field `low`"),
        (lambda data: {**data, "tasks": "many"}, "tasks: expected `int`, got `str`"),
        (lambda data: {**data, "game": "chess"}, "game: there is no game called 'chess'"),
        (lambda data: {**data, "matrix": [{**data["matrix"][0], "outcomes": {"won": 1}}]}, "the game knows no 'won'"),
        (lambda data: {**data, "paired": [{**data["paired"][0], "role": "judge"}]}, "the game knows no 'judge'"),
        (without("game"), r"not of this version nor of an earlier one \(KeyError"),
        (lambda _: [], "expected `object`, got `array`"),
        (lambda _: "{", "not JSON"),
    ],
)
def test_a_broken_file_is_an_error_that_names_the_field(broken: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "results.json", broken(json.loads(json.dumps(RESULTS))))
    with pytest.raises(DataError, match=message) as caught:
        load_results(path)
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


def test_a_file_of_a_game_that_is_not_installed_or_that_cannot_be_read(tmp_path: Path) -> None:
    found = json.loads(json.dumps(health([], HANDSHAKE)))
    with pytest.raises(DataError, match="there is no game called 'handshake'"):
        load_health(written(tmp_path / "health.json", found))
    with pytest.raises(DataError, match="cannot be read"):
        load_health(tmp_path)
