"""Trainings in two processes on the CPU, against the same trainings in one: FSDP2, ZeRO-3, the launcher. Ray Train:
``tests/cluster``.
"""

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import together
from safetensors.torch import load_file
from tiny import job as tiny_job
from tiny import settings, train_tiny

import forked
from spag.config.schema import ModelConfig, PhaseConfig
from spag.core.errors import ConfigError, RunError
from spag.core.progress import SilentReporter
from spag.learning import processes
from spag.learning.checkpoints import STATE
from spag.learning.launch import train_on
from spag.models.loading import load_model
from tiny_model import make_model

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
FULL, ADAPTER = "checkpoint/model.safetensors", "checkpoint/adapter_model.safetensors"
CLOSE = 1e-4
LAUNCHER = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # torch's launcher leaves its log files open

pytestmark = pytest.mark.long

Job = dict[str, Any]


def twenty(**changes: Any) -> PhaseConfig:
    return settings(learning_rate=1e-3, max_steps=20, **changes)


def uneven(**changes: Any) -> PhaseConfig:
    return settings(
        learning_rate=1e-3, global_batch_size=10, **changes
    )  # 5 micro-batches an update, and 1 in the last: one process of two gets the filler


def adapter(**changes: Any) -> PhaseConfig:
    upstream = {"loss_group": 2, "lr_scheduler": "warmup_decay_0.13"}
    return settings(learning_rate=1e-2, lora={"rank": 2, "alpha": 4}, **upstream, **changes)


def distance(one: Path, other: Path, file: str = FULL) -> float:
    left, right = load_file(one / file), load_file(other / file)
    assert set(left) == set(right)
    assert {value.dtype for value in left.values()} == {value.dtype for value in right.values()}
    return max((left[name] - right[name]).abs().max().item() for name in left)


def rows(output: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if key != "samples_per_second" and value is not None} for row in read
    ]


def assert_same(one: Path, other: Path, file: str = FULL) -> None:
    assert distance(one, other, file) < CLOSE
    for left, right in zip(rows(one), rows(other), strict=True):
        assert left == pytest.approx(right, abs=CLOSE, rel=CLOSE)


def job(model: Path, output: Path, chosen: PhaseConfig, **more: Any) -> Job:
    return {"model": str(model), "output": str(output), "settings": chosen.model_dump(mode="json"), **more}


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join(str(path) for path in (SOURCE, HERE, HERE.parent))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def run_together(folder: Path, jobs: list[Job]) -> None:
    """Do ``jobs`` in two processes."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    processes = forked.start_pair(together.main, str(folder / "jobs.json"))
    assert [forked.end(process) for process in processes] == [0, 0]


@pytest.fixture(scope="module")
def alone(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same trainings in one process."""
    folder = tmp_path_factory.mktemp("alone")
    for name, chosen in {"twenty": twenty(), "uneven": uneven(), "adapter": adapter()}.items():
        train_tiny(model_folder, folder / name, chosen)
    return folder


@pytest.fixture(scope="module")
def tied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tied") / "model", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def fsdp(model_folder: Path, tied_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings in two processes with FSDP2; ``resumed`` was begun by a single process without, ``stopped`` is not
    done.
    """
    folder = tmp_path_factory.mktemp("fsdp")
    together.run(job(model_folder, folder / "resumed", twenty(), stop=5))
    shared = {"parallel": "fsdp"}
    jobs = [
        job(model_folder, folder / "twenty", twenty(gradient_checkpointing=True, **shared)),
        job(model_folder, folder / "uneven", uneven(**shared)),
        job(model_folder, folder / "adapter", adapter(offload=True, **shared)),
        job(tied_folder, folder / "tied", uneven(**shared)),
        job(model_folder, folder / "resumed", twenty(**shared)),
        job(model_folder, folder / "stopped", twenty(**shared), stop=5),
    ]
    run_together(folder, jobs)
    for name in ("twenty", "uneven", "tied", "resumed"):
        # Beside what stays gathered after the forward pass. One process may evaluate or save for long.
        kinds = set(json.loads((folder / f"{name}.json").read_text()))
        assert {"fsdp", "waits 1 day, 0:00:00"} <= kinds
        assert "whole gradients" not in kinds
    return folder


@pytest.mark.parametrize("name", ["twenty", "uneven"])
def test_fsdp_gives_the_losses_and_weights_of_one_process(alone: Path, fsdp: Path, name: str) -> None:
    assert_same(alone / name, fsdp / name)


def test_fsdp_trains_an_adapter_and_saves_it_alone(alone: Path, fsdp: Path) -> None:
    assert_same(alone / "adapter", fsdp / "adapter", ADAPTER)
    assert not (fsdp / "adapter" / FULL).exists()


def test_tied_embeddings_stay_one_tensor_under_fsdp(tied_folder: Path, fsdp: Path, tmp_path: Path) -> None:
    train_tiny(tied_folder, tmp_path, uneven())
    assert_same(tmp_path, fsdp / "tied")
    assert "lm_head.weight" not in load_file(fsdp / "tied" / FULL)
    load_model(str(fsdp / "tied" / "checkpoint"), device="cpu")


def test_replicas_of_which_one_has_no_samples_left_train_as_one_process(
    model_folder: Path, alone: Path, tmp_path: Path
) -> None:
    run_together(tmp_path, [job(model_folder, tmp_path / "uneven", uneven())])
    assert_same(alone / "uneven", tmp_path / "uneven")


def test_replicas_train_texts_on_both_sides_of_longropes_limit_as_one_process(tmp_path: Path) -> None:
    """There one process may have a buffer more than the other, and DDP would synchronise as many as the first has."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 8.0}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors, "original_max_position_embeddings": 20}
    folder = make_model(tmp_path / "model", rope_parameters=rope)
    each_with_one = settings(learning_rate=1e-3, global_batch_size=2, micro_batch_size=1, max_steps=10)
    train_tiny(folder, tmp_path / "one", each_with_one)
    run_together(tmp_path, [job(folder, tmp_path / "two", each_with_one)])
    assert_same(tmp_path / "one", tmp_path / "two")


def test_what_one_process_began_two_with_fsdp_finish(alone: Path, fsdp: Path) -> None:
    assert_same(alone / "twenty", fsdp / "resumed")


def test_what_two_with_fsdp_began_one_process_finishes(model_folder: Path, alone: Path, fsdp: Path) -> None:
    assert (fsdp / "stopped" / "state" / "checkpoint-4" / STATE).exists()
    steps: list[int] = []
    train_tiny(model_folder, fsdp / "stopped", twenty(), progress=lambda at: steps.append(at.step))
    assert steps == list(range(5, 21))
    assert_same(alone / "twenty", fsdp / "stopped")


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_zero3_gives_the_losses_and_weights_of_one_process(model_folder: Path, alone: Path, tmp_path: Path) -> None:
    shared = {"parallel": "deepspeed"}
    jobs = [
        job(model_folder, tmp_path / "twenty", twenty(gradient_checkpointing=True, **shared), stop=5),
        job(model_folder, tmp_path / "twenty", twenty(gradient_checkpointing=True, **shared)),
        job(model_folder, tmp_path / "uneven", uneven(offload=True, **shared)),
        job(model_folder, tmp_path / "adapter", adapter(**shared)),
        job(model_folder, tmp_path / "stopped", twenty(**shared), stop=5),
    ]
    run_together(tmp_path, jobs)
    for name, file in {"twenty": FULL, "uneven": FULL, "adapter": ADAPTER}.items():
        offloaded = ["optimizer on the CPU", "parameters on the CPU"] if name == "uneven" else []
        assert json.loads((tmp_path / f"{name}.json").read_text()) == [*offloaded, "waits 1 day, 0:00:00", "zero3"]
        assert_same(alone / name, tmp_path / name, file)
    with pytest.raises(
        RunError, match=r"checkpoint-4 was saved by DeepSpeed; resume with parallel=deepspeed and processes=2"
    ):
        train_tiny(model_folder, tmp_path / "stopped", twenty())


KILLER = """
import os, signal, threading, time

def kill_after(marker):
    while not os.path.exists(marker):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ.get("RANK") == "1":
    threading.Thread(target=kill_after, args=[os.environ["SPAG_TEST_MARKER"]], daemon=True).start()
"""


def launch(model: Path, folder: Path, name: str, chosen: PhaseConfig) -> dict[str, Any]:
    return train_on(tiny_job(model, folder / name, chosen), SilentReporter(), "test")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that the launcher starts find this checkout."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


@LAUNCHER
@pytest.mark.usefixtures("children")
def test_a_killed_process_ends_the_job_in_one_line_and_the_same_call_resumes(
    model_folder: Path, alone: Path, tmp_path: Path, training_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = tmp_path / "killer"
    killer.mkdir()
    (killer / "sitecustomize.py").write_text(KILLER)
    chosen, before = twenty(processes=2), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(processes, "WORKER", training_command)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(killer), os.environ["PYTHONPATH"]]))
        patch.setenv("SPAG_TEST_MARKER", str(tmp_path / "run" / "state" / "checkpoint-4" / STATE))
        expected = (
            r"^\S+run: process 1 of 2 \(they count from 0\) was killed by SIGKILL.*; the same "
            r"command resumes the training$"
        )
        with pytest.raises(RunError, match=expected):
            launch(model_folder, tmp_path, "run", chosen)
    assert signal.getsignal(signal.SIGTERM) == before
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert list((tmp_path / "run" / "state").glob(f"checkpoint-*/{STATE}"))
    result = launch(model_folder, tmp_path, "run", chosen)
    assert (result["steps"], result["metrics"]["step"]) == (20, 20)
    assert_same(alone / "twenty", tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "checkpoint",
        "metrics.jsonl",
        "reference.jsonl",
        "samples.jsonl",
        "training.json",
    }


@LAUNCHER
@pytest.mark.usefixtures("children")
def test_an_error_in_a_process_is_the_error_of_the_call(
    model_folder: Path, tmp_path: Path, training_command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WORKER", training_command)
    chosen, model = settings(processes=1, parallel="fsdp"), ModelConfig(dtype="float16", device="cpu")
    with pytest.raises(ConfigError, match=r"^model.dtype=float16: training on the CPU needs bfloat16 or float32$"):
        train_on(tiny_job(model_folder, tmp_path / "run", chosen, model=model), SilentReporter(), "test")
