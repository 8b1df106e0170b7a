"""Exporting from a run, a checkpoint, an adapter; what is refused."""

import resource
from pathlib import Path

import peft
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from spag.cli.export import export_group
from spag.config.files import dump_config, load_config
from spag.config.schema import RunConfig
from spag.core.errors import DataError, ModelError, RunError, StorageError
from spag.export import ExportSource, export_model, find_source
from spag.storage.manifest import Manifest
from spag.storage.store import write_json
from tiny_model import make_model

PROMPT = torch.tensor([[0, 5, 77, 130, 9]])


FOLDERS = {"imitation": "1-imitation", "spag-1": "2-spag/iteration-1", "spag-2": "2-spag/iteration-2"}


def train_stage(run: Path, name: str) -> Path:
    """Add a trained model to a run folder; return its checkpoint."""
    manifest = Manifest.open(run)
    manifest.begin(f"{FOLDERS[name]}/train", {})
    with manifest.running(f"{FOLDERS[name]}/train"):
        return make_model(run / FOLDERS[name] / "checkpoint")


def make_run(folder: Path, *trained: str) -> Path:
    """Write a run of imitation and two iterations of SPAG, of which these models are trained."""
    phases = [{"algorithm": "imitation"}, {"algorithm": "spag", "iterations": 2}]
    model = {"name": str(make_model(folder.parent / "base"))}
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(RunConfig.model_validate({"model": model, "phases": phases})))
    write_json(folder / "manifest.json", {"schema_version": 1, "measured": {}, "stages": {}})
    for name in trained:
        train_stage(folder, name)
    return folder


def test_a_run_gives_its_last_model_in_the_dtype_it_played_in(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation", "spag-1")
    weights = export_model(find_source(str(run)), tmp_path / "mine")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    trained = AutoModelForCausalLM.from_pretrained(run / "2-spag" / "iteration-1" / "checkpoint")
    assert (model.dtype, trained.dtype) == (torch.bfloat16, torch.float32)
    for name, weight in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.bfloat16())
    ours, plain = (AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "mine", tmp_path / "base"))
    assert ours("hello").input_ids == plain("hello").input_ids
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "spag_config.yaml", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    assert weights.parameters == model.num_parameters()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "mine", "run"]  # nothing of the work is left


def test_which_model_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", "imitation", "spag-1", "spag-2")
    base = str(tmp_path / "base")
    chosen = {name: find_source(str(run), name) for name in (None, "base", "imitation", "spag-1")}
    assert [source.name for source in chosen.values()] == ["spag-2", "base", "imitation", "spag-1"]
    assert chosen["base"].model == base
    assert chosen["imitation"].model == str(run / "1-imitation" / "checkpoint")
    inside = find_source(str(run / "2-spag" / "iteration-1" / "checkpoint"))
    assert (inside.name, inside.base, inside.run and inside.run.folder) == ("spag-1", base, run)
    monkeypatch.chdir(run / "2-spag" / "iteration-1")
    assert find_source("checkpoint").name == "spag-1"
    alone = find_source(base)
    assert (alone.name, alone.model, alone.run) == ("base", base, None)


def test_outside_a_run_weights_stay_as_saved(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "plain")
    assert export_model(find_source(str(folder)), tmp_path / "out").dtype == "float32"
    assert export_model(find_source(str(folder)), tmp_path / "half", dtype="float16").dtype == "float16"
    assert "No run folder came with it" in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out" / "spag_config.yaml").exists()


def test_an_adapter_is_merged(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base")
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(tmp_path / "adapter")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "adapter")
    weights = export_model(find_source(str(tmp_path / "adapter")), tmp_path / "out")
    assert weights.merged and not (tmp_path / "out" / "adapter_config.json").exists()
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
    "no such model of the run": (
        ("run", "spag-7"),
        RunError,
        r"no trained model 'spag-7'; there are: base, imitation$",
    ),
    "a name without a run": (("base", "imitation"), RunError, r"--name imitation: \S+base is not a run folder"),
    "an endpoint": (("openai:gpt", None), ModelError, "a model behind an endpoint has no local weights"),
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
    (run / "1-imitation" / "checkpoint" / "config.json").unlink()  # begun, not finished
    with pytest.raises(RunError, match="no model has been trained yet"):
        find_source(str(run))
    (run / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"no config\.yaml names the run's models"):
        find_source(str(run), "base")
    checkpoint = str(run / "1-imitation" / "checkpoint")
    assert find_source(checkpoint) == ExportSource("checkpoint", checkpoint, None, None)


def test_missing_and_broken_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        export_model(find_source(str(tmp_path / "nothing")), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        export_model(find_source(str(tmp_path / "empty")), tmp_path / "out")
    broken = make_model(tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no safetensors weights found"):
        export_model(find_source(str(broken)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "plain")
    source = find_source(str(folder))
    with pytest.raises(RunError, match="exists, and an export never overwrites"):
        export_model(source, folder)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="exists, and"):
        export_model(source, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert export_model(source, tmp_path / "empty") and (tmp_path / "empty" / "model.safetensors").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export_model(source, Path()) and (tmp_path / "here" / "model.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "here", "plain"]


@pytest.mark.slow
def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation")
    (run / "reasoning").mkdir()
    (run / "reasoning" / "results.json").write_text("{")  # read for the card, when the weights are saved
    with pytest.raises(DataError, match=r"reasoning/results\.json:1: not JSON"):
        export_model(find_source(str(run)), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "run"]


def test_weights_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "plain")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # as a full disk: weights fail in mid-write
    try:
        with pytest.raises(StorageError, match=r"cannot be written: .*; free some space"):
            export_model(find_source(str(folder)), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "imitation")
    command = ["model", str(run), "--output", str(tmp_path / "out"), "--dtype", "float32"]
    result = CliRunner().invoke(export_group, command, catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/out\n")
