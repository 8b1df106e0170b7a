"""Exporting from a run, a checkpoint, an adapter; what is refused; the hub at its edge."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from click.testing import CliRunner
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from spag.cli.export import export_group
from spag.config.files import dump_config, load_config
from spag.config.schema import RunConfig
from spag.core.errors import DataError, ModelError, RunError, StorageError
from spag.core.store import write_json
from spag.export import export_model, find_source
from spag.export import model as exporting
from tiny_model import make_model

PROMPT = torch.tensor([[0, 5, 77, 130, 9]])


def train_stage(folder: Path, name: str) -> Path:
    """Add a trained model to a run folder."""
    manifest = folder / "manifest.json"
    data = json.loads(manifest.read_text()) if manifest.exists() else {"schema_version": 1, "measured": {}, "stages": {}}
    data["stages"][f"{name}/train"] = {"status": "done", "fingerprint": "0", "settings": {}, "seconds": 1.0, "results": {"steps": 1}}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(manifest, data)
    return make_model(folder / name / "checkpoint")


def make_run(folder: Path, *trained: str, **model: Any) -> Path:
    base = make_model(folder.parent / "base")
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(RunConfig.model_validate({"model": {"name": str(base), **model}})))
    write_json(folder / "manifest.json", {"schema_version": 1, "measured": {}, "stages": {}})
    for name in trained:
        train_stage(folder, name)
    return folder


def test_a_run_gives_its_last_model_in_the_dtype_it_played_in(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation", "iteration-1")
    exported = export_model(find_source(str(run)), tmp_path / "mine")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    trained = AutoModelForCausalLM.from_pretrained(run / "iteration-1" / "checkpoint")
    assert (model.dtype, trained.dtype) == (torch.bfloat16, torch.float32)
    for name, weight in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.bfloat16())
    ours, plain = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "mine", tmp_path / "base"))
    assert ours("hello").input_ids == plain("hello").input_ids
    assert sorted(path.name for path in exported.folder.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "spag_config.yaml", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert exported.weights.parameters == model.num_parameters()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "mine", "run"]  # nothing of the work is left


def test_which_model_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation", "iteration-1", "iteration-2")
    base = str(tmp_path / "base")
    chosen = {name: find_source(str(run), name) for name in (None, "base", "imitation", "iteration-1")}
    assert [source.name for source in chosen.values()] == ["iteration-2", "base", "imitation", "iteration-1"]
    assert chosen["base"].model == base
    assert chosen["imitation"].model == str(run / "imitation" / "checkpoint")
    inside = find_source(str(run / "iteration-1" / "checkpoint"))
    assert (inside.name, inside.base, inside.run and inside.run.folder) == ("iteration-1", base, run)
    alone = find_source(base)
    assert (alone.name, alone.model, alone.run) == ("base", base, None)


def test_outside_a_run_weights_stay_as_saved(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "plain")
    assert export_model(find_source(str(folder)), tmp_path / "out").weights.dtype == "float32"
    assert export_model(find_source(str(folder)), tmp_path / "half", dtype="float16").weights.dtype == "float16"
    assert "No run folder came with it" in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out" / "spag_config.yaml").exists()


def test_an_adapter_is_merged(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base")
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(tmp_path / "adapter")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "adapter")
    exported = export_model(find_source(str(tmp_path / "adapter")), tmp_path / "out")
    assert exported.weights.merged and not (tmp_path / "out" / "adapter_config.json").exists()
    with torch.inference_mode():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(PROMPT).logits
        adapted, plain = model.eval()(PROMPT).logits, AutoModelForCausalLM.from_pretrained(base)(PROMPT).logits
    assert (merged - adapted).norm() < 1e-5 * adapted.norm() < 1e-3 * (adapted - plain).norm()
    assert "a LoRA adapter merged into its base" in (tmp_path / "out" / "README.md").read_text()


def test_the_config_in_the_export_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation")
    export_model(find_source(str(run)), tmp_path / "out")
    assert load_config(str(tmp_path / "out" / "spag_config.yaml")).model.name == "./base"
    assert str(tmp_path) not in (tmp_path / "out" / "README.md").read_text()


REFUSED = {
    "no such model of the run": (("run", "iteration-7"), RunError, r"no trained model 'iteration-7'; there are: base, imitation$"),
    "a name without a run": (("base", "imitation"), RunError, r"--name imitation: \S+base is no run folder"),
    "an endpoint": (("openai:gpt", None), ModelError, "a model behind an endpoint has no weights here"),
}


@pytest.mark.parametrize(("asked", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_found(tmp_path: Path, asked: tuple[str, str | None], error: type[Exception], says: str) -> None:
    make_run(tmp_path / "run", "imitation")
    what = asked[0] if ":" in asked[0] else str(tmp_path / asked[0])
    with pytest.raises(error, match=says):
        find_source(what, asked[1])


def test_a_run_without_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(RunError, match=r"no model has been trained yet; .* --name base$"):
        find_source(str(run))
    assert find_source(str(run), "base").name == "base"
    train_stage(run, "imitation")
    (run / "imitation" / "checkpoint" / "config.json").unlink()  # begun, not finished
    with pytest.raises(RunError, match="no model has been trained yet"):
        find_source(str(run))
    (run / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"no config\.yaml, so nothing tells which model it started from"):
        find_source(str(run), "base")


def test_missing_and_broken_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        export_model(find_source(str(tmp_path / "nothing")), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        export_model(find_source(str(tmp_path / "empty")), tmp_path / "out")
    broken = make_model(tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no safetensors weights found"):
        export_model(find_source(str(broken)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "plain")
    source = find_source(str(folder))
    with pytest.raises(RunError, match="is there already, and an export overwrites nothing"):
        export_model(source, folder)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="is there already"):
        export_model(source, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert export_model(source, tmp_path / "empty").folder == tmp_path / "empty"


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation")
    (run / "reasoning").mkdir()
    (run / "reasoning" / "results.json").write_text("{")  # read for the card, when the weights are saved
    with pytest.raises(DataError, match=r"reasoning/results\.json:1: not JSON"):
        export_model(find_source(str(run)), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "run"]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(exporting, "save_model", full)
    folder = make_model(tmp_path / "plain")
    with pytest.raises(StorageError, match=r"cannot be written: .*No space left on device .*; free some space"):
        export_model(find_source(str(folder)), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation")
    command = ["model", str(run), "--output", str(tmp_path / "out"), "--dtype", "float32"]
    result = CliRunner().invoke(export_group, command, catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/out\n")
    private = CliRunner().invoke(export_group, ["model", str(run), "--output", str(tmp_path / "three"), "--private"])
    assert private.exit_code == 2 and "give --push OWNER/NAME too" in private.stderr
