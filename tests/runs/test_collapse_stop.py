"""A run whose policy breaks the rules in every game stops by itself, leaves a finished model, and goes on to the
arena.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import PHASE, config_for, run_here, train_here, weights_of

from spag.learning.step_figures import CollapseWatch
from spag.storage.manifest import Manifest

pytestmark = pytest.mark.slow
STEPS = (
    "reinforce.steps=10",
    "reinforce.games=2",
    "reinforce.evaluate_every=null",
    "reinforce.save_steps=100",
    "arena.tasks=1",
)
FOLLOWS = "reinforce.reference={every: 2}"
ILLEGAL = "player_0 of kuhn_poker: 100 % of games end with it breaking the rules, at first 100 %"
ALIKE = "player_0 of kuhn_poker: 100 % of samples have no advantage and teach nothing"


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / PHASE / "metrics.jsonl").read_text().splitlines()]


def test_a_collapse_ends_the_run_where_that_is_wanted(model_folder: Path, tmp_path: Path) -> None:
    options = "reinforce.stop_on_collapse=true", "reinforce.overlap=1", "reinforce.evaluate_every=10"
    run_here(config_for(model_folder, *STEPS, *options), tmp_path)
    assert steps_of(tmp_path) == [*range(1, 9)]  # no sign is given before the 8th
    result = Manifest.open(tmp_path).stages[f"{PHASE}/train"]["results"]
    assert (result["steps"], result["stopped"]) == (8, f"step 8: {ALIKE}; {ILLEGAL}")
    evaluations = (tmp_path / PHASE / "evaluations.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in evaluations} == {8}  # of the model that the run ends with
    record = json.loads((tmp_path / PHASE / "warnings.jsonl").read_text())
    assert record == {
        "step": 8,
        "warnings": {"kuhn_poker/player_0/no_advantage": ALIKE, "kuhn_poker/player_0/illegal": ILLEGAL},
    }
    assert (tmp_path / PHASE / "checkpoint" / "config.json").is_file() and not (tmp_path / PHASE / "state").exists()
    assert Manifest.open(tmp_path).stages["arena"]["status"] == "done"


def test_a_run_that_stops_before_its_first_snapshot_has_an_arena_all_the_same(
    model_folder: Path, tmp_path: Path
) -> None:
    """The mixture of its snapshots is then its last policy alone."""
    options = "reinforce.stop_on_collapse=true", "reinforce.snapshot_every=9"
    run_here(config_for(model_folder, *STEPS, *options, 'arena.entrants=["mixture:reinforce", reinforce]'), tmp_path)
    assert steps_of(tmp_path) == [*range(1, 9)]
    arena = json.loads((tmp_path / "arena" / "results.json").read_text())
    assert [row["points"] for row in arena["ratings"]] == [0.0, 0.0]  # both play alike
    one, other = (arena["exact_metrics"][name] for name in ("mixture:reinforce", "reinforce"))
    assert one == pytest.approx(other)


@pytest.mark.parametrize(
    ("entropy_coef", "more"),
    [(0.01, []), (0.0, []), (0.0, ["reinforce.kl_coef=0.1"]), (0.0, ["reinforce.kl_coef=0.1", FOLLOWS])],
)
def test_games_that_all_end_alike_have_no_advantage(
    model_folder: Path, tmp_path: Path, entropy_coef: float, more: list[str]
) -> None:
    """Every game costs 2, and so is the baseline from the first step on. Without a bonus nothing is trained then: the
    KL of a policy to itself has no gradient. The run is only warned.
    """
    options = "reinforce.steps=9", f"reinforce.entropy_coef={entropy_coef}", *more
    train_here(config_for(model_folder, *STEPS, *options), tmp_path)
    before, after = load_file(model_folder / "model.safetensors"), weights_of(tmp_path)
    assert all(torch.equal(before[name], weight) for name, weight in after.items()) == (entropy_coef == 0)
    assert steps_of(tmp_path) == [*range(1, 10)]
    assert "stopped" not in Manifest.open(tmp_path).stages[f"{PHASE}/train"]["results"]
    rows = [json.loads(line) for line in (tmp_path / PHASE / "metrics.jsonl").read_text().splitlines()]
    assert {row["kuhn_poker/player_0/no_advantage"] for row in rows} == {1.0}
    assert all(row["entropy"] > 0 for row in rows)  # also where nothing is trained
    assert {row["learning_rate"] is None for row in rows} == {entropy_coef == 0}
    assert {row.get("kl", 0.0) for row in rows} == {0.0}
    assert {row["kuhn_poker/player_0/no_advantage_samples"] for row in rows} == {2}
    assert {row["tokens"] > 0 for row in rows} == {entropy_coef > 0}
    [warned] = (tmp_path / PHASE / "warnings.jsonl").read_text().splitlines()  # the sign stays, one row is written
    assert "kuhn_poker/player_0/no_advantage" in json.loads(warned)["warnings"]


def test_a_bonus_that_has_fallen_to_0_trains_nothing(model_folder: Path, tmp_path: Path) -> None:
    """AdamW would go on by its momentum. How far the policy is from its reference is still measured."""
    options = "reinforce.steps=4", "reinforce.entropy_coef=0.01", "reinforce.entropy_coef_end=0"
    options += "reinforce.kl_coef=0.1", "reinforce.kl_coef_end=0"
    train_here(config_for(model_folder, *STEPS, *options, "reinforce.anneal_steps=3"), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / PHASE / "metrics.jsonl").read_text().splitlines()]
    assert [row["tokens"] > 0 for row in rows] == [True, True, False, False]
    assert [row["learning_rate"] is None for row in rows] == [False, False, True, True]
    assert [row["kl"] > 0 for row in rows] == [False, True, True, True]


def test_a_resumed_run_watches_on_from_its_step(tmp_path: Path) -> None:
    rows = [{"step": step, "kl": 0.9 if step > 8 else 0.0} for step in range(1, 15)]

    def watch(last: int, *more: int) -> list[int]:
        """Resume after step ``last``, take further steps, and return the steps at which signs have changed by now."""
        logged = rows[:last]
        watched = CollapseWatch(tmp_path, logged, last)
        for step in more:
            watched.look(rows[step - 1])
            logged.append(rows[step - 1])
        return [json.loads(line)["step"] for line in (tmp_path / "warnings.jsonl").read_text().splitlines()]

    assert watch(0, *range(1, 13)) == [11]  # the mean of 8 to 11 is 0.675, of 7 to 10 it is 0.45
    assert watch(9) == []  # its row is dropped with the steps after 9
    assert watch(9, 10, 11) == [11]
    assert watch(11, 12, 13) == [11]  # the sign was there before, and still is
