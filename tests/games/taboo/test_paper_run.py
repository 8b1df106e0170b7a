"""Runs of the paper's presets before they start: what they warn of, and upstream's file of samples as teacher play."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spag.cli import main
from spag.config.files import load_config
from spag.core.progress import SilentReporter
from spag.runs import execute
from spag.runs.execute import run
from spag.runs.reading import RunFolder
from spag.storage.episodes import read_samples

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("counted_once")]

TOO_FEW = "only the 492 shipped games"
ROWS = [  # as upstream's train_imitation_gpt4.json
    {"query": "The game. attacker:", "target": "Where do you swim?", "role": "attacker", "weight": 0.582},
    {"query": "The game. defender:", "target": "", "role": "defender", "weight": 3.552},
    {"query": "The game. defender:", "target": "I know the word! It is `sea`!", "role": "defender", "weight": 3.552},
]


@pytest.fixture
def gpt4(tmp_path: Path) -> Path:
    path = tmp_path / "train_imitation_gpt4.json"
    path.write_text(json.dumps(ROWS))
    return path


def spag(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def stopped(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("preset", ["llama2-7b", "llama2-7b-qlora"])
def test_a_run_on_the_shipped_games_warns_before_it_starts(
    preset: str, tmp_path: Path, gpt4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "run", stopped)
    alone = spag("run", preset, "--output", str(tmp_path / "run"))
    assert f"warning: imitation has {TOO_FEW}" in alone.output
    for said in ("gpt4_game_top30k_results.json", "train_imitation_gpt4.json", "--set imitation.episodes=[", "openai:"):
        assert said in alone.output
    assert TOO_FEW not in spag("run", preset, "--set", f"imitation.episodes=[{gpt4}]").output
    assert TOO_FEW not in spag("run", "demo", "--output", str(tmp_path / "demo")).output
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert TOO_FEW not in spag("run", preset, "--output", str(tmp_path / "run")).output  # it has started


def test_plan_and_dry_run_warn_too(tmp_path: Path, gpt4: Path, model_folder: Path) -> None:
    plan = ("plan", "llama2-7b", "--gpus", "8", "--gpu", "a100-80")
    assert TOO_FEW in spag(*plan).output
    assert TOO_FEW not in spag(*plan, "--set", f"imitation.episodes=[{gpt4}]").output
    settings = ("model.dtype=float32", "phases.0.parallel=replicas", "phases.1.parallel=replicas")
    options = [part for one in (f"model.name={model_folder}", *settings) for part in ("--set", one)]
    dry = spag("run", "llama2-7b", "--dry-run", "--output", str(tmp_path / "run"), *options)
    assert TOO_FEW in dry.output, dry.output


def test_a_run_imitates_upstreams_file_of_samples_with_its_weights(
    tmp_path: Path, gpt4: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("model.dtype=float32", "model.device=cpu", "imitation.parallel=replicas", "game.words=shipped")
    config = load_config("llama2-7b", [f"model.name={model_folder}", f"imitation.episodes=[{gpt4}]", *settings])
    config = config.model_copy(update={"phases": config.phases[:1]})
    monkeypatch.setattr(execute, "play_arena", _no_games)
    run(config, tmp_path / "run", SilentReporter())
    samples = list(read_samples(tmp_path / "run" / "1-imitation" / "samples.jsonl"))
    assert [(one.completion, one.role, one.weight) for one in samples] == [
        (row["target"], row["role"], row["weight"]) for row in ROWS if row["target"]
    ]
    assert [one.prompt for one in samples] == ["The game. attacker:", "The game. defender:"]
    [row] = (tmp_path / "run" / "1-imitation" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["loss_defender"] > 3 * json.loads(row)["loss_attacker"] > 0  # the weights count
    trained = RunFolder.open(tmp_path / "run")
    assert trained.trained_on_held_out is None  # samples name no task
    assert "does not record whether games on these tasks were trained on" in trained.held_out_doubt


def _no_games(folder: Path, *_: object, **__: object) -> dict[str, object]:
    folder.mkdir(parents=True)
    for name in ("episodes.jsonl", "results.json"):
        (folder / name).write_text("")
    return {"pairs": [], "completion_tokens": 0}
