"""New weights as files: what vLLM's processes are told to load. Needs no vLLM."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_vllm import TinyVLLM, make_tiny_vllm

from spag.core.errors import EngineError
from spag.engines.vllm import weights as vllm_weights
from spag.engines.vllm.weights import WeightFiles
from spag.models.loading import load_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyVLLM:
    return make_tiny_vllm(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["shared memory", "temporary folder"])
def files(
    tiny: TinyVLLM, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WeightFiles]:
    if request.param == "temporary folder":
        monkeypatch.setattr(vllm_weights, "SHARED_SHARE", 0.0)  # there is never room
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    else:
        monkeypatch.setattr(vllm_weights, "SHARED_MEMORY", tmp_path)
    arguments = {"model": str(tiny.base), "dtype": "float32", "trust_remote_code": False}
    files = WeightFiles(arguments, tuple(map(str, tiny.adapters)))
    yield files
    files.close()
    assert not list(tmp_path.iterdir())


def parameters(tiny: TinyVLLM) -> dict[str, torch.Tensor]:
    return {
        name: value.detach()
        for name, value in load_model(str(tiny.base), dtype="float32", device="cpu").named_parameters()
    }


def test_a_checkpoint_has_what_is_given_and_the_newest_of_the_rest(
    files: WeightFiles, tiny: TinyVLLM, tmp_path: Path
) -> None:
    old = parameters(tiny)
    first, second = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
    files.write({first: old[first] + 1}, 0)
    folder = files.write({second: (old[second] + 2).double().requires_grad_()}, 0)
    assert folder.parent == tmp_path and list(tmp_path.iterdir()) == [folder]  # older files are gone
    model = load_model(str(folder), dtype="float32", device="cpu")
    expected = old | {first: old[first] + 1, second: old[second] + 2}
    for name, value in model.named_parameters():
        assert torch.equal(value, expected[name]), name
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")  # it is tied


def test_weights_have_the_engine_s_type(tiny: TinyVLLM) -> None:
    files = WeightFiles({"model": str(tiny.base), "dtype": "bfloat16", "trust_remote_code": False}, ())
    folder = files.write(parameters(tiny), 0)
    assert {value.dtype for value in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    files.close()
    assert not folder.exists()


def test_an_adapter_s_folder_is_what_peft_saves(files: WeightFiles, tiny: TinyVLLM) -> None:
    adapted = PeftModel.from_pretrained(
        load_model(str(tiny.base), dtype="float32", device="cpu"), tiny.adapters[1], is_trainable=True
    )
    new = {name: value.detach() * 2 for name, value in adapted.named_parameters() if value.requires_grad}
    first = next(iter(new))
    assert ".lora_A.default.weight" in first
    folder = files.write({first: new.pop(first)}, 2)
    folder = files.write(new, 2)
    doubled, original = (load_file(each / "adapter_model.safetensors") for each in (folder, tiny.adapters[1]))
    assert doubled.keys() == original.keys()
    assert all(torch.equal(doubled[name], 2 * value) for name, value in original.items())
    assert json.loads((folder / "adapter_config.json").read_text()) == json.loads(
        (tiny.adapters[1] / "adapter_config.json").read_text()
    )


def test_names_and_shapes_that_do_not_fit(files: WeightFiles, tmp_path: Path) -> None:
    wrong = {0: {"model.norm.weight": torch.zeros(3)}, 1: {"base_model.model.model.norm.weight": torch.zeros(128)}}
    for adapter, weights in wrong.items():
        with pytest.raises(EngineError, match=f"^{next(iter(weights))}: no such weight of that shape$"):
            files.write(weights, adapter)
    assert not list(tmp_path.iterdir())
