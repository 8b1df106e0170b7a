"""What is called better, worse, or no different."""

from typing import Any

import pytest

from spag.engines.players import CONSTANT
from spag.games.registry import get
from spag.report.arena_tables import change_table, last_model
from spag.report.cells import DetailedCell, p_text, signed, with_minus
from spag.report.headline import (
    Comparison,
    Tone,
    arena_findings,
    caveats,
    exact_sentence,
    reasoning_finding,
    sentence,
)
from spag.report.run_tables import reasoning_table

TABOO = get("adversarial_taboo")


def arena(mean: float, p: float, players: tuple[str, str] = ("base", "mine")) -> dict[str, Any]:
    ratings = [
        {"name": "base", "points": 0.0, "low": 0.0, "high": 0.0},
        {"name": "mine", "points": 120.4, "low": 30.0, "high": 210.0},
    ]
    score = {"mean": mean, "low": mean - 0.1, "high": mean + 0.2, "p_value": p}
    return {"ratings": ratings, "pairs": [{"players": list(players), "score": score, "wins": [3, 58]}]}


@pytest.mark.parametrize(
    ("mean", "p", "tone"),
    [
        (-0.3, 0.01, Tone.BETTER),
        (0.3, 0.01, Tone.WORSE),
        (-0.3, 0.05, Tone.UNCLEAR),
        (0.3, 0.9, Tone.UNCLEAR),
        (-0.2, 0.01, Tone.UNCLEAR),  # the interval, up to mean + 0.2, contains 0
        (0.1, 0.01, Tone.UNCLEAR),
    ],
)
def test_scores_are_those_of_the_last_player(mean: float, p: float, tone: Tone) -> None:
    last, (found,) = arena_findings(
        arena(mean, p), TABOO
    )  # the pair has base first: base is 30 points ahead, or behind
    assert (last, found.tone, found.other) == ("mine", tone, "base")


def test_figures_are_those_of_the_last_player_with_their_interval() -> None:
    _, (found,) = arena_findings(arena(-0.3, 0.004), TABOO)
    assert found.figures == "score +30 [+10, +40] of 100, p = 0.004; Elo +120 [+30, +210]"
    _, (same,) = arena_findings(arena(0.3, 0.004, ("mine", "base")), TABOO)
    assert same.figures == "score +30 [+20, +50] of 100, p = 0.004; Elo +120 [+30, +210]"


def test_a_reference_behind_an_endpoint_is_not_the_model_that_was_trained() -> None:
    results = arena(-0.3, 0.004)
    results["ratings"].append({"name": "openai:gpt-4", "points": 400.0, "low": 300.0, "high": 500.0})
    assert last_model(results) == "mine"
    results["ratings"].append({"name": "ref", "points": 0.0, "low": 0.0, "high": 0.0})
    assert last_model(results) == "ref"
    assert last_model({**results, "subjects": ["base", "mine"]}) == "mine"


def test_a_report_is_about_no_constant_bot() -> None:
    rows = [{"name": name} for name in ("bot:random", CONSTANT)]
    assert last_model({"ratings": rows, "subjects": []}) == "bot:random"


def test_players_that_never_met_are_not_compared() -> None:
    results = arena(0.3, 0.01)
    results["pairs"][0]["score"] = None
    assert arena_findings(results, TABOO) == ("mine", [])


def test_players_that_win_together_are_compared_by_reward_in_each_role() -> None:
    difference = {"mean": -0.25, "low": -0.4, "high": -0.1, "p_value": 0.02}
    shared = {"players": ["base", "mine"], "difference": difference}
    rows = [
        {**shared, "role": "questioner", "outcome": None},
        {**shared, "role": "answerer", "outcome": None, "difference": {**difference, "p_value": 0.2}},
        {**shared, "role": "answerer", "outcome": "answerer_violation"},
    ]
    ratings, game = arena(0, 1)["ratings"], get("twenty_questions")
    # of two players, one asks where the other answers: better questions and worse answers look alike
    assert arena_findings({"ratings": ratings, "paired": rows}, game) == ("mine", [])
    last, found = arena_findings({"ratings": [{"name": CONSTANT}, *ratings], "paired": rows}, game)
    assert [(one.tone, one.other) for one in found] == [
        (Tone.BETTER, "base as questioner"),
        (Tone.UNCLEAR, "base as answerer"),
    ]
    assert found[0].figures == "reward +0.25 [+0.10, +0.40] per game, p = 0.02"
    assert (
        sentence(last, found)
        == "mine is better than base as questioner, but is not significantly different from base as answerer."
    )


def test_two_players_alone_have_no_opponent_in_common() -> None:
    results = {"ratings": arena(0, 1)["ratings"], "paired": []}
    assert change_table(results, TABOO).title == "mine on the same tasks, each against the other"
    results["ratings"].append({"name": CONSTANT})
    assert change_table(results, TABOO).title == "mine on the same tasks, against the same opponents"


def test_one_sentence_with_equal_findings_together() -> None:
    found = [Comparison(Tone.BETTER, "base", ""), Comparison(Tone.UNCLEAR, "imitation", "")]
    assert sentence("mine", found) == "mine is better than base, but is not significantly different from imitation."
    more = [Comparison(Tone.WORSE, name, "") for name in ("a", "b", "c")]
    assert sentence("mine", more) == "mine is worse than a, b and c."
    both = [Comparison(Tone.WORSE, "base", ""), Comparison(Tone.WORSE, "imitation", "")]
    assert sentence("mine", both) == "mine is worse than base and imitation."


def role(name: str, ties: int, repeated: int) -> dict[str, Any]:
    return {"name": name, "tie": {"count": ties, "total": 100}, "repeated": {"count": repeated, "total": 100}}


def test_the_sentence_names_degenerate_play_and_the_baseline() -> None:
    results = arena(-0.3, 0.004)
    results["ratings"].append({"name": CONSTANT, "points": 5.0, "low": -9.0, "high": 20.0})
    results["roles"] = [role("mine", 90, 40), role("mine", 76, 60), role("base", 0, 100)]
    last, found = arena_findings(results, TABOO)
    # a bot is never the last model: ties 83 of 100, above a half; repeated texts 50 of 100, not above it
    assert last == "mine"
    assert caveats(results, TABOO, found, []) == ["83 % of its games are ties", f"it was not compared with {CONSTANT}"]
    even = {**results["pairs"][0], "players": ["mine", CONSTANT], "wins": [20, 19]}
    even["score"] = {**even["score"], "p_value": 0.8}
    results["pairs"].append(even)
    _, found = arena_findings(results, TABOO)
    said = sentence(last, found, caveats(results, TABOO, found, []))
    assert said == (
        "mine is better than base (58:3), but is not significantly different from bot:constant (20:19; a bot that "
        "always says the most harmless thing); 83 % of its games are ties."
    )


def test_games_that_nobody_wins_are_no_ties_where_players_win_together() -> None:
    results = {**arena(-0.3, 0.004), "roles": [role("mine", 90, 0)]}
    assert caveats(results, get("twenty_questions"), [], []) == ["90 % of its games are lost by both"]


def test_samples_without_advantage_are_those_of_trained_roles_in_the_last_steps() -> None:
    results = {**arena(-0.3, 0.004), "roles": [role("mine", 0, 51), role("mine", 0, 52)]}
    early, idle = ({"g/a/no_advantage": share, "g/a/samples": 9, "g/b/samples": 0} for share in (0.0, 0.96))
    _, found = arena_findings(results, TABOO)
    assert caveats(results, TABOO, found, [early] * 4) == ["52 % of its utterances repeat what was said before"]
    assert (
        caveats(results, TABOO, found, [early, *[idle] * 4])[1] == "96 % of its last training samples had no advantage"
    )
    dead = {"g/a/no_advantage": 1.0, "g/a/samples": 9, "g/b/samples": 0}
    assert caveats(results, TABOO, found, [dead] * 4)[1] == "100 % of its last training samples had no advantage"
    assert len(caveats(results, TABOO, found, [dead | {"g/a/no_advantage": "damaged"}])) == 1


def test_the_first_exact_figure_of_every_player_is_named() -> None:
    known = {
        "imitation": {"exploitability": 0.5134, "legal_mass": 0.98},
        "online": {"exploitability": 0.1},
        "bot": {"legal_mass": 1.0},
    }
    said = "Exploitability, computed exactly{}: 0.513 for imitation, 0.100 for online."
    assert exact_sentence({"exact_metrics": known}) == said.format("")
    assert exact_sentence({"exact_metrics": known, "thinking": True}) == said.format(", with thinking disabled")
    weak = {
        "base": {"exploitability": 0.3662, "legal_mass": 0.0004},
        "mine": {"exploitability": 0.1, "legal_mass": 0.9},
    }
    assert exact_sentence({"exact_metrics": weak}) == (
        "Exploitability, computed exactly: 0.366 for base (over legal moves, 0 % of its replies), 0.100 for mine."
    )
    assert exact_sentence({"exact_metrics": {}}) == exact_sentence({"exact_metrics": {"bot": {}}}) == ""


def reasoning(tasks: int, low: float, p: float) -> dict[str, Any]:
    difference = {"value": 0.021, "low": low, "high": 0.05, "p": p, "better": 30, "worse": 8}
    names = [f"task{number}" for number in range(tasks)]
    model = {
        "tasks": {name: {"difference": difference} for name in names},
        "geometric_mean": {"difference": difference, "tasks": names},
    }
    return {
        "reference": "base",
        "tasks": {name: {"label": name} for name in names},
        "models": {"base": model, "mine": model},
    }


def test_reasoning_goes_by_the_interval_of_the_mean_or_by_interval_and_p_value_of_the_only_task() -> None:
    unsure, sure = reasoning_finding(reasoning(3, -0.001, 0.001)), reasoning_finding(reasoning(3, 0.001, 0.9))
    assert unsure and unsure[1].tone is Tone.UNCLEAR
    assert sure and sure == (
        "mine",
        Comparison(Tone.BETTER, "base", "geometric mean of 3 tasks +2.1 [+0.1, +5.0] points"),
    )
    one = reasoning_finding(reasoning(1, 0.001, 0.001))
    assert one and one[1] == Comparison(Tone.BETTER, "base", "task0 +2.1 [+0.1, +5.0] points, p = 0.001")
    for low, p in ((-0.001, 0.001), (0.001, 0.05)):
        assert (one := reasoning_finding(reasoning(1, low, p))) and one[1].tone is Tone.UNCLEAR


def test_tasks_on_which_a_model_scores_0_are_named_beside_the_mean_without_them() -> None:
    found = reasoning(7, 0.001, 0.9)
    figure = {"value": 0.4, "se": None, "items": 9}
    for model in found["models"].values():
        model["geometric_mean"] = {**model["geometric_mean"], "value": 0.4}
        model["tasks"] = {task: {**figure, **one} for task, one in model["tasks"].items()}
    for about in found["tasks"].values():
        about |= {"metric": "acc", "shots": 0}

    def shown(tasks: list[str]) -> tuple[str, Any]:
        for model in found["models"].values():
            model["geometric_mean"]["tasks"] = tasks
        finding = reasoning_finding(found)
        assert finding
        return finding[1].figures, reasoning_table(found).rows[-1][0]

    names = list(found["tasks"])
    assert shown(names) == ("geometric mean of 7 tasks +2.1 [+0.1, +5.0] points", "geometric mean")
    said, row = shown(names[2:])
    assert said.startswith("geometric mean of 5 of 7 tasks (without task0 and task1, where a model scores 0) +2.1 [")
    assert row == DetailedCell("geometric mean", ("without task0", "without task1"))
    assert shown(names[4:])[0].startswith(
        "geometric mean of 3 of 7 tasks (without the others, where a model scores 0) "
    )
    for model in found["models"].values():
        model["geometric_mean"] = None
    assert reasoning_finding(found) is None and len(reasoning_table(found).rows) == 7


def test_a_mean_against_the_sign_of_most_items_is_unclear() -> None:
    found, opposite = reasoning(1, 0, 0.001), {"value": -0.03, "low": -0.05, "high": -0.01}
    found["models"]["mine"]["tasks"]["task0"]["difference"] |= opposite  # few items that are much worse
    assert (finding := reasoning_finding(found)) and finding[1].tone is Tone.UNCLEAR


def test_numbers_in_words() -> None:
    assert [signed(value) for value in (1.6, -1.6, 0.4, -0.4)] == ["+2", "−2", "0", "0"]
    assert signed(-0.04, 1) == "0.0"
    formatted = {"-0.000": "0.000", "+0.00": "0.00", "-1.0e-05": "−1.0e-05", "+1.0": "+1.0"}
    assert {text: with_minus(text) for text in formatted} == formatted
    assert [p_text(p) for p in (0.0004, 0.0312, 0.42, 1.0)] == ["p < 0.001", "p = 0.031", "p = 0.42", "p = 1.00"]
    assert [p_text(p) for p in (0.0496, 0.0502, 0.0512)] == ["p = 0.0496", "p = 0.0502", "p = 0.051"]
