"""New weights of whole models: the order of calls, the way they take, and refusals, on a stand-in for vLLM on a GPU."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fake_vllm import GIB, FakeGPU, gpu_buffers, installed
from spag.config.schema import ModelConfig, PlannedEngine
from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.engines.base import Request
from spag.engines.vllm import opening, transfer
from spag.engines.vllm.engine import VLLMEngine
from spag.models.loading import load_model

TAKEN = ("begins", "takes", "forgets")


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    """A stand-in GPU of 24 GiB, on which vLLM and its trainer find their buffer by a stand-in for CUDA IPC."""
    found = FakeGPU.of(tmp_path / "gpu", 24 * GIB)
    for name, value in installed(tmp_path / "packages", found, GIB).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    monkeypatch.setattr(opening, "checked_device", lambda device: "cuda")
    monkeypatch.setattr(opening, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(transfer, "gpu_buffers", gpu_buffers)
    return found


@contextmanager
def opened(model: Path, sleep: int = 0) -> Iterator[VLLMEngine]:
    engine = PlannedEngine(max_length=512, sleep=sleep)
    [found] = opening.open_vllm([ModelConfig(name=str(model), dtype="float32")], engine, 1)
    try:
        yield found
    finally:
        found.close()


def ask(engine: VLLMEngine) -> None:
    engine.submit(Request("0", "Hi", SamplingConfig(), 0))
    while not engine.poll():
        pass


@pytest.fixture(scope="module")
def weights(model_folder: Path) -> dict[str, torch.Tensor]:
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    torch.manual_seed(0)
    return {name: torch.randn_like(value) for name, value in model.named_parameters()}


def steps(gpu: FakeGPU, *words: str) -> list[str]:
    """Return what happened, without the name of the process."""
    return [event.partition(" ")[2] for event in gpu.events(*(words or TAKEN))]


@pytest.mark.slow
def test_weights_arrive_whole_and_old_texts_are_forgotten(
    gpu: FakeGPU, model_folder: Path, weights: dict[str, torch.Tensor]
) -> None:
    with opened(model_folder) as engine:
        ask(engine)
        engine.update_weights(weights)
        ask(engine)
        engine.update_weights(weights)
    once = ["begins to take weights", f"takes {len(weights)} weights by ipc", "forgets"]
    assert steps(gpu, *TAKEN, "plays") == ["plays", *once, "plays", *once]
    arrived = load_file(gpu.folder / "weights.safetensors")
    assert arrived.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in arrived.items())


@pytest.mark.slow
def test_a_small_buffer_is_filled_several_times(
    gpu: FakeGPU, model_folder: Path, weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer has room for the largest weight; all are there in the end, in the engine's type."""
    monkeypatch.setattr(transfer, "BUFFER_BYTES", 1)
    largest = max(value.nbytes for value in weights.values())
    with opened(model_folder) as engine:
        engine.update_weights({name: value.double() for name, value in weights.items()})
    parts = [int(event.split()[1]) for event in steps(gpu, "takes ")]
    assert sum(parts) == len(weights) and len(parts) >= sum(value.nbytes for value in weights.values()) // largest
    assert f"buffer holds {largest / GIB:.2f}" in gpu.events("buffer")
    arrived = load_file(gpu.folder / "weights.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in arrived.items())
    assert not (gpu.folder / "buffer").exists()


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_who_sleeps_wakes_with_new_weights(
    level: int, gpu: FakeGPU, model_folder: Path, weights: dict[str, torch.Tensor]
) -> None:
    """Memory for weights first, and for the cache when they are there: the two need not be there at once."""
    with opened(model_folder, sleep=level) as engine:
        ask(engine)
        assert not engine.rest()  # nothing that the model's files do not have
        engine.update_weights(weights)
        ask(engine)
        assert engine.rest() is (level == 2)
        if level == 2:
            with pytest.raises(EngineError, match="dropped new weights when it went to sleep"):
                ask(engine)
            engine.update_weights(weights)
        ask(engine)
    update = ["begins to take weights", f"takes {len(weights)} weights by ipc", "wakes kv_cache", "forgets"]
    slept = f"sleeps at level {level}"
    again = ["wakes weights", *update] if level == 2 else ["wakes weights and kv_cache"]
    assert steps(gpu, *TAKEN, "plays", "sleeps", "wakes", "loads") == [
        "plays", slept, "wakes weights", *update, "plays", slept, *again, "plays",
    ]  # fmt: skip


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.slow
def test_without_cuda_ipc_weights_take_the_way_over_host_memory(
    gpu: FakeGPU, model_folder: Path, weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, tmp_path: Path,
) -> None:  # fmt: skip
    """vLLM's own refusal is the reason in the log, once; afterwards nobody asks for CUDA IPC again."""
    monkeypatch.setenv("FAKE_REFUSES", "ipc")
    monkeypatch.setattr("spag.engines.vllm.transfer.SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    with opened(model_folder) as engine, caplog.at_level(logging.WARNING):
        for _ in range(2):
            engine.update_weights(weights)
            ask(engine)
    [said] = warnings_in(caplog)
    assert said.startswith("new weights go through host memory, not CUDA IPC: IPC handle not found for GPU UUID")
    taken = f"takes {len(weights)} weights by host"
    assert steps(gpu) == ["begins to take weights"] * 2 + [taken, "forgets", "begins to take weights", taken, "forgets"]
    assert not list((tmp_path / "shm").iterdir())
    assert gpu.events("buffer")[-1] == "buffer holds 0.00"


@pytest.mark.slow
def test_without_memory_for_a_buffer_weights_take_the_way_over_host_memory(
    gpu: FakeGPU, model_folder: Path, weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    @contextmanager
    def full(gpus: Sequence[int], size: int) -> Iterator[Any]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB.\nMore")
        yield

    monkeypatch.setattr(transfer, "gpu_buffers", full)
    with opened(model_folder) as engine, caplog.at_level(logging.WARNING):
        engine.update_weights(weights)
        ask(engine)
    assert warnings_in(caplog) == [
        "new weights go through host memory, not CUDA IPC: CUDA out of memory. Tried to allocate 256.00 MiB."
    ]
    assert steps(gpu) == ["begins to take weights", f"takes {len(weights)} weights by host", "forgets"]


@pytest.mark.slow
def test_what_does_not_fit_reaches_nobody(gpu: FakeGPU, model_folder: Path, weights: dict[str, torch.Tensor]) -> None:
    first = next(iter(weights))
    with opened(model_folder) as engine:
        for wrong in ({"model.nothing": torch.zeros(1)}, {**weights, first: torch.zeros(3)}):
            with pytest.raises(EngineError, match="the model has no weight of this name and shape"):
                engine.update_weights(wrong)
        lacking = {name: value for name, value in weights.items() if name != first}
        with pytest.raises(EngineError, match=f"^{first}: one of 1 missing weights; vLLM needs the whole model$"):
            engine.update_weights(lacking)
        engine.submit(Request("0", "Hi", SamplingConfig(), 0))
        with pytest.raises(EngineError, match="weights change only between requests"):
            engine.update_weights(weights)
    assert steps(gpu) == []
