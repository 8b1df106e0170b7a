"""Steps of `group` and `turnwise` that are trained, interrupted and resumed: the same weights as without."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outside import install_variety
from spag.config.schema import GameConfig, ModelConfig, PhaseConfig
from spag.learning.job import TrainingJob
from spag.learning.metrics import TrainProgress
from spag.learning.worker import run_job

pytestmark = pytest.mark.slow
OPTIONS = {
    "steps": 2,
    "games": 12,
    "learning_rate": 1e-3,
    "micro_batch_size": 4,
    "sampling": {"max_new_tokens": 6, "min_new_tokens": 0},
    "evaluate_every": None,
    "save_steps": 1,
    "warmup_ratio": 0,
}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("variety", {"algorithm": "group", "group_size": 4}),
        ("nim", {"algorithm": "turnwise"}),  # whose rewards of illegal moves depend on the heap
    ],
)
def test_an_interrupted_step_gives_the_weights_of_no_interruption(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, game: str, options: dict[str, object]
) -> None:
    install_variety(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def job(name: str) -> TrainingJob:
        return TrainingJob(
            model=ModelConfig(dtype="float32", device="cpu"),
            phase=PhaseConfig.model_validate({**OPTIONS, **options}),
            game=GameConfig(name=game),
            start_from=str(model_folder),
            output=tmp_path / name,
            seed=3,
        )

    def copy(at: TrainProgress) -> None:
        """Keep the folder as it is after the second step's update, before its checkpoint."""
        if at.step == 2:
            shutil.copytree(tmp_path / "undisturbed", tmp_path / "interrupted")

    run_job(job("undisturbed"), copy)
    left = [path.name for path in (tmp_path / "interrupted" / "state").glob("checkpoint-*")]
    assert left == ["checkpoint-1"] and not (tmp_path / "interrupted" / "checkpoint").exists()
    seen: list[int] = []
    run_job(job("interrupted"), lambda at: seen.append(at.step))
    assert seen == [2]  # the first step is not done again
    start, one, two = (
        load_file(folder / "model.safetensors")
        for folder in (model_folder, tmp_path / "undisturbed" / "checkpoint", tmp_path / "interrupted" / "checkpoint")
    )
    for name, weight in one.items():
        assert torch.equal(two[name], weight), name
    assert max((one[name] - start[name]).abs().max().item() for name in one) > 1e-3  # both steps moved them
    for row in rows(tmp_path / "interrupted"):
        assert any(row.get(f"{game}/{role}/no_advantage", 1) < 1 for role in ("player_0", "player_1"))
