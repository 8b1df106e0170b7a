"""The machine's hardware and packages as plain data. torch is imported here; one that cannot be is a finding, not a crash."""

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from huggingface_hub import constants, try_to_load_from_cache

from spag.config.files import load_config, preset_names
from spag.core.errors import first_line
from spag.engines.vllm.setup import installed_vllm

PACKAGES = (
    *("torch", "transformers", "accelerate", "peft", "gguf", "openai"),
    *("vllm", "ray", "bitsandbytes", "deepspeed", "lm-eval", "fastapi", "uvicorn"),
)
_NVIDIA = Path("/proc/driver/nvidia/version")
_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that torch sees; ``memory`` in bytes, all of it."""

    name: str
    memory: int
    bfloat16: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine; sizes in bytes.

    memory: what this process may use, by the system or a container's limit. driver: NVIDIA's, also where torch sees no GPU.
    torch_trouble: why torch cannot be imported. disks: free space by purpose. packages: version by name, ``None`` for one not installed.
    models: the presets' models whose weights are here. endpoint: address of the OpenAI-compatible endpoint, if set.
    """

    python: str
    system: str
    cpu: str
    cores: int
    memory: int
    instructions: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    torch_cuda: str | None = None
    torch_trouble: str | None = None
    disks: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str | None] = field(default_factory=dict)
    vllm: tuple[str, bool] | None = None
    models: frozenset[str] = frozenset()
    endpoint: str | None = None
    has_key: bool = False


def look_around() -> Machine:
    """Return what this machine has. Takes a few seconds, for torch."""
    gpus, cuda, trouble = _torch()
    flags = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    vllm = installed_vllm()
    # models.cache_folder, which a broken torch keeps from us
    kept = {"runs/": "runs", "models": constants.HF_HUB_CACHE, "converted models": os.environ.get("SPAG_CACHE", "~/.cache/spag")}
    packages = {name: _version(name) for name in PACKAGES} | {"vllm": vllm[0] if vllm else None}
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpuinfo("model name") or platform.processor() or "unknown",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=_memory(),
        instructions=tuple(name for name in _INSTRUCTIONS if name in flags),
        gpus=gpus,
        driver=_driver(),
        torch_cuda=cuda,
        torch_trouble=trouble,
        disks={what: _free(place) for what, place in kept.items()},
        packages=packages,
        vllm=vllm,
        models=frozenset() if trouble else _local_models(load_config(name).model.name for name in preset_names()),
        endpoint=_endpoint(),
        has_key=bool(os.environ.get("OPENAI_API_KEY", "").strip()),
    )


def _torch() -> tuple[tuple[Gpu, ...], str | None, str | None]:
    """Return the GPUs, the CUDA (or ROCm) that torch is built for, and why torch cannot be imported."""
    try:
        import torch  # noqa: PLC0415 - may be missing or broken, which is what is to be found out
        import transformers  # noqa: F401, PLC0415 - the same
    except (ImportError, OSError) as error:
        return (), None, first_line(error)
    built_for = torch.version.cuda or torch.version.hip
    if not torch.cuda.is_available():
        return (), built_for, None
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return tuple(Gpu(one.name, one.total_memory, bfloat16) for one in found), built_for, None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _cpuinfo(label: str) -> str:
    """Return the first value of ``label`` in the kernel's description of the processor, empty where there is none."""
    found = re.search(rf"^{label}\s*:\s*(.*)$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found.group(1).strip() if found else ""


def _memory() -> int:
    limits = [_text(path).strip() for path in _MEMORY_LIMITS]
    return min(psutil.virtual_memory().total, *(int(limit) for limit in limits if limit.isdigit()), 1 << 60)


def _driver() -> str | None:
    """Return the version of NVIDIA's kernel driver."""
    text = _text(_NVIDIA)
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return found.group(1) if found else "unknown" if text else None


def _free(place: str) -> int:
    """Return the free bytes where ``place`` is, or would be."""
    path = Path(place).expanduser().absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free


def _local_models(names: Iterable[str]) -> frozenset[str]:
    """Return those of the models whose weights are on this machine."""
    from spag.models.loading import EMBEDDED_NAME, embedded_gguf  # noqa: PLC0415 - imports torch

    def is_here(name: str) -> bool:
        if name == EMBEDDED_NAME and embedded_gguf() is not None:
            return True
        weights = ("model.safetensors", "model.safetensors.index.json")
        return Path(name).is_dir() or any(isinstance(try_to_load_from_cache(name, file), str) for file in weights if "/" in name)

    return frozenset(filter(is_here, names))


def _endpoint() -> str | None:
    """Return the endpoint's address without name and password."""
    address = os.environ.get("OPENAI_BASE_URL")
    return re.sub(r"//[^/@]*@", "//", address).partition("?")[0] if address else None
