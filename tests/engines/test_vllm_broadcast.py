"""New weights for engines on other devices: the group, its order and its refusals, on a stand-in for vLLM, with gloo in
the place of NCCL.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fake_vllm import GIB, FakeGPU, installed
from gloo_nccl import at_the_trainer
from spag.config.schema import ModelConfig, PlannedEngine
from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.engines.base import GroupPlace, Request
from spag.engines.vllm import broadcast, opening
from spag.engines.vllm.broadcast import WeightBroadcast, in_background, open_broadcast
from spag.engines.vllm.engine import VLLMEngine
from spag.engines.vllm.pool import VLLMPool
from spag.engines.vllm.worker import WorkerOrder
from spag.models.loading import load_model

Weights = dict[str, torch.Tensor]
TAKEN = ("begins", "takes", "forgets", "plays")
BUSY_S = 300
"""How long a busy machine may take to form a group, or to send weights."""


class Bench:
    """Engines on stand-in GPUs of their own, in processes of their own."""

    def __init__(self, folder: Path, model: Path, patch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.folder, self.model, self.patch, self.stack = folder, model, patch, stack
        self.end = WeightBroadcast(ModelConfig(name=str(model), dtype="float32"), torch.device("cpu"), "")
        stack.callback(self.end.close)
        self.gpus: list[FakeGPU] = []
        self.engines: list[VLLMEngine] = []

    def open(self, *, nccl: bool = True) -> VLLMEngine:
        place = self.folder / str(len(self.gpus))
        self.gpus.append(FakeGPU.of(place / "gpu", 24 * GIB))
        for name, value in installed(place / "packages", self.gpus[-1], GIB).items():
            self.patch.setenv(name, value)
        options = PlannedEngine(max_length=512, nccl=nccl)
        [engine] = opening.open_vllm([ModelConfig(name=str(self.model), dtype="float32")], options, 1)
        self.stack.callback(engine.close)
        self.engines.append(engine)
        return engine

    def form(self, engines: Sequence[VLLMEngine]) -> list[str | None]:
        """Form a group of the trainer's end and ``engines``; return what they say."""
        *ranks, size = accumulate((int(engine.group_size()[1]) for engine in engines), initial=1)
        place = GroupPlace("127.0.0.1", free_port(), size)
        end = self.end.open(place)
        joined = at_once(
            [partial(engine.join_group, replace(place, rank=rank)) for engine, rank in zip(engines, ranks, strict=True)]
        )
        end.result(BUSY_S)
        return joined

    def send(self, weights: Weights, engines: Sequence[VLLMEngine]) -> None:
        named, update = self.end.described(weights)
        end = self.end.send(named)
        at_once([partial(engine.receive_weights, update) for engine in engines])
        end.result(BUSY_S)

    def steps(self, number: int, *words: str) -> list[str]:
        """Return what happened on an engine's GPU, without the name of the process."""
        return [event.partition(" ")[2] for event in self.gpus[number].events(*(words or TAKEN))]

    def arrived(self, number: int) -> Weights:
        return load_file(self.gpus[number].folder / "weights.safetensors")


def at_once(calls: Sequence[Callable[[], str | None]]) -> list[str | None]:
    """Make all calls at the same time; raise the first error."""
    answers: list[str | None] = []
    waiting = [in_background(lambda call: answers.append(call()))(call) for call in calls]
    for one in waiting:
        one.result(BUSY_S)
    return answers


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(engine: VLLMEngine) -> None:
    engine.submit(Request("0", "Hi", SamplingConfig(), 0))
    while not engine.poll():
        pass


def assert_same(arrived: Weights, sent: Weights) -> None:
    assert arrived.keys() == sent.keys()
    assert all(torch.equal(value, sent[name]) for name, value in arrived.items())


@pytest.fixture
def bench(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    monkeypatch.setattr(opening, "checked_device", lambda device: "cuda")
    monkeypatch.setattr(opening, "visible_gpus", lambda: ["0"])
    at_the_trainer(monkeypatch)
    with ExitStack() as stack:
        yield Bench(tmp_path, model_folder, monkeypatch, stack)


@pytest.fixture(scope="module")
def weights(model_folder: Path) -> Weights:
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    torch.manual_seed(0)
    return {name: torch.randn_like(value) for name, value in model.named_parameters()}


@pytest.mark.slow
def test_all_engines_get_all_weights_and_forget_old_texts(
    bench: Bench, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many chunks, in the engines' type; then a group of one more engine gets others."""
    monkeypatch.setattr(broadcast, "BUFFER_BYTES", 2000)
    first, second = bench.open(), bench.open()
    ask(first)
    assert bench.form([first, second]) == [None, None]
    bench.send({name: value.double() for name, value in weights.items()}, [first, second])
    ask(first)
    update = ["begins to take weights", f"takes {len(weights)} weights by nccl", "forgets"]
    assert [bench.steps(0), bench.steps(1)] == [["plays", *update, "plays"], update]
    for number in (0, 1):
        assert_same(bench.arrived(number), weights)
    halves = {name: value / 2 for name, value in weights.items()}
    three = [first, bench.open(), second]
    assert bench.form(three) == [None] * 3
    bench.send(halves, three)
    assert [bench.steps(number, "joins") for number in range(3)] == [
        ["joins as 1 of 3", "joins as 1 of 4"], ["joins as 2 of 3", "joins as 3 of 4"], ["joins as 2 of 4"],
    ]  # fmt: skip
    for number in range(3):
        assert_same(bench.arrived(number), halves)


@pytest.mark.slow
def test_what_vllm_refuses(bench: Bench, weights: Weights) -> None:
    """An engine started for weights on its own GPU joins no group; outside a group nothing is received, and the engine
    ends.
    """
    own, other = bench.open(nccl=False), bench.open()
    assert own.group_size() == "its vLLM takes weights by ipc"
    refused = own.join_group(GroupPlace("127.0.0.1", free_port(), 2, 1))
    assert refused is not None and refused.startswith("Invalid init_info for IPCWeightTransferEngine")
    ask(own)
    _, update = bench.end.described(weights)
    with pytest.raises(EngineError, match="vLLM ended: RuntimeError: NCCL weight transfer not initialized"):
        other.receive_weights(update)
    with pytest.raises(EngineError, match="vLLM ended"):
        bench.open().join_group(GroupPlace("127.0.0.1", free_port(), 2, 2))  # ranks 0 and 1 are all


@pytest.mark.slow
def test_outside_a_group_weights_go_through_host_memory(bench: Bench, weights: Weights) -> None:
    """vLLM has one transfer an engine, and that of this one is not CUDA IPC. A group may still be formed later."""
    engine = bench.open()
    engine.update_weights(weights)
    ask(engine)
    assert_same(bench.arrived(0), weights)
    bench.form([engine])
    bench.send(weights, [engine])
    assert bench.steps(0, "takes") == [f"takes {len(weights)} weights by {way}" for way in ("host", "nccl")]


@pytest.mark.slow
def test_weights_change_between_requests(bench: Bench, weights: Weights) -> None:
    engine = bench.open()
    bench.form([engine])
    engine.submit(Request("0", "Hi", SamplingConfig(), 0))
    with pytest.raises(EngineError, match="weights change only between requests"):
        engine.receive_weights({})
    while not engine.poll():
        pass
    bench.send(weights, [engine])
    plays, begins, takes, forgets = bench.steps(0)
    assert (plays, begins, forgets) == ("plays", "begins to take weights", "forgets") and "nccl" in takes
    with pytest.raises(EngineError, match="one of 1 weights that lack"):
        bench.end.described(dict(list(weights.items())[1:]))


@pytest.mark.slow
def test_a_send_whose_engine_dies_hangs_until_the_group_is_left(
    bench: Bench, weights: Weights, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(broadcast, "BUFFER_BYTES", 2000)
    monkeypatch.setenv("FAKE_DIES", str(tmp_path / "dies"))
    engine = bench.open()
    bench.form([engine])
    named, update = bench.end.described(weights)
    sending = bench.end.send(named)
    with pytest.raises(EngineError, match="vLLM ended: exit status -9"):
        engine.receive_weights(update)
    with pytest.raises(TimeoutError):
        sending.result(0.5)
    bench.end.close()
    assert sending.exception(60) is not None
    for thread in (one for one in threading.enumerate() if one.name == "spag-broadcast"):
        thread.join(60)  # it has its result, and may be about to end
        assert not thread.is_alive()


def test_every_process_of_an_actor_has_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas of two processes after three others: 4 and 5, 6 and 7 of 8."""
    told: list[WorkerOrder] = []

    class Replica:
        def send(self, message: WorkerOrder) -> None:
            told.append(message)

        def receive(self) -> None:
            return None

    pool = VLLMPool.__new__(VLLMPool)
    pool.arguments = {"tensor_parallel_size": 2, "weight_transfer_config": {"backend": "nccl"}}
    pool._replicas = [Replica(), Replica()]  # type: ignore[list-item]
    assert pool.group_size()[1] == 4
    assert pool.join_group(GroupPlace("10.0.0.1", 29500, 8, 4)) is None
    assert [message.arguments[0]["rank_offset"] for message in told] == [4, 6]
    assert {message.arguments[0]["world_size"] for message in told} == {8}


def test_where_no_group_can_be_formed_the_reason_is_named(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelConfig(name=str(model_folder))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_broadcast(model) == "the first training process has no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for found in (None, ("0.32.0", True)):
        monkeypatch.setattr(broadcast, "installed_vllm", lambda found=found: found)
        assert open_broadcast(model) == "no vLLM for GPUs is installed where the first training process runs"
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "x", "r": 8}')
    assert open_broadcast(model.model_copy(update={"name": str(tmp_path)})) == "vLLM reads adapters from folders"
