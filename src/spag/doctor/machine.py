"""The machine's hardware and packages as plain data. torch is imported here; one that cannot be is a finding, not a crash."""

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import constants

from spag.core.errors import first_line
from spag.core.machine import memory_bytes
from spag.engines.vllm.setup import installed_vllm

OPTIONAL = {
    "deepspeed": ("parallel: deepspeed", "'.[deepspeed]'"),
    "bitsandbytes": ("QLoRA: lora.quantize", "'.[qlora]'"),
    "ray": ("clusters: cluster.address", "'.[cluster]'"),
    "lm-eval": ("reasoning tasks: spag eval", "'.[eval]'"),
    "fastapi": ("the web page: spag web", "'.[web]'"),
}
"""Packages that not every run needs: what for, and what ``pip install`` calls them in a clone."""
_NVIDIA = Path("/proc/driver/nvidia/version")
_SHARED = Path("/dev/shm")


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
    torch_trouble: why torch cannot be imported. shared: size of /dev/shm, if there is one. disks: free space by purpose. packages: version
    by name. endpoint: address of the OpenAI-compatible endpoint, if set.
    """

    python: str
    system: str
    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    torch_cuda: str | None = None
    torch_trouble: str | None = None
    shared: int | None = None
    disks: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    vllm: tuple[str, bool] | None = None
    endpoint: str | None = None
    has_key: bool = False


def look_around() -> Machine:
    """Return what this machine has. Takes a few seconds, for torch."""
    gpus, cuda, trouble = _torch()
    # models.cache_folder, which a broken torch keeps from us
    kept = {"runs/": "runs", "models": constants.HF_HUB_CACHE, "converted models": os.environ.get("SPAG_CACHE", "~/.cache/spag")}
    installed = {one.name.lower().replace("_", "-"): one.version for one in importlib.metadata.distributions()}
    address = os.environ.get("OPENAI_BASE_URL", "")
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=memory_bytes(),
        gpus=gpus,
        driver=_driver(),
        torch_cuda=cuda,
        torch_trouble=trouble,
        shared=shutil.disk_usage(_SHARED).total if _SHARED.is_dir() else None,
        disks={what: _free(place) for what, place in kept.items()},
        packages={name: installed[name] for name in ("torch", "transformers", *OPTIONAL) if name in installed},
        vllm=installed_vllm(),
        endpoint=re.sub(r"//[^/@]*@", "//", address).partition("?")[0] or None,  # without name, password and keys
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


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _driver() -> str | None:
    """Return the version of NVIDIA's kernel driver."""
    text = _text(_NVIDIA)
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", text)
    return found.group(1) if found else "unknown" if text else None


def _free(place: str) -> int:
    """Return the free bytes where ``place`` is, or would be."""
    path = Path(place).expanduser().absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free
