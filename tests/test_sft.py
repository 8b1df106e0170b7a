"""Instruction data in training: mixed in by single commands too, never twice, and never missing without a word."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spag.cli import main
from spag.config.files import load_config
from spag.config.schema import OfflineRLConfig, TrainingConfig
from spag.core.episodes import SampleType, TrainingSample, read_samples
from spag.core.errors import RunError
from spag.core.progress import SilentReporter
from spag.core.sft import read_sft
from spag.core.store import write_rows
from spag.runs import loop
from spag.runs.sft import mix_warning, with_sft
from spag.training import launch

SFT_ROWS = [{"instruction": f"Count to {n}.", "input": "", "output": f"One, then {n}."} for n in range(6)]
UPSTREAM = [
    {"query": f"q{n}", "target": target, "reward": 0.5, "weight": 0.75, "role": "attacker"} for n, target in enumerate(("Hi", "", "Ho"))
]
TINY = ("offline_rl.global_batch_size=4", "offline_rl.gradient_checkpointing=false", "model.dtype=float32", "model.device=cpu")


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


def train(stage: str, samples: Path, model: Path, output: Path, *overrides: str) -> Result:
    options = [part for one in (*TINY, *overrides) for part in ("--set", one)]
    result = CliRunner().invoke(main, ["train", stage, str(samples), "--model", str(model), *options, "--output", str(output)])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def last_metrics(output: Path) -> dict[str, float | None]:
    row: dict[str, float | None] = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    return row


def test_train_offline_rl_mixes_instruction_data_in(tmp_path: Path, model_folder: Path, sft_file: Path, upstream_file: Path) -> None:
    output = tmp_path / "trained"
    mix = (f"offline_rl.sft_data={sft_file}", "offline_rl.sft_samples=2")
    result = train("offline-rl", upstream_file, model_folder, output, *mix)
    assert "1 steps on 4 samples" in result.output  # two with a text, two of the six SFT rows
    assert f"{upstream_file}: 1 of 3 rows have an empty completion" in result.output
    assert f"2 SFT rows of {sft_file} are mixed into 2 samples: {output}/mixed.jsonl" in result.output
    assert "warning" not in result.output
    assert [row.type for row in read_samples(output / "mixed.jsonl")] == [SampleType.RL] * 2 + [SampleType.SFT] * 2
    assert last_metrics(output)["loss_sft"] is not None
    assert json.loads(upstream_file.read_text()) == UPSTREAM
    weights = output / "checkpoint" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    train("offline-rl", upstream_file, model_folder, output, *mix)
    assert weights.stat().st_mtime_ns == written  # the same rows are drawn again, so training has finished


def test_train_offline_rl_without_a_mix_says_so_and_names_the_option(tmp_path: Path, model_folder: Path, upstream_file: Path) -> None:
    output = tmp_path / "trained"
    result = train("offline-rl", upstream_file, model_folder, output)
    assert "warning: offline_rl.sft_data is not set" in result.output
    assert "1 steps on 2 samples" in result.output
    assert last_metrics(output)["loss_sft"] is None
    assert "warning" not in train("offline-rl", upstream_file, model_folder, output, "offline_rl.sft_coef=0").output


def test_train_imitation_reads_upstreams_file_and_mixes(tmp_path: Path, model_folder: Path, sft_file: Path, upstream_file: Path) -> None:
    small = ("imitation.training.global_batch_size=4", "imitation.training.gradient_checkpointing=false")
    result = train("imitation", upstream_file, model_folder, tmp_path / "plain", *small)
    assert result.output.count("1 of 3 rows have an empty completion") == 1 and "warning" not in result.output
    assert "1 steps on 2 samples" in result.output
    result = train("imitation", upstream_file, model_folder, tmp_path / "mixed", *small, f"imitation.training.sft_data={sft_file}")
    assert "2 steps on 8 samples" in result.output


def test_every_process_of_torchrun_mixes_the_same_rows(
    tmp_path: Path, sft_file: Path, upstream_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Path, list[TrainingSample]]] = []

    def train_on(samples: Path, *_: object, **__: object) -> dict[str, float]:
        seen.append((samples, list(read_samples(samples))))
        return {"steps": 1, "samples": 4, "seconds": 0.0}

    monkeypatch.setattr(launch, "train_on", train_on)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        result = train("offline-rl", upstream_file, tmp_path, tmp_path / "out", f"offline_rl.sft_data={sft_file}")
        assert ("are mixed into" in result.output) == (rank == "0")
    (first, rows), (second, same) = seen
    assert rows == same and len(rows) == 8
    assert first == tmp_path / "out" / "mixed.jsonl" and first.is_file()
    assert second != first and not second.exists()  # its own, and gone afterwards


RL = TrainingSample(prompt="p", completion="c", reward=0.5, weight=2.0, role="attacker", episode_id="e", turn=1, completion_ids=(1, 2))


def test_the_mix_is_that_of_the_rewards_command(tmp_path: Path, sft_file: Path) -> None:
    source, target = tmp_path / "samples.jsonl", tmp_path / "mixed.jsonl"
    write_rows(source, [RL])
    training = OfflineRLConfig(sft_data=sft_file, sft_samples=3)
    assert with_sft(source, training, 7, target, print) == target
    assert list(read_samples(target)) == [RL, *read_sft(sft_file, 3, 7)]


def test_a_file_that_holds_sft_rows_gets_no_others(tmp_path: Path, sft_file: Path) -> None:
    source, notes = tmp_path / "samples.jsonl", list[str]()
    write_rows(source, [RL, *read_sft(sft_file, 3, 7)])
    assert with_sft(source, OfflineRLConfig(sft_data=sft_file), 7, tmp_path / "mixed.jsonl", notes.append) == source
    assert notes == [f"{source} holds 3 SFT rows, so sft_data is not mixed in again"]
    assert with_sft(source, OfflineRLConfig(), 7, tmp_path / "mixed.jsonl", notes.append) == source
    assert len(notes) == 1  # nothing is missing
    assert not (tmp_path / "mixed.jsonl").exists()


def test_who_is_warned(sft_file: Path) -> None:
    def warned(training: TrainingConfig) -> str:
        return mix_warning(training) or ""

    for preset in ("llama2-7b", "llama2-7b-lora", "llama2-7b-qlora", "baichuan2-13b"):
        assert "offline_rl.sft_data is not set" in warned(load_config(preset).offline_rl)
    assert "is not set" in warned(OfflineRLConfig(sft_data=sft_file, sft_samples=0))
    assert "sft_coef=0" in warned(TrainingConfig(sft_data=sft_file, sft_coef=0))
    assert not any(map(warned, (TrainingConfig(), OfflineRLConfig(sft_data=sft_file), OfflineRLConfig(sft_coef=0))))
    assert not warned(load_config("demo").offline_rl)


class Notes(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, message: str) -> None:
        self.lines.append(message)


@pytest.mark.parametrize(
    ("override", "warned"),
    [("seed=0", True), ("offline_rl.sft_coef=0", False), ("offline_rl.sft_data=FILE", False), ("iterations=0", False)],
)
def test_a_run_warns_before_its_first_stage(override: str, warned: bool, tmp_path: Path, sft_file: Path, model_folder: Path) -> None:
    config = load_config("llama2-7b", [f"model.name={model_folder}", "model.dtype=float32", override.replace("FILE", str(sft_file))])
    notes = Notes()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError, match="stopped"):
        patch.setattr(loop, "imitate", _stop)
        loop.run(config, tmp_path / "run", notes)
    assert [line.startswith("warning: offline_rl.sft_data is not set") for line in notes.lines] == [True] * warned


def _stop(_: object) -> None:
    raise RunError("stopped")
