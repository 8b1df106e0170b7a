"""What made a model: the phases that led to it, and their games."""

from pathlib import Path
from typing import Any

import pytest

from spag.algorithms import SHIPPED
from spag.config.files import dump_config
from spag.config.schema import RunConfig
from spag.export.training import ancestry, phases_of, trained_games
from spag.runs.reading import RunFolder
from spag.storage.jsonfile import read_json
from spag.storage.store import write_json

PHASES = [
    {"algorithm": "imitation", "learning_rate": 5e-6},
    {"algorithm": "spag", "iterations": 2, "learning_rate": 2e-6, "opponents": {"self": 1, "./rival": 0.5}},
    {"algorithm": "reinforce", "steps": 8, "games": 12, "learning_rate": 3e-4, "baseline_decay": 1,
     "mix": [{"name": "kuhn_poker"}, {"name": "tic_tac_toe"}]},
    {"algorithm": "spag", "iterations": 1},
]  # fmt: skip
ABOUT = {"status": "done", "fingerprint": "0", "settings": {}, "seconds": 1.0}
RESULTS = {
    "1-imitation": {"outcomes": {"tie": 10, "defender_wins": 1_070}, "samples": {"attacker": 40, "defender": 900}},
    "2-spag/iteration-1": {"outcomes": {"tie": 7}, "samples": 5},  # an algorithm may not count by role
    "3-reinforce": {"steps": 7, "stopped": "step 7: one role wins"},
}


def run_of(folder: Path) -> RunFolder:
    stages = {f"{place}/train": {**ABOUT, "results": results} for place, results in RESULTS.items()}
    write_json(folder / "manifest.json", {"schema_version": 1, "measured": {}, "stages": stages})
    (folder / "config.yaml").write_text(dump_config(RunConfig.model_validate({"phases": PHASES})))
    return RunFolder(folder)


def learned(run: RunFolder, name: str) -> list[str]:
    return phases_of(ancestry(name, run), run)


def test_a_model_comes_from_the_phases_before_it(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert [model.name for model in ancestry("reinforce", run)] == ["imitation", "spag-2-1", "spag-2-2", "reinforce"]
    assert [said.split(" of ")[0] for said in learned(run, "spag-4-1")] == [
        "Imitation",
        "2 iterations",
        "7 online steps",
        "1 iteration",
    ]
    assert learned(run, "spag-2-1")[1].startswith("1 iteration of play") and ancestry("base", run) == []
    played = [[game.name for game in trained_games(ancestry(name, run))] for name in ("spag-2-2", "reinforce")]
    assert played == [["adversarial_taboo"], ["adversarial_taboo", "kuhn_poker", "tic_tac_toe"]]


def test_another_packages_algorithm_on_teacher_games_is_not_called_spags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHIPPED, "clone", "spag.algorithms.imitation:Imitation")  # any with TeacherSettings
    run = run_of(tmp_path)
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig.model_validate({"phases": [{"algorithm": "clone"}]})))
    assert learned(run, "clone") == ["The algorithm `clone`, from games shipped with spag: an unknown number of games"]


def test_data_and_methods_are_those_of_the_record(tmp_path: Path) -> None:
    assert learned(run_of(tmp_path), "reinforce") == [
        "Imitation of teacher games, the first stage of SPAG (Cheng et al., arXiv 2404.10642), from games shipped with "
        "spag: 1,080 games, 940 training samples of them",
        "2 iterations of play against `self`, `./rival`, rewards and offline RL, the method of SPAG (Cheng et al., "
        "arXiv 2404.10642): 7 games, 5 training samples of them for `spag-2-1`; an unknown number of games for "
        "`spag-2-2`",
        "7 online steps of 12 games against `self`, 84 games in all: REINFORCE without baselines, an ablation of "
        "SPIRAL (Liu et al., arXiv 2506.24119). It ended early, at a collapse warning: `step 7: one role wins`",
    ]


def test_games_are_those_that_were_played_where_training_did_not_count_them(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    manifest = read_json(tmp_path / "manifest.json", dict[str, Any])
    manifest["stages"]["2-spag/iteration-2/play"] = {**ABOUT, "results": {"games": 1_200, "outcomes": {"tie": 1_200}}}
    write_json(tmp_path / "manifest.json", manifest)
    assert learned(RunFolder(run.folder), "spag-2-2")[1].endswith("; 1,200 games for `spag-2-2`")
