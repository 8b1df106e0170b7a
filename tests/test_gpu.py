"""What ``make gpu`` does, whole, with a tiny model on whatever is here; and what only a GPU can show."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from benchmarks import gpu
from benchmarks.gpu_parts import Part, config_of
from benchmarks.harness import Reading
from benchmarks.shapes import config_of as shape_config
from benchmarks.shapes import random_model
from benchmarks.steps import Ours, Work, encoded_samples
from benchmarks.training import planned_gib, run

import forked
from spag.config.schema import PlannedEngine
from spag.core.progress import SilentReporter
from spag.learning.job import TrainingJob
from spag.learning.launch import train_on
from spag.models.forward import probe_capabilities, to_device, token_scores
from spag.models.loading import load_model, load_tokenizer
from spag.models.samples import collate
from spag.planning.here import planned_engines
from spag.planning.specs import read_shape, shape_of

ROOT = Path(__file__).parents[1]
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def run_module(module: str, *arguments: str) -> None:
    """Do what ``python -m benchmarks.MODULE`` does, as a target of ``forked.start``."""
    sys.argv = [module, *arguments]
    runpy.run_module(f"benchmarks.{module}", run_name="__main__")


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_everything_is_measured_with_a_tiny_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training is measured in a process as ``make gpu`` starts it; other parts in forks, which have imported torch."""
    alone = gpu.carry_out

    def carry_out(module: str, *arguments: str) -> tuple[str, float]:
        if module == "training":
            return alone(module, *arguments)
        process = forked.start(forked.printing, str(tmp_path / module), run_module, module, *arguments)
        assert process.pid is not None
        with gpu.watched(process.pid) as watch:
            code = forked.end(process)
        said = (tmp_path / module).read_text()
        assert code == 0, said
        return said, watch.peak

    monkeypatch.setattr(gpu, "BEGAN", time.monotonic())
    monkeypatch.setattr(gpu, "carry_out", carry_out)
    gpu.main(["--shape", "qwen3-tiny", "--quick", "--output", str(tmp_path)])
    [path] = tmp_path.glob("gpu-*.json")
    written = json.loads(path.read_text(encoding="utf-8"))
    found = {row["name"]: row for row in written["figures"]}
    assert {"hardware", "versions"} <= written.keys()
    for name, row in found.items():
        assert (row["value"] is not None) != bool(row["note"]), row
        assert name.endswith("MFU") or row["value"] >= 0, row
    parts = [found[f"online: {part}"]["value"] for part in ("play", "reference", "update", "weight transfer", "rest")]
    [step] = [row["value"] for name, row in found.items() if name.startswith("online step")]
    assert sum(parts) == pytest.approx(step)
    play = next(row for name, row in found.items() if name.startswith("play, "))
    assert play["label"] == "flat batch" and play["value"] > 0 and play["beside"] > 0
    memory = [row for name, row in found.items() if name.endswith("peak memory") and row["label"] == "planned"]
    assert len(memory) == 2 and all(row["value"] > 0 and row["beside"] > 0 for row in memory)
    assert "qwen3-tiny" in capfd.readouterr().out


def test_a_part_that_fails_is_in_the_table_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise gpu.PartFailedError("CUDA out of memory")

    monkeypatch.setattr(gpu, "carry_out", fail)
    [row] = gpu.figures_of("qwen3-tiny", tmp_path, quick=True)
    assert (row.value, row.note) == (None, "failed: CUDA out of memory")
    monkeypatch.setattr(gpu, "planned_gib", lambda part: (99.0, "it does not fit"))
    [row] = gpu.online_figures("qwen3-tiny", Part("model"))
    assert row.note == "left out: it does not fit"


def test_a_flat_batch_that_fails_leaves_the_speed_of_play(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(module: str, name: str, part: Part) -> Reading:
        if name == "flat":
            raise gpu.PartFailedError("no engine")
        return Reading(1234.0, {"watched_gib": 5.0})

    monkeypatch.setattr(gpu, "measure", measure)
    play, flat, memory = gpu.play_figures("qwen3-tiny", Part("model"))
    assert (play.name, play.value, play.beside) == ("play, vllm", 1234.0, None)
    assert (flat.value, flat.note) == (None, "failed: no engine")
    assert memory.value == 5.0


@pytest.mark.slow
def test_a_part_tells_its_last_line_and_none_begins_after_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gpu.PartFailedError, match=r"No module named benchmarks\.nothing"):
        gpu.carry_out("nothing")
    monkeypatch.setattr(gpu, "HOUR_S", -1)
    with pytest.raises(gpu.PartFailedError, match="no time is left for it"):
        gpu.carry_out("gpu_parts", "nothing")


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a GPU may be here")
def test_without_a_gpu_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    # make says more when another one calls it, such as that of `make test`
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ended = subprocess.run(["make", "gpu"], cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.splitlines()[0] == "make gpu measures an NVIDIA GPU, and nvidia-smi finds none here"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees no NVIDIA GPU here"):
        gpu.main([])


@pytest.mark.model
def test_shapes_are_those_of_the_models(tmp_path: Path) -> None:
    """Parameters as the models' cards and files count them."""
    counts = {"qwen3-0.6b": 596_049_920, "qwen3-4b": 4_022_468_096, "qwen2.5-7b": 7_615_616_512}
    assert {name: shape_of(shape_config(name), name).parameters for name in gpu.QWEN} == counts
    folder = random_model(tmp_path / "tiny", "qwen3-tiny")
    model, tokenizer = load_model(str(folder), dtype="float32", device="cpu"), load_tokenizer(str(folder))
    assert sum(parameter.numel() for parameter in model.parameters()) == read_shape(str(folder)).parameters
    assert len(tokenizer) == shape_config("qwen3-tiny").vocab_size
    assert tokenizer.decode([len(tokenizer) - 1]) == f" w{len(tokenizer) - 1}"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_model(tmp_path_factory.mktemp("small") / "model", "qwen3-0.6b"))


@ON_GPU
@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
@pytest.mark.parametrize("checkpointing", [0, 1])
def test_training_takes_of_a_gpu_what_was_planned(small: str, optimizer: str, checkpointing: int) -> None:
    work = Work(small, "play", samples=64, micro_batch=32, checkpointing=checkpointing, optimizer=optimizer)  # type: ignore[arg-type]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    more = run("ours", work).more
    assert more["planned_gib"] == pytest.approx(more["peak_gib"], rel=0.15)


@ON_GPU
@pytest.mark.gpu
def test_packed_rows_score_alike_on_a_gpu_and_on_a_cpu(tmp_path: Path) -> None:
    folder = str(random_model(tmp_path / "model", "qwen3-tiny"))
    batch = collate(encoded_samples(Work(folder, "play", samples=64)), packed=True)
    found = []
    for device in ("cpu", "cuda"):
        model = load_model(folder, dtype="float32", device=device)
        capabilities = probe_capabilities(model, 2048)
        assert capabilities.packed
        with torch.no_grad():
            found.append(token_scores(model, to_device(batch, torch.device(device)), capabilities).cpu())
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)


@ON_GPU
@pytest.mark.gpu
def test_gradients_of_a_gpu_are_those_of_float32(small: str) -> None:
    def gradient(dtype: str) -> torch.Tensor:
        setting = Ours(Work(small, "play", dtype=dtype, samples=8, micro_batch=4))
        setting.gradients()
        assert planned_gib(setting) > 0
        return torch.cat([one.grad.flatten() for one in setting.policy.parameters() if one.grad is not None]).cpu()

    exact, half = gradient("float32"), gradient("bfloat16")
    assert torch.cosine_similarity(exact, half, dim=0) > 0.98


@ON_GPU
@pytest.mark.gpu
@pytest.mark.parametrize("sleep", [0, 1])
def test_online_steps_run_as_the_plan_shares_the_gpu(small: str, tmp_path: Path, sleep: int) -> None:
    part = Part(small, games=16, in_flight=16, steps=2, micro_batch=8, tokens=16)
    config = config_of(part)
    [engine] = planned_engines(config).values()
    assert isinstance(engine, PlannedEngine) and engine.memory is not None
    engine = engine.model_copy(update={"sleep": max(sleep, engine.sleep)})
    options = {"model": config.model, "phase": config.phases[0], "game": config.game, "engine": engine}
    result = train_on(
        TrainingJob(**options, start_from=small, output=tmp_path / "online", seed=0), SilentReporter(), "online"
    )
    assert result["steps"] == 2
    rows = [json.loads(line) for line in (tmp_path / "online" / "metrics.jsonl").read_text().splitlines()]
    assert rows[1]["update_weights_s"] > 0
    assert all(row["mismatch_kl"] < 0.05 for row in rows)
