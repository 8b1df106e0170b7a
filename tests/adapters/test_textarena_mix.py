"""The preset textarena-mix with two layers of the embedded model, in tiny settings: four games side by side, played and
trained.
"""

import json
from pathlib import Path

import pytest

from spag.config.files import load_config
from spag.core.progress import SilentReporter
from spag.games.registry import get
from spag.models.loading import load_model, load_tokenizer, save_model
from spag.runs.execute import run
from spag.storage.episodes import read_episodes

SHORT = {
    "adversarial_taboo": {"words": "shipped", "max_turns": 1},
    "textarena:KuhnPoker-v0": {"options": {"max_rounds": 1}, "max_utterances": 3},
    "textarena:SimpleNegotiation-v0": {"options": {"max_turns": 2}},
    "textarena:TicTacToe-v0": {"max_utterances": 3},
}


@pytest.fixture
def shallow(tmp_path: Path) -> Path:
    """The preset's model with 2 of its 30 layers: its tokens and its chat template, at a fraction of the time."""
    name = load_config("textarena-mix").model.name
    model = load_model(name, dtype="float32", device="cpu")
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:2], 2
    save_model(model, load_tokenizer(name), tmp_path / "shallow")
    return tmp_path / "shallow"


@pytest.mark.long
@pytest.mark.model
def test_a_few_steps_with_layers_of_the_embedded_model(shallow: Path, tmp_path: Path) -> None:
    preset = load_config("textarena-mix")
    assert [part["name"] for part in preset.phases[-1].settings.mix] == list(SHORT)
    mix = [{"name": name, **settings} for name, settings in SHORT.items()]
    tiny = {
        "reinforce.mix": mix, "reinforce.steps": 2, "reinforce.games": 4, "reinforce.warmup_ratio": 0,
        "reinforce.kl_coef": 0, "reinforce.entropy_coef": 0.01,  # one game of each: none has an advantage at first
        "reinforce.evaluate_every": None, "reinforce.sampling.max_new_tokens": 4, "arena.sampling.max_new_tokens": 4,
        "arena.tasks": 1, "game.max_turns": 1, "model.dtype": "float32", "model.device": "cpu",
        "model.name": str(shallow),
    }  # fmt: skip
    written = [f"{option}={json.dumps(value)}" for option, value in tiny.items()]
    tmp_path /= "run"
    run(load_config("textarena-mix", written), tmp_path, SilentReporter())
    metrics = [json.loads(line) for line in (tmp_path / "1-reinforce" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == [1, 2]
    for row in metrics:
        games = list(read_episodes(tmp_path / "1-reinforce" / "episodes" / f"step-{row['step']:05d}.jsonl"))
        assert sorted(episode.game for episode in games) == sorted(SHORT)
        assert row["samples"] == sum(len(episode.history) for episode in games) and row["grad_norm"] > 0
        for episode in games:
            game = get(episode.game, **(episode.settings or {}))
            assert game.replay(episode.task, episode.history).rewards == episode.rewards
            assert {f"{episode.game}/{role}/reward" for role in game.roles} <= row.keys()
    assert (tmp_path / "1-reinforce" / "checkpoint" / "model.safetensors").exists() and (
        tmp_path / "arena" / "results.json"
    ).exists()
