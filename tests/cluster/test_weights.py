"""Weights through shared storage: copied once, whole or not at all."""

import json
from pathlib import Path

import pytest
import torch

from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, ModelError
from spag.models.finding import adapter_base
from spag.models.roles import read_roles
from spag.rollout.ray.weights import fetch, pack, publish, unpack


@pytest.fixture
def checkpoint(tmp_path: Path) -> ModelConfig:
    folder = tmp_path / "runs" / "imitation" / "checkpoint"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return ModelConfig(name=str(folder), dtype="float32")


@pytest.mark.parametrize("storage", ["{tmp}/shared", "memory://bucket/weights"])
def test_weights_arrive_as_they_left(checkpoint: ModelConfig, tmp_path: Path, storage: str) -> None:
    shared = publish(checkpoint, storage.format(tmp=tmp_path))
    there = fetch(shared, tmp_path / "node")
    assert {path.name: path.read_bytes() for path in Path(there.name).iterdir()} == {
        "model.safetensors": b"weights",
        "config.json": b"{}",
    }
    assert there.dtype == "float32"
    assert fetch(shared, tmp_path / "node") == there
    assert [path.name for path in (tmp_path / "node" / "weights").iterdir() if path.is_dir()] == [Path(there.name).name]


def test_adapters_of_roles_arrive_in_their_folders(checkpoint: ModelConfig, tmp_path: Path) -> None:
    folder = tmp_path / "of roles"
    adapter = {"peft_type": "LORA", "base_model_name_or_path": checkpoint.name, "r": 2}
    for role in ("kuhn_poker-player_0", "kuhn_poker-player_1"):
        (folder / role).mkdir(parents=True)
        (folder / role / "adapter_model.safetensors").write_text(role)
        (folder / role / "adapter_config.json").write_text(json.dumps(adapter))
    (folder / "roles.json").write_text(
        json.dumps({f"kuhn_poker/player_{seat}": f"kuhn_poker-player_{seat}" for seat in (0, 1)})
    )
    there = fetch(publish(ModelConfig(name=str(folder)), str(tmp_path / "shared")), tmp_path / "node")
    assert {
        name: Path(path, "adapter_model.safetensors").read_text()
        for name, path in (read_roles(there.name) or {}).items()
    } == {
        "kuhn_poker/player_0": "kuhn_poker-player_0",
        "kuhn_poker/player_1": "kuhn_poker-player_1",
    }
    for path in (read_roles(there.name) or {}).values():  # the node does not see the driver's folders
        base = adapter_base(Path(path))
        assert base is not None and base.startswith(str(tmp_path / "node"))
        assert Path(base, "model.safetensors").read_bytes() == b"weights"


def test_weights_are_copied_once_and_anew_when_they_change(checkpoint: ModelConfig, tmp_path: Path) -> None:
    first = publish(checkpoint, str(tmp_path / "shared"))
    stored = next((tmp_path / "shared").glob("*/model.safetensors"))
    stored.write_bytes(b"marked!")
    assert publish(checkpoint, str(tmp_path / "shared")) == first
    assert stored.read_bytes() == b"marked!"
    (Path(checkpoint.name) / "model.safetensors").write_bytes(b"new weights")
    assert publish(checkpoint, str(tmp_path / "shared")) != first


def test_a_relative_folder_is_found_from_another(
    checkpoint: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shared = publish(checkpoint, "store")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = fetch(shared, tmp_path / "node")
    assert Path(there.name, "model.safetensors").read_bytes() == b"weights"


def test_a_half_written_copy_is_never_loaded(checkpoint: ModelConfig, tmp_path: Path) -> None:
    shared = publish(checkpoint, str(tmp_path / "shared"))
    [listing] = (tmp_path / "shared").glob("*/files.json")
    listing.unlink()
    with pytest.raises(ModelError, match=r"the weights cannot be read: .*; does this node see cluster\.storage\?"):
        fetch(shared, tmp_path / "node")
    assert not [path for path in (tmp_path / "node" / "weights").iterdir() if path.is_dir()]
    assert publish(checkpoint, str(tmp_path / "shared")) == shared
    assert Path(fetch(shared, tmp_path / "node").name).is_dir()


def test_names_of_models_stay(tmp_path: Path) -> None:
    model = ModelConfig(name="openai:some-model")
    assert fetch(publish(model, str(tmp_path)), tmp_path) == model
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_of_storage(checkpoint: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.storage=nowhere://x: "):
        publish(checkpoint, "nowhere://x")


def test_weights_travel_as_the_engines_have_them() -> None:
    weights = {"a": torch.nn.Parameter(torch.tensor([[1.0, 0.1], [3.0, -2.7]]))}
    [(flat, dtype, shape)] = pack(weights, "bfloat16").values()
    assert (len(flat), dtype, shape) == (8, "bfloat16", (2, 2))
    assert torch.equal(unpack({"a": (flat, dtype, shape)})["a"], weights["a"].detach().bfloat16())


def test_packed_weights_arrive_as_they_were() -> None:
    oriented = torch.arange(6.0).reshape(2, 3).T
    weights = {
        "a": torch.nn.Parameter(oriented),
        "b": torch.tensor([1.5, -0.1], dtype=torch.bfloat16),
        "c": torch.tensor(2.0),
    }
    expected = {name: value.detach().clone() for name, value in weights.items()}
    packed = pack(weights)
    arrived = unpack(packed)
    for flat, _, _ in packed.values():
        flat[:] = 0  # an engine may keep what arrived for longer than Ray does
    assert arrived.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(arrived[name], value) and arrived[name].dtype == value.dtype
