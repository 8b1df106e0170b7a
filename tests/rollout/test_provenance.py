"""A file of games holds games of one kind: the same players, sampling, prompts and game settings, or the call is
refused and says why.
"""

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import BPE

from spag.cli import main
from spag.config.files import parse_config
from spag.config.schema import EngineConfig, ModelConfig, RunConfig
from spag.core.episodes import Episode
from spag.core.progress import Reporter, SilentReporter
from spag.engines.base import Engine, Request
from spag.engines.players import identity_of
from spag.engines.scripted import ScriptedEngine
from spag.models import loading
from spag.models.identity import weights_digest
from spag.rollout import matches as rollout
from spag.rollout.matches import PlaySetup
from spag.rollout.provenance import played_dtype
from spag.runs import arena
from spag.runs.stage import Run
from spag.storage import store
from spag.storage.episodes import read_episodes
from spag.storage.manifest import Manifest
from spag.storage.store import file_digest

pytestmark = pytest.mark.slow

LINES = ["Tell me about your day.", "I know the word! It is `river`!", "I had bread on the train.", "No idea."]
PROMPTS = {
    "rules": ["Rules, {max_turns} turns."],
    "instructions": {"attacker": "Word: {target_word}.", "defender": "Defend."},
}


def chatter(request: Request) -> str:
    return random.Random(request.seed).choice(LINES)


class Asked(list[str]):
    """The models that were opened, in order."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Scripted engines in the place of all models that commands open."""
    names, setup_of = Asked(), PlaySetup.of

    def scripted(models: Sequence[ModelConfig], engine: EngineConfig, *_: object) -> list[Engine]:
        names.extend(model.name for model in models)
        return [ScriptedEngine(chatter, concurrency=engine.concurrency)] * len(models)

    def scripted_setup(config: RunConfig, reporter: Reporter) -> PlaySetup:
        return setup_of(config, reporter, scripted)

    monkeypatch.setattr(PlaySetup, "of", scripted_setup)
    return names


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with two models (of which nothing but the bytes matters), words and prompts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    make_model(Path("one"), b"weights of one")
    make_model(Path("two"), b"weights of two")
    Path("words.txt").write_text("bread\npiano\ngarden\n")
    Path("prompts.json").write_text(json.dumps(PROMPTS))


def make_model(folder: Path, weights: bytes) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(weights)
    Tokenizer(BPE()).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")


def retrain(folder: str) -> None:
    """Other weights under the same path, with the size and the time of the old ones."""
    file = Path(folder) / "model.safetensors"
    before = file.stat()
    file.write_bytes(file.read_bytes()[:-3] + b"new")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def spag(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
    return result


def overrides(*pairs: str) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


USUAL = ("model.dtype=float32", "game.prompts=prompts.json", "game.words=words.txt")


def play_games(*more: str, model: str = "one", status: int = 0) -> str:
    return spag(
        "play", model, *overrides(*USUAL), "--count", "2", "--output", "games.jsonl", *more, status=status
    ).output


def rows(path: str = "games.jsonl") -> list[Episode]:
    return list(read_episodes(path))


def test_a_row_says_who_played_it_and_how(opened: Asked) -> None:
    play_games()
    for episode in rows():
        assert episode.settings == {
            "max_turns": 5, "judge": "strict", "stop": "judged", "language": "en",
            "prompts": file_digest(Path("prompts.json")), "words": file_digest(Path("words.txt")), "top_words": 50_000,
        }  # fmt: skip
        identity = episode.players["attacker"].identity
        assert identity is not None
        assert identity | {"weights": ""} == {"weights": "", "dtype": "float32", "prompt_style": "plain"}
        assert len(identity["weights"]) == 16
        assert episode.players["attacker"] == episode.players["defender"]


def test_games_of_a_cluster_have_the_same_record(opened: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    play_games()
    here = {episode.id: episode for episode in rows()}
    # the nodes return games without a record, as engines here do
    monkeypatch.setattr(rollout, "_play_on_cluster", lambda stack, *about: rollout._play_here(*about))
    Path("games.jsonl").unlink()
    play_games("--ray", "local")
    assert {episode.id: episode for episode in rows()} == here


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--seed", "5"], "seed was "),
        (["--testing"], "attacker.temperature was 1.2, is 0.0, defender.temperature was 1.2, is 0.0;"),
        (overrides("spag.sampling.top_k=50"), ": attacker.top_k was 0, is 50, defender.top_k was 0, is 50;"),
        (overrides("model.dtype=bfloat16"), "attacker.dtype was 'float32', is 'bfloat16'"),
        (overrides("model.prompt_style=chat"), "attacker.prompt_style was 'plain', is 'chat'"),
        (overrides("game.judge=paper"), ": game.judge was 'strict', is 'paper';"),
        (overrides("game.max_turns=3"), ": game.max_turns was 5, is 3, task.max_turns was 5, is 3;"),
        (overrides("game.prompts=null"), ": game.prompts was '"),
        (["two"], ": defender.weights was '"),
        (
            ["openai:talker"],
            "defender.endpoint was None, is 'https://api.openai.com/v1', ",
        ),
    ],
)
def test_games_played_otherwise_are_refused_by_name(opened: Asked, change: list[str], message: str) -> None:
    play_games()
    before = Path("games.jsonl").read_bytes()
    opened.clear()
    said = play_games(*change, status=2)
    assert said.startswith("error: games.jsonl: ")
    assert said.count("\n") == 1
    assert message in said
    assert said.rstrip().endswith("; choose another --output, or replay them with --force")
    assert Path("games.jsonl").read_bytes() == before
    assert not opened


def test_games_that_are_not_asked_for_are_refused(opened: Asked) -> None:
    play_games(*overrides("spag.repeats=2"))
    said = play_games(status=2)
    assert "2 of its 4 games differ from the requested games, the first '" in said
    assert "-1': not one of this call's tasks, repeats or pairings; " in said
    assert "2 games in the file, 0 played now" in play_games("--force")
    assert "4 games in the file, 2 played now" in play_games(*overrides("spag.repeats=2"))


def test_a_file_that_is_called_like_a_setting_changes_nothing(opened: Asked) -> None:
    shipped = overrides("game.words=shipped", "game.prompts=null")
    play_games(*shipped)
    before = rows()[0].settings
    assert before is not None and (before["words"], before["language"], before["stop"]) == ("shipped", "en", "judged")
    for name in ("shipped", "en", "judged", "strict", "adversarial_taboo"):
        Path(name).write_text("no list of words\n")
    assert "2 games in the file, 0 played now" in play_games(*shipped)
    for words, files in (("shipped", {}), ("words.txt", {"words": file_digest(Path("words.txt"))})):
        config = parse_config(f"game: {{words: {words}}}", "test")
        state = Run(config, Path("run"), Manifest(Path("run")), PlaySetup.of(config, SilentReporter()))
        assert state.settings("game")["files"] == files


def test_other_prompts_under_the_same_name_are_refused(opened: Asked) -> None:
    play_games()
    Path("prompts.json").write_text(json.dumps({**PROMPTS, "rules": ["Other rules."]}))
    assert ": game.prompts was '" in play_games(status=2)


def test_another_model_under_the_same_path_is_refused_and_a_copy_is_not(opened: Asked) -> None:
    play_games()
    shutil.copytree("one", "copy")
    assert "2 games in the file, 0 played now" in play_games(model="copy")
    (Path("copy") / "README.md").write_text("About it.")
    assert "2 games in the file, 0 played now" in play_games(model="copy")
    retrain("one")
    assert "2 of its 2 games differ from the requested games, the first '" in (said := play_games(status=2))
    assert "attacker.weights was '" in said


def test_forced_games_are_those_of_a_new_file(opened: Asked) -> None:
    play_games()
    retrain("one")
    assert "2 games in the file, 2 played now" in play_games("--force")
    forced = {episode.id: episode for episode in rows()}
    assert len(forced) == 2
    Path("games.jsonl").unlink()
    play_games()
    assert {episode.id: episode for episode in rows()} == forced
    assert "2 games in the file, 0 played now" in play_games("--force")  # nothing differs: nothing is played again


def test_an_arena_plays_the_retrained_model_again_and_nobody_else(
    opened: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []

    def score(policies: arena.Policies, *_: Any) -> dict[str, dict[str, float]]:  # without loading the models
        scored.extend(policies)
        return {name: {"exploitability": 0.5, "legal_mass": float(len(scored))} for name in policies}

    monkeypatch.setattr(arena, "exact_metrics", score)
    common = [
        "arena",
        "a=one",
        "b=two",
        "bot:random",
        *overrides("game.name=kuhn_poker", "arena.tasks=2", "model.dtype=float32"),
    ]
    common += ["--no-constant", "--output", "arena"]
    spag(*common)
    before = {episode.id: episode for episode in rows("arena/episodes.jsonl")}
    assert len(before) == 3 * 2 * 2  # pairs, role assignments, deals
    results = json.loads(Path("arena/results.json").read_text())
    assert scored == ["a", "b"] == list(results["exact_metrics"])
    opened.clear()
    spag(*common)
    assert not opened and json.loads(Path("arena/results.json").read_text()) == results
    retrain("two")
    said = spag(*common, status=2).output
    assert "8 of its 12 games differ from the requested games, the first 'a vs b: " in said
    assert "player_1.weights was '" in said
    spag(*common, "--force")
    after = {episode.id: episode for episode in rows("arena/episodes.jsonl")}
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} == {
        name for name in before if "b" in name.rpartition(":")[0].split(" vs ")
    }
    assert sorted(opened) == ["one", "two"]  # for a vs b and b vs a, and then for two's games with the bot
    assert scored == ["a", "b", "b"]


def test_other_prompts_of_the_game_itself_are_refused(opened: Asked) -> None:
    """As after an update of the package: settings name no file, so the first prompt is compared."""
    play_games(*overrides("game.prompts=null"))
    row = Path("games.jsonl")
    row.write_text(row.read_text().replace(rows()[0].history[0].prompt_digest or "", "0" * 12))
    assert "the hash of the first prompt was '000000000000', is '" in play_games(
        *overrides("game.prompts=null"), status=2
    )


def test_dtype_auto_stays_what_it_was(opened: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "fastest_dtype", lambda device: "bfloat16")
    assert played_dtype(Path("games.jsonl")) is None
    play_games(*overrides("model.dtype=auto"))
    assert played_dtype(Path("games.jsonl")) == "bfloat16"
    monkeypatch.setattr(loading, "fastest_dtype", lambda device: "float32")
    assert "2 games in the file, 0 played now" in play_games(*overrides("model.dtype=auto"))


def test_an_adapter_is_another_when_its_base_is() -> None:
    Path("adapter").mkdir()
    (Path("adapter") / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "base_model_name_or_path": "one", "r": 2}'
    )
    before = identity_of(ModelConfig(name="adapter"))
    assert before != identity_of(ModelConfig(name="one"))
    retrain("one")
    assert identity_of(ModelConfig(name="adapter")) != before


def test_endpoints_and_bots_are_known_by_address_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:secret@host:8000/v1/?key=secret")
    assert identity_of(ModelConfig(name="openai:m")) == {"endpoint": "http://host:8000/v1", "model": "m"}
    assert identity_of(ModelConfig(name="bot:random")) == {"bot": "random"}


def test_weights_that_are_never_read_do_not_count() -> None:
    before = weights_digest("one")
    (Path("one") / "pytorch_model.bin").write_bytes(b"pickle")
    (Path("one") / ".cache").write_bytes(b"")
    assert weights_digest("one") == before
    (Path("one") / "generation_config.json").write_text("{}")
    assert weights_digest("one") != before


def test_a_large_file_is_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """0123456789 in parts of 4 bytes: the hash of the hashes of 0123, 4567 and 89."""
    from hashlib import sha256

    monkeypatch.setattr(store, "_DIGEST_PART", 4)
    monkeypatch.setattr(store, "_DIGEST_BLOCK", 3)
    Path("data").write_bytes(b"0123456789")
    whole = sha256(b"".join(sha256(part).digest() for part in (b"0123", b"4567", b"89")))
    assert file_digest(Path("data")) == whole.hexdigest()[:16]
    Path("data").write_bytes(b"0123")
    assert file_digest(Path("data")) == sha256(b"0123").hexdigest()[:16]
    Path("data").write_bytes(b"")
    assert file_digest(Path("data")) == sha256(b"").hexdigest()[:16]
