"""Saved weights in bfloat16, as the published code saves them: the next policy and its reference are rounded."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from spag.cli import main
from spag.models.loading import load_model
from tiny_model import make_model

pytestmark = pytest.mark.slow

ROWS = [{"prompt": f"q{n}", "completion": f"answer {n}", "reward": 0.5, "role": "attacker"} for n in range(4)]


def trained(folder: Path, model: Path, *overrides: str) -> dict[str, torch.Tensor]:
    samples = folder / "samples.jsonl"
    samples.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    shared = ("model.dtype=float32", "model.device=cpu", "spag.sft_coef=0", "spag.global_batch_size=4")
    options = [part for one in (*shared, "spag.learning_rate=1e-3", *overrides) for part in ("--set", one)]
    output = folder / "out"
    result = CliRunner().invoke(
        main, ["train", "spag", str(samples), "--model", str(model), *options, "--output", str(output)]
    )
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return load_file(output / "checkpoint" / "model.safetensors")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("exact", "rounded"):
        (tmp_path / name).mkdir()
    return tmp_path / "exact", tmp_path / "rounded"


def test_weights_are_rounded_once_when_they_are_saved(folders: tuple[Path, Path], model_folder: Path) -> None:
    exact, rounded = (
        trained(folder, model_folder, f"spag.save_dtype={dtype}")
        for folder, dtype in zip(folders, ("float32", "bfloat16"), strict=True)
    )
    assert {weight.dtype for weight in exact.values()} == {torch.float32}
    assert {weight.dtype for weight in rounded.values()} == {torch.bfloat16}
    assert exact.keys() == rounded.keys()
    assert all(torch.equal(exact[name].bfloat16(), weight) for name, weight in rounded.items())  # training is the same
    assert any(not torch.equal(exact[name], weight.float()) for name, weight in rounded.items())
    # what the next stage starts from, and computes its reference with
    policy = load_model(str(folders[1] / "out" / "checkpoint"), dtype="float32", device="cpu").state_dict()
    assert all(torch.equal(policy[name], weight.float()) for name, weight in rounded.items())


def test_tied_weights_are_saved_once(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """An engine takes the weights of a snapshot by the names of a loaded model, which has one of the two."""
    saved = trained(folders[1], make_model(tmp_path / "tied", tie_word_embeddings=True), "spag.save_dtype=bfloat16")
    loaded = load_model(str(folders[1] / "out" / "checkpoint"), dtype="float32", device="cpu")
    assert saved.keys() == dict(loaded.named_parameters()).keys()


def test_adapters_stay_in_full_precision(folders: tuple[Path, Path], model_folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        trained(folders[0], model_folder, "spag.save_dtype=bfloat16", "spag.lora={rank: 2}")
    saved = load_file(folders[0] / "out" / "checkpoint" / "adapter_model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
