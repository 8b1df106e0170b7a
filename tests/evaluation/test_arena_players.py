"""An arena between a model folder, a LoRA adapter over it and an endpoint, by the command line; resumed, and widened by
one player.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from spag.cli import main
from spag.models.loading import load_model

pytestmark = pytest.mark.slow

QUICK = (
    "model.dtype=float32",
    "arena.tasks=2",
    "arena.sampling.max_new_tokens=4",
    "game.max_turns=1",
    "game.words=shipped",
)


@pytest.fixture
def adapter(model_folder: Path, tmp_path: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(load_model(str(model_folder), dtype="float32"), LoraConfig(r=2, target_modules="all-linear"))
    model.peft_config["default"].base_model_name_or_path = str(model_folder)
    model.save_pretrained(tmp_path / "adapter")
    for file in model_folder.glob("token*"):
        (tmp_path / "adapter" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "adapter"


def test_any_players_meet_and_a_new_one_joins(
    model_folder: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "engines"))
    from openai_stub import Answer, StubServer, completion

    monkeypatch.setenv("OPENAI_API_KEY", "key")
    options = [part for setting in QUICK for part in ("--set", setting)]

    def arena(*players: str) -> str:
        result = CliRunner().invoke(
            main, ["arena", *players, "--no-constant", *options, "--output", str(tmp_path / "arena")]
        )
        assert result.exit_code == 0, result.output
        return result.output

    with StubServer(lambda call: Answer(completion("Hello there."))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        arena(f"base={model_folder}", f"tuned={adapter}")
        first = (tmp_path / "arena" / "episodes.jsonl").read_bytes()
        text = arena("openai:talker", f"base={model_folder}", f"tuned={adapter}")
    assert (tmp_path / "arena" / "episodes.jsonl").read_bytes().startswith(first)
    results = json.loads((tmp_path / "arena" / "results.json").read_text())
    assert [row["name"] for row in results["ratings"]] == ["openai:talker", "base", "tuned"]
    assert [(cell["players"][0], cell["games"]) for cell in results["matrix"]] == [
        (name, 2) for name in ("openai:talker", "base", "tuned") for _ in range(2)
    ]
    assert len(results["paired"]) == 15  # of rewards in both roles, and of three outcomes
    for title in ("As attacker", "Head to head, in both roles", "Elo rating", "on the same tasks"):
        assert title in text


@pytest.mark.parametrize("temperature", [0, 1])
def test_games_that_repeat_each_other_are_named(model_folder: Path, tmp_path: Path, temperature: float) -> None:
    """Nim's held-out heaps are few. Bots may draw."""
    options = ("--game", "nim", "--set", f"arena.sampling.temperature={temperature}", "--set", "arena.tasks=20")
    options += ("--set", "arena.sampling.max_new_tokens=4", "--set", "model.dtype=float32")
    for player in (f"base={model_folder}", "bot:perfect"):
        folder = str(tmp_path / player.partition("=")[0])
        result = CliRunner().invoke(main, ["arena", player, "bot:constant", *options, "--output", folder])
        is_named = "arena: 14 of 20 tasks are repeats" in result.output
        assert is_named == (temperature == 0 and player != "bot:perfect"), result.output
