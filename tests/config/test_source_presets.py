"""Presets with published settings: their tables in docs/presets.md, and a step of each with a tiny Qwen3 on the CPU."""

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from spag.config.files import load_config
from spag.config.presets import preset_text
from spag.config.reading import parse_yaml
from spag.config.schema import RunConfig
from spag.core.progress import SilentReporter
from spag.models.loading import load_tokenizer
from spag.planning.estimate import estimate_run
from spag.planning.plan import Planner
from spag.planning.specs import Device, find_gpu, read_shape
from spag.runs.execute import run
from spag.storage.episodes import read_episodes
from tiny_model import make_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("counted_once")]

PAGE = Path(__file__).parents[2] / "docs" / "presets.md"
GPUS = {
    "spiral-qwen3-4b": ("H100", 8),
    "marshal-qwen3-4b": ("H100", 8),
    "taboo-qwen3-1.7b": ("A100-80", 1),
    "taboo-qwen3-1.7b-lora": ("RTX-4090", 1),
}
NEEDS = pytest.mark.skipif(find_spec("textarena") is None, reason="TextArena is not installed")
PRESETS = [pytest.param(name, marks=NEEDS) if name.startswith("spiral") else name for name in GPUS]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def options(name: str) -> list[str]:
    """Return the options with values that a preset's table has, as ``--set`` takes them."""
    [section] = re.findall(
        rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    rows = [re.split(r"(?<!\\) \| ", row.strip("| ")) for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)[2:]]
    found = [cell for row in rows for cell in re.findall(r"`([a-z_.0-9]+=[^`]*)`", " | ".join(row))]
    assert len(found) == len(set(found)) >= 4
    return found


def given(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the options that a preset's YAML sets; a phase goes by its algorithm."""
    if path == "phases":
        for phase in value:
            own = {key: one for key, one in phase.items() if key != "algorithm"}
            yield from given(own, phase["algorithm"])
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from given(one, f"{path}.{key}".removeprefix("."))
    else:
        yield path


@pytest.mark.parametrize("name", PRESETS)
def test_the_values_of_the_table_are_those_of_the_preset(name: str) -> None:
    preset = load_config(name)
    for option in options(name):
        assert load_config(name, [option]) == preset, option


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_has_every_setting_of_the_preset(name: str) -> None:
    named = options(name) + (options("taboo-qwen3-1.7b") if name.endswith("-lora") else [])
    listed = [option.partition("=")[0] for option in named]
    missing = [
        path
        for path in given(parse_yaml(preset_text(name), name))
        if not any(path == one or path.startswith(f"{one}.") for one in listed)
    ]
    assert missing == []


@NEEDS
def test_a_wrong_value_in_a_table_would_be_seen() -> None:
    assert load_config("spiral-qwen3-4b", ["reinforce.epochs=1"]) != load_config("spiral-qwen3-4b")
    assert "engine.memory" in set(given(parse_yaml(preset_text("spiral-qwen3-4b"), "spiral")))


def planned(name: str, gpu: Device, count: int) -> Planner:
    config = load_config(name)
    return Planner(config, read_shape(config.model.name), gpu, count)


def test_full_training_does_not_fit_the_adapters_gpu() -> None:
    stages = planned("taboo-qwen3-1.7b", find_gpu("RTX-4090"), 1).stages
    assert any(stage.problems for stage in stages)


@pytest.fixture(scope="module")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Qwen3 with a byte-level tokenizer, Qwen3's marks and a template that knows thinking."""
    folder = make_model(tmp_path_factory.mktemp("model") / "qwen")
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens(["<think>", "</think>", "<|im_start|>", "<|im_end|>"])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=16, bos_token_id=0, eos_token_id=1, pad_token_id=1,
        initializer_range=0.1, tie_word_embeddings=True, **shape,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def tiny(name: str, model: Path) -> RunConfig:
    """Return a preset with one step of four games of a few tokens, by a tiny model."""
    algorithm = load_config(name).phases[0].algorithm
    thinking = {"enabled": True, "max_tokens": 6}
    changes = {
        "model.name": str(model), "model.device": "cpu", "model.dtype": "float32", "engine.concurrency": 8,
        f"{algorithm}.steps": 1, f"{algorithm}.games": 4, f"{algorithm}.minibatches": 1,
        f"{algorithm}.parallel": "replicas", f"{algorithm}.evaluate_every": None, f"{algorithm}.warmup_ratio": 0,
        f"{algorithm}.sampling.max_new_tokens": 4, f"{algorithm}.sampling.thinking": thinking,
        f"{algorithm}.entropy_coef": 0.01,  # so that a step of games that all end alike has a gradient
        "arena.tasks": 1, **({"game.name": "kuhn_poker"} if algorithm == "turnwise" else {}),
        "arena.sampling.max_new_tokens": 4, "arena.sampling.thinking": thinking,
    }  # fmt: skip
    if name.startswith("taboo"):
        changes |= {"game.words": "shipped", "game.top_words": 2000, "game.max_turns": 1}
    return load_config(name, [f"{option}={json.dumps(value)}" for option, value in changes.items()])


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_with_a_tiny_qwen3(name: str, tiny_qwen: Path, tmp_path: Path) -> None:
    config = tiny(name, tiny_qwen)
    dry = estimate_run(config, tmp_path, SilentReporter())
    assert dry.doubts == [] and {stage.state for stage in dry.stages} == {"due"}
    run(config, tmp_path, SilentReporter())
    [phase] = [path for path in tmp_path.iterdir() if path.name.startswith("1-")]
    [row] = [json.loads(line) for line in (phase / "metrics.jsonl").read_text("utf-8").splitlines()]
    played = list(read_episodes(phase / "episodes" / "step-00001.jsonl"))
    assert len(played) == 4 and row["grad_norm"] > 0
    assert all(len(said.token_ids or ()) <= 6 + 4 for one in played for said in one.history)
    assert {one.game for one in played} == {game.name for game, _ in config.phases[0].mix(config.game)}
    assert (phase / "checkpoint").is_dir() and (tmp_path / "arena" / "results.json").is_file()
