"""Instruction data in training: mixed in by single commands too, never twice, and never missing without a word."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spag.algorithms import SHIPPED
from spag.cli import main
from spag.config.files import load_config, parse_config
from spag.core.episodes import SampleType
from spag.core.errors import RunError
from spag.core.progress import SilentReporter
from spag.core.seeds import derive_seed
from spag.models.loading import load_tokenizer
from spag.models.samples import encode_samples
from spag.models.tokens import PromptStyle
from spag.runs import execute
from spag.runs.execute import mix_warnings
from spag.storage.episodes import all_samples, read_samples, read_sft

pytestmark = pytest.mark.slow

SFT_ROWS = [{"instruction": f"Count to {n}.", "input": "", "output": f"One, then {n}."} for n in range(6)]
UPSTREAM = [
    {"query": f"q{n}", "target": target, "reward": 0.5, "weight": 0.75, "role": "attacker"}
    for n, target in enumerate(("Hi", "", "Ho"))
]


@pytest.fixture
def sft_file(tmp_path: Path) -> Path:
    path = tmp_path / "alpaca.json"
    path.write_text(json.dumps(SFT_ROWS))
    return path


@pytest.fixture
def upstream_file(tmp_path: Path) -> Path:
    path = tmp_path / "train_spag_data.json"
    path.write_text(json.dumps(UPSTREAM))
    return path


def train(algorithm: str, samples: Path, model: Path, output: Path, *overrides: str) -> Result:
    small = (f"{algorithm}.global_batch_size=4", f"{algorithm}.gradient_checkpointing=false")
    options = [
        part for one in (*small, "model.dtype=float32", "model.device=cpu", *overrides) for part in ("--set", one)
    ]
    result = CliRunner().invoke(
        main, ["train", algorithm, str(samples), "--model", str(model), *options, "--output", str(output)]
    )
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def last_metrics(output: Path) -> dict[str, float | None]:
    row: dict[str, float | None] = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    return row


def types(output: Path) -> list[str]:
    return sorted(str(row.type) for row in read_samples(output / "samples.jsonl"))


def test_train_spag_mixes_instruction_data_in(
    tmp_path: Path, model_folder: Path, sft_file: Path, upstream_file: Path
) -> None:
    output = tmp_path / "trained"
    mix = (f"spag.sft_data={sft_file}", "spag.sft_samples=2")
    result = train("spag", upstream_file, model_folder, output, *mix)
    assert "1 step on 4 samples" in result.output  # two with a text, two of the six SFT rows
    assert f"{upstream_file}: skipped 1 of 3 rows with an empty completion" in result.output
    assert "warning" not in result.output
    assert types(output) == ["rl", "rl", "sft", "sft"]
    drawn = {row.prompt for row in read_samples(output / "samples.jsonl") if row.type is SampleType.SFT}
    assert drawn == {row.prompt for row in read_sft(sft_file, 2, derive_seed(0, "sft"))}
    assert last_metrics(output)["loss_sft"] is not None
    weights = output / "checkpoint" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    train("spag", upstream_file, model_folder, output, *mix)
    assert weights.stat().st_mtime_ns == written  # the same rows are drawn again, so training has finished


def test_an_empty_output_trains_its_end_token_as_upstream(
    tmp_path: Path, model_folder: Path, upstream_file: Path
) -> None:
    alpaca, output = tmp_path / "alpaca.json", tmp_path / "trained"
    alpaca.write_text(json.dumps([{"instruction": "Say nothing.", "input": "", "output": ""}, SFT_ROWS[0]]))
    result = train("spag", upstream_file, model_folder, output, f"spag.sft_data={alpaca}")
    assert "1 step on 4 samples" in result.output  # two with a text, both SFT rows
    mixed = [row for row in all_samples(output / "samples.jsonl") if row.type is SampleType.SFT]
    assert sorted(row.completion for row in mixed) == ["", "One, then 0."]
    tokenizer = load_tokenizer(str(model_folder))
    (empty,) = encode_samples([row for row in mixed if not row.completion], tokenizer, PromptStyle.PLAIN, 2048)
    assert empty.completion.tolist() == [tokenizer.eos_token_id]


def test_train_spag_without_a_mix_says_so_and_names_the_option(
    tmp_path: Path, model_folder: Path, upstream_file: Path
) -> None:
    output = tmp_path / "trained"
    result = train("spag", upstream_file, model_folder, output)
    assert "warning: spag.sft_data is not set" in result.output
    assert "1 step on 2 samples" in result.output
    assert last_metrics(output)["loss_sft"] is None
    assert "warning" not in train("spag", upstream_file, model_folder, output, "spag.sft_coef=0").output


def test_train_imitation_reads_upstreams_file_and_mixes(
    tmp_path: Path, model_folder: Path, sft_file: Path, upstream_file: Path
) -> None:
    result = train("imitation", upstream_file, model_folder, tmp_path / "plain")
    assert result.output.count("skipped 1 of 3 rows with an empty completion") == 1 and "warning" not in result.output
    assert "1 step on 2 samples" in result.output
    result = train("imitation", upstream_file, model_folder, tmp_path / "mixed", f"imitation.sft_data={sft_file}")
    assert "2 steps on 8 samples" in result.output


def test_a_file_that_holds_sft_rows_gets_no_others(
    tmp_path: Path, model_folder: Path, sft_file: Path, upstream_file: Path
) -> None:
    mixed, output = tmp_path / "mixed.json", tmp_path / "trained"
    mixed.write_text(json.dumps([*UPSTREAM, *SFT_ROWS]))
    assert "warning" not in train("spag", mixed, model_folder, output).output  # a mix is there
    result = train("spag", mixed, model_folder, output, f"spag.sft_data={sft_file}")
    assert f"{mixed} holds SFT rows, so sft_data is not mixed in again" in result.output
    assert types(output) == ["rl"] * 2 + ["sft"] * 6


def test_who_is_warned(sft_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(options: str) -> list[str]:
        return mix_warnings(parse_config(f"phases: [{{{options}}}]", "test"))

    for preset in ("llama2-7b", "llama2-7b-lora", "llama2-7b-qlora", "baichuan2-13b"):
        assert ["spag.sft_data is not set" in line for line in mix_warnings(load_config(preset))] == [True]
    assert "is not set" in warned(f"algorithm: spag, sft_data: {sft_file}, sft_samples: 0")[0]
    assert "imitation.sft_coef=0" in warned(f"algorithm: imitation, sft_data: {sft_file}, sft_coef: 0")[0]
    assert not warned("algorithm: imitation") and not warned("algorithm: reinforce")
    monkeypatch.setitem(SHIPPED, "clone", "spag.algorithms.imitation:Imitation")  # another package's, on teacher games
    assert not warned("algorithm: clone")
    assert not warned(f"algorithm: spag, sft_data: {sft_file}") and not warned("algorithm: spag, sft_coef: 0")
    assert not mix_warnings(load_config("demo"))


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)


@pytest.mark.parametrize(
    ("override", "warned"), [("seed=0", True), ("spag.sft_coef=0", False), ("spag.sft_data=FILE", False)]
)
def test_a_run_tells_its_phases_and_warns_before_its_first_stage(
    override: str, warned: bool, tmp_path: Path, sft_file: Path, model_folder: Path
) -> None:
    config = load_config(
        "llama2-7b", [f"model.name={model_folder}", "model.dtype=float32", override.replace("FILE", str(sft_file))]
    )
    notes = Notes()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="stopped"):
        patch.setattr(execute, "_carry_out", _stop)
        execute.run(config, tmp_path / "run", notes)
    assert notes.lines[:2] == [f"model: {model_folder}", "1. imitation: learns adversarial_taboo from teacher"]
    assert notes.lines[2].startswith("2. spag: 3 x self-play on all tasks")
    assert [line.startswith("warning: spag.sft_data is not set") for line in notes.lines[3:]] == [True] * warned


def _stop(_: object) -> None:
    raise RunError("stopped")
