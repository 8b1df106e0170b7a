"""New weights of adapters as folders: what vLLM's processes are told to load. Needs no vLLM."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_vllm import TinyVLLM, make_tiny_vllm

from spag.core.errors import EngineError
from spag.engines.vllm import transfer
from spag.engines.vllm.transfer import AdapterFolders
from spag.models.loading import load_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyVLLM:
    return make_tiny_vllm(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=["shared memory", "temporary folder"])
def folders(
    tiny: TinyVLLM, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AdapterFolders]:
    if request.param == "temporary folder":
        monkeypatch.setattr(transfer, "SHARED_SHARE", 0.0)  # there is never room
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    else:
        monkeypatch.setattr(transfer, "SHARED_MEMORY", tmp_path)
    folders = AdapterFolders(tuple(map(str, tiny.adapters)), "float32")
    yield folders
    folders.close()
    assert not list(tmp_path.iterdir())


def changed(tiny: TinyVLLM) -> dict[str, torch.Tensor]:
    """Return the second adapter's weights, doubled."""
    adapted = PeftModel.from_pretrained(
        load_model(str(tiny.base), dtype="float32", device="cpu"), tiny.adapters[1], is_trainable=True
    )
    return {name: value.detach() * 2 for name, value in adapted.named_parameters() if value.requires_grad}


def test_a_folder_is_what_peft_saves_with_the_newest_of_what_is_not_given(
    folders: AdapterFolders, tiny: TinyVLLM, tmp_path: Path
) -> None:
    new = changed(tiny)
    first = next(iter(new))
    assert ".lora_A.default.weight" in first
    folders.write({first: new.pop(first)}, 2)
    folder = folders.write(new, 2)
    assert folder.parent == tmp_path and list(tmp_path.iterdir()) == [folder]  # older files are gone
    doubled, original = (load_file(each / "adapter_model.safetensors") for each in (folder, tiny.adapters[1]))
    assert doubled.keys() == original.keys()
    assert all(torch.equal(doubled[name], 2 * value) for name, value in original.items())
    assert json.loads((folder / "adapter_config.json").read_text()) == json.loads(
        (tiny.adapters[1] / "adapter_config.json").read_text()
    )


def test_weights_have_the_engine_s_type(tiny: TinyVLLM) -> None:
    folders = AdapterFolders(tuple(map(str, tiny.adapters)), "bfloat16")
    folder = folders.write(changed(tiny), 2)
    assert {value.dtype for value in load_file(folder / "adapter_model.safetensors").values()} == {torch.bfloat16}
    folders.close()
    assert not folder.exists()


def test_names_and_shapes_that_do_not_fit(folders: AdapterFolders, tmp_path: Path) -> None:
    name = "base_model.model.model.norm.weight"
    with pytest.raises(EngineError, match=f"^{name}: the model has no weight of this name and shape$"):
        folders.write({name: torch.zeros(128)}, 1)
    assert not list(tmp_path.iterdir())
