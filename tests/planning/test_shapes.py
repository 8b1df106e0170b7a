"""Parameters counted by arithmetic equal those of models made from the same config, and published counts."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import peft
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from spag.algorithms.settings import LoraConfig
from spag.config.files import load_config
from spag.config.presets import PRESETS
from spag.core.errors import ModelError
from spag.planning.specs import KNOWN_SHAPES, read_shape, shape_of

SMALL = {
    "vocab_size": 1000,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
CONFIGS = [
    LlamaConfig(**SMALL),
    LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    LlamaConfig(**SMALL, num_key_value_heads=2, head_dim=32, attention_bias=True, mlp_bias=True),
    MistralConfig(**SMALL, num_key_value_heads=3),
    Qwen2Config(**SMALL, num_key_value_heads=2),
    Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True),
    SmolLM3Config(**SMALL, num_key_value_heads=2, pad_token_id=0),
]


def on_meta(config: PretrainedConfig) -> torch.nn.Module:
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)
    return model


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_parameters_are_those_of_the_model(config: PretrainedConfig) -> None:
    assert shape_of(config, "made up").parameters == sum(
        parameter.numel() for parameter in on_meta(config).parameters()
    )


def test_the_presets_models_have_their_published_counts() -> None:
    counts = {shape.name: shape.parameters for shape in KNOWN_SHAPES.values()}
    assert counts["meta-llama/Llama-2-7b-hf"] == 6_738_415_616
    # embedding and head 2 x 125,696 x 5120; a layer 4 x 5120^2 + 3 x 5120 x 13,696 + 2 x 5120; the last norm 5120
    assert counts["baichuan-inc/Baichuan2-13B-Base"] == 13_896_668_160 == pytest.approx(13.9e9, rel=1e-3)
    assert counts["Qwen/Qwen3-1.7B"] == 1_720_574_976
    assert counts["Qwen/Qwen3-4B"] == counts["Qwen/Qwen3-4B-Base"] == 4_022_468_096
    assert counts["smollm2-135m"] == 134_515_008


def test_every_preset_can_be_planned_offline() -> None:
    needing = {"textarena-mix"} if find_spec("textarena") else {"textarena-mix", "spiral-qwen3-4b"}
    for name in set(PRESETS) - needing:  # these need an extra: tests/adapters/
        assert load_config(name).model.name in KNOWN_SHAPES


def test_known_shapes_are_those_that_transformers_configs_give() -> None:
    llama = LlamaConfig(vocab_size=32_000, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32,
        num_attention_heads=32,
                        max_position_embeddings=4096)  # fmt: skip
    qwen = Qwen3Config(vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
        num_attention_heads=16,
                       num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
                       max_position_embeddings=40_960)  # fmt: skip
    for config, name in ((llama, "meta-llama/Llama-2-7b-hf"), (qwen, "Qwen/Qwen3-1.7B")):
        assert shape_of(config, name) == KNOWN_SHAPES[name]
        assert sum(parameter.numel() for parameter in on_meta(config).parameters()) == KNOWN_SHAPES[name].parameters


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
def test_an_adapter_has_the_parameters_that_peft_gives_it(targets: str | list[str]) -> None:
    config = LlamaConfig(**SMALL, num_key_value_heads=2)
    adapted = peft.get_peft_model(on_meta(config), peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets))
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert shape_of(config, "made up").adapter(LoraConfig(rank=4, target_modules=targets)) == trained


def test_cache_bytes_are_layers_times_keys_and_values() -> None:
    assert KNOWN_SHAPES["meta-llama/Llama-2-7b-hf"].kv_bytes(2) == 2 * 32 * 4096 * 2 == 524_288  # half a MiB a token


def test_a_folder_with_a_config_alone_is_enough(tmp_path: Path) -> None:
    config = CONFIGS[5]
    config.save_pretrained(tmp_path)
    assert read_shape(str(tmp_path)).parameters == shape_of(config, "").parameters


def test_adapters_have_the_shape_of_their_base(tmp_path: Path) -> None:
    base, adapter, roles = (tmp_path / name for name in ("base", "adapter", "roles"))
    CONFIGS[5].save_pretrained(base)
    for folder in (adapter, roles / "nim-first"):
        peft.LoraConfig(task_type="CAUSAL_LM", r=4, base_model_name_or_path=str(base)).save_pretrained(folder)
    (roles / "roles.json").write_text(json.dumps({"nim/first": "nim-first"}))
    for folder in (adapter, roles):
        assert read_shape(str(folder)) == replace(read_shape(str(base)), name=str(folder))


def test_a_model_that_cannot_be_read_is_one_line_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^org/unknown: its config cannot be read .*--set model.name=FOLDER") as error:
        read_shape("org/unknown")
    assert "\n" not in str(error.value)
    for family in ("gpt2", "mamba"):  # a mamba has no attention heads
        (tmp_path / "config.json").write_text(f'{{"model_type": "{family}"}}')
        with pytest.raises(ModelError, match=f"a plan of a {family} model cannot be made"):
            read_shape(str(tmp_path))
