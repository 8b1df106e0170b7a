"""A run whose policy breaks the rules in every game stops by itself, leaves a finished model, and goes on to the arena."""

import json
from pathlib import Path

import pytest
from tiny_run import config_for, run_here

from spag.core.manifest import Manifest

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
    run_here(config_for(model_folder, *STEPS), tmp_path)
    assert steps_of(tmp_path) == [*range(1, 11)]
    assert "stopped" not in Manifest.open(tmp_path).stages["online/train"]["results"]
    assert len((tmp_path / "online" / "warnings.jsonl").read_text().splitlines()) == 1  # the sign stays, the row is written once
