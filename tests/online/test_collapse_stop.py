"""A run whose policy breaks the rules in every game stops by itself, leaves a finished model, and goes on to the arena."""

import json
from pathlib import Path

import pytest
from tiny_run import config_for, run_here

from spag.core.manifest import Manifest
from spag.runs.online import CollapseWatch

pytestmark = pytest.mark.slow
STEPS = "online.steps=10", "online.games=4", "online.evaluate_every=null", "arena.tasks=1"
SAYS = "player_0 of kuhn_poker: 100 % of games end with its breaking the rules, at first 100 %"


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "online" / "metrics.jsonl").read_text().splitlines()]


def test_a_collapse_ends_the_run_where_that_is_wanted(model_folder: Path, tmp_path: Path) -> None:
    run_here(config_for(model_folder, *STEPS, "online.stop_on_collapse=true", "online.overlap=true"), tmp_path)
    assert steps_of(tmp_path) == [*range(1, 9)]  # no sign is given before the 8th
    result = Manifest.open(tmp_path).stages["online/train"]["results"]
    assert (result["steps"], result["stopped"]) == (8, f"step 8: {SAYS}")
    record = json.loads((tmp_path / "online" / "warnings.jsonl").read_text())
    assert record == {"step": 8, "signs": {"kuhn_poker/player_0/illegal": SAYS}}
    assert (tmp_path / "online" / "checkpoint" / "config.json").is_file() and not (tmp_path / "online" / "state").exists()
    assert Manifest.open(tmp_path).stages["arena"]["status"] == "done"


def test_else_it_only_warns(model_folder: Path, tmp_path: Path) -> None:
    run_here(config_for(model_folder, *STEPS, "online.steps=9", "online.games=2"), tmp_path)
    assert steps_of(tmp_path) == [*range(1, 10)]
    assert "stopped" not in Manifest.open(tmp_path).stages["online/train"]["results"]
    assert len((tmp_path / "online" / "warnings.jsonl").read_text().splitlines()) == 1  # the sign stays, the row is written once


def test_what_is_left_of_a_baseline_is_no_advantage(model_folder: Path, tmp_path: Path) -> None:
    """After 120 games that all cost 2, the baseline is at 0.998 of that."""
    run_here(config_for(model_folder, *STEPS, "online.steps=8", "online.games=40"), tmp_path)
    shares = [
        json.loads(line)["kuhn_poker/player_0/no_advantage"] for line in (tmp_path / "online" / "metrics.jsonl").read_text().splitlines()
    ]
    assert shares[0] == 0.0 and set(shares[3:]) == {1.0}
    assert "kuhn_poker/player_0/no_advantage" in json.loads((tmp_path / "online" / "warnings.jsonl").read_text())["signs"]


def test_a_resumed_run_watches_on_from_its_step(tmp_path: Path) -> None:
    rows = [{"step": step, "kl": 0.9 if step > 8 else 0.0} for step in range(1, 15)]

    def watch(last: int, *more: int) -> list[int]:
        """Resume after step ``last``, take further steps, and return the steps at which signs have changed by now."""
        kept = [json.dumps(row) + "\n" for row in rows[:last]]
        (tmp_path / "metrics.jsonl").write_text("".join(kept))  # as MetricsLog leaves it
        watched = CollapseWatch(tmp_path, last)
        for step in more:
            watched.look(rows[step - 1])
        return [json.loads(line)["step"] for line in (tmp_path / "warnings.jsonl").read_text().splitlines()]

    assert watch(0, *range(1, 13)) == [11]  # the mean of 8 to 11 is 0.675, of 7 to 10 it is 0.45
    assert watch(9) == []  # its row is dropped with the steps after 9
    assert watch(9, 10, 11) == [11]
    assert watch(11, 12, 13) == [11]  # the sign was there before, and still is
