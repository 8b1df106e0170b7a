"""Snapshots of adapters that hold more than LoRA matrices: they load into an engine and hold no copy of the base."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError, ModelError
from spag.core.options import SamplingConfig
from spag.engines import opening
from spag.engines.base import Engine, Request
from spag.engines.transformers.engine import TransformersEngine
from spag.learning.start import trainable
from spag.models.loading import load_adapters, load_model, load_tokenizer, save_model
from spag.models.roles import adapter_name, read_roles, weights_of_adapter
from spag.models.saved import saved_weights
from tiny_model import make_model

ROLES = ["kuhn_poker/player_0", "kuhn_poker/player_1"]
KINDS = {
    "lora": {},
    "dora": {"use_dora": True},
    "biases": {"bias": "lora_only"},
    "lora's biases": {"lora_bias": True},
    "head": {"target_modules": ["q_proj", "lm_head"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "tokens": {"trainable_token_indices": [3, 4]},
    "whole head": {"modules_to_save": ["lm_head"]},
    "whole layers": {"modules_to_save": ["mlp"]},
}
CHANGING = {"pissa": {"init_lora_weights": "pissa"}, "repeated": {"layer_replication": [(0, 1), (0, 1)]}}
"""Adapters that change their base model when they are loaded."""
pytestmark = pytest.mark.filterwarnings(
    "ignore:Model has `tie_word_embeddings=True`",
    "ignore:Setting `save_embedding",
    "ignore:`lora_bias=True`",
    "ignore:.*LoRA tensor.s. have invalid shape",  # of biases, which peft takes for incomplete matrices
)


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base"), tie_word_embeddings=request.param)


def adapted(base: Path, *names: str, **options: Any) -> PeftModel:
    config = LoraConfig(**{"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj"], **options})
    first, *others = names or ("default",)
    model = get_peft_model(load_model(str(base), dtype="float32", device="cpu"), config, adapter_name=first)
    for name in others:
        model.add_adapter(name, config)
    return model


def randomised(weights: dict[str, torch.nn.Parameter]) -> None:
    for weight in weights.values():
        torch.nn.init.normal_(weight)


def trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "by_peft"), [*((kind, False) for kind in KINDS), ("head", True), ("embedding", True)])
def test_a_snapshot_holds_what_is_trained(base: Path, tmp_path: Path, kind: str, by_peft: bool) -> None:
    tokenizer, model = load_tokenizer(str(base)), adapted(base, **KINDS[kind])
    save_model(model, tokenizer, tmp_path / "start")
    randomised(trained(model))
    if by_peft:  # as before, with the base model's embeddings beside an adapter for them
        model.save_pretrained(tmp_path / "snapshot")
    else:
        save_model(model, tokenizer, tmp_path / "snapshot")
        files = load_file(tmp_path / "snapshot" / "adapter_model.safetensors")
        assert len(files) == len(trained(model))
    found, own = saved_weights(tmp_path / "snapshot"), trained(model)
    assert found.keys() >= own.keys()
    assert all(torch.equal(found[name], weight) for name, weight in own.items())
    played = load_model(str(tmp_path / "start"), dtype="float32", device="cpu")
    TransformersEngine(played, tokenizer).update_weights(found)
    whole = played.state_dict()
    assert all(torch.equal(whole[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "head", "embedding"])
def test_so_does_one_with_an_adapter_for_each_role(base: Path, tmp_path: Path, kind: str) -> None:
    names = [adapter_name(role) for role in ROLES]
    model = adapted(base, *names, **KINDS[kind])
    own = {name: weight for name, weight in model.named_parameters() if any(f".{one}" in name for one in names)}
    randomised(own)
    save_model(model, load_tokenizer(str(base)), tmp_path / "snapshot", roles=ROLES)
    found = saved_weights(tmp_path / "snapshot")
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], weight) for name, weight in own.items())
    parts = [weights_of_adapter(found, name) for name in names]
    assert parts[0].keys() == parts[1].keys() == trained(adapted(base, **KINDS[kind])).keys()
    folders = read_roles(str(tmp_path / "snapshot")) or {}
    loaded = load_adapters({adapter_name(role): folder for role, folder in folders.items()}, dtype="float32")
    assert all(torch.equal(dict(loaded.named_parameters())[name], weight) for name, weight in own.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "head", "embedding"])
def test_an_adapter_that_came_with_embeddings_is_saved_with_them(base: Path, tmp_path: Path, kind: str) -> None:
    model, tokenizer = adapted(base, **KINDS[kind]), load_tokenizer(str(base))
    with torch.no_grad():
        model.get_base_model().get_input_embeddings().weight.mul_(2)
        model.get_base_model().get_output_embeddings().weight.mul_(2)
    model.save_pretrained(tmp_path / "other", save_embedding_layers=True)
    loaded = load_model(str(tmp_path / "other"), dtype="float32", device="cpu")
    save_model(loaded, tokenizer, tmp_path / "again")
    again = load_model(str(tmp_path / "again"), dtype="float32", device="cpu").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in loaded.state_dict().items())


def first_token(engine: Engine) -> tuple[float, ...] | None:
    engine.submit(Request("0", "hello", SamplingConfig(temperature=0, max_new_tokens=1), seed=0))
    [completion] = engine.poll()
    return completion.logprobs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "misfit"),
    [
        ("biases", "lora's"),
        ("lora's biases", "lora_bias"),
        ("tokens", "lora's"),
        ("head", ""),
        ("lora", ""),
        ("pissa", "base"),
        ("repeated", "base"),
    ],
)
def test_what_an_adapter_has_beside_lora_is_its_own(tmp_path: Path, kind: str, misfit: str) -> None:
    base = make_model(tmp_path / "base", attention_bias=True)
    folders = {one: tmp_path / one for one in ("lora", "head", kind)}
    for one, folder in folders.items():
        model = adapted(base, **(KINDS | CHANGING)[one])
        randomised(trained(model))
        if one == "head":
            with torch.no_grad():
                model.get_base_model().get_output_embeddings().weight.mul_(2)
        model.save_pretrained(folder)
        load_tokenizer(str(base)).save_pretrained(folder)
    models = [ModelConfig(name=str(folder), dtype="float32", device="cpu") for folder in folders.values()]
    engine = EngineConfig(backend="transformers", concurrency=2)
    alone = [first_token(opening.open_model(model, engine)) for model in models]
    assert [first_token(one) for one in opening.open_models(models[::-1], engine)] == alone[::-1]
    assert misfit in opening._misfit(str(folders[kind])).lower()


@pytest.mark.slow
def test_shared_training_refuses_an_adapter_that_came_with_embeddings(base: Path, tmp_path: Path) -> None:
    """Shards are gathered without what is not trained."""
    adapted(base).save_pretrained(tmp_path, save_embedding_layers=True)
    load_tokenizer(str(base)).save_pretrained(tmp_path)
    start = ModelConfig(name=str(tmp_path), dtype="float32")
    options: dict[str, Any] = {"accelerator": Accelerator(cpu=True), "seed": 0, "longest": 100, "roles": {}}
    options["lora"] = None
    with pytest.raises(ConfigError, match=r"this adapter has its own embeddings.*; set parallel=replicas"):
        trainable(start, **options, sharded=True)
    trainable(start, **options, sharded=False)


@pytest.mark.slow
def test_every_adapter_of_a_model_is_checked_for_broken_weights(base: Path, tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("a", "b")}
    for name, folder in folders.items():
        model = adapted(base, **KINDS["embedding"])
        if name == "b":
            next(weight for part, weight in trained(model).items() if "lora_embedding_A" in part).data[0, 0] = torch.nan
        model.save_pretrained(folder, save_embedding_layers=False)
        load_tokenizer(str(base)).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"b: .*lora_embedding_A"):
        load_adapters(folders, dtype="float32")
