"""What ``spag run --dry-run`` tells: every stage, what would become of it and how much work it is, and whether there is room for it here.

Memory is estimated as ``spag plan`` does. A model whose shape is not known (``specs.py``), or that is converted first, has no estimates.
"""

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spag.config.schema import RunConfig
from spag.core.errors import ModelError
from spag.core.machine import core_count, memory_bytes
from spag.core.progress import Reporter
from spag.planning.hours import Assumptions
from spag.planning.plan import Planner, StagePlan
from spag.planning.specs import GIB, GPU, KNOWN_SHAPES, ModelShape, read_shape
from spag.runs.checks import trainings
from spag.runs.loop import foresee

_STAND_IN = KNOWN_SHAPES["smollm2-135m"]  # the work of a stage does not depend on the model's shape
_PLANS = {"imitation/train": "imitation", "online/train": "online play", "arena": "arena"}
_STATE_BYTES = 12.0
"""Bytes a trained parameter of a checkpoint to resume from: float32 weights and Adam's two moments."""


@dataclass(frozen=True, slots=True)
class StageOutlook:
    """A stage: ``state`` as ``Manifest.foresee`` has it, ``work`` in words."""

    name: str
    state: str
    work: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a run would do. ``facts``: lines by what they are about. ``doubts``: why it would not come to its end here; none: it may."""

    stages: list[StageOutlook]
    facts: dict[str, str]
    doubts: list[str]


def look_ahead(config: RunConfig, folder: Path, reporter: Reporter, *, force: bool = False) -> Outlook:
    """Check a run and say what it would do; nothing is done. Raises what ``run`` raises before its first minute of work."""
    stages = foresee(config, folder, reporter, force=force)
    shape, gpus, room, machine = _shape(config), *_machine(config)
    plans = {plan.name: plan for plan in Planner(config, shape or _STAND_IN, gpus, room, Assumptions(memory_share=1.0)).stages()}
    facts = {"machine": machine, "model": config.model.name + (f", {shape.parameters:,} parameters" if shape else "")}
    doubts: list[str] = []
    if shape is not None:
        due = [name for name, state in stages if state != "done before"]
        for plan in (plans[name] for name in ("imitation", "offline RL", "online training") if name in plans):
            facts[f"memory of {plan.name}"] = f"about {plan.memory.total / GIB:,.1f} GiB of {plan.room / GIB:,.1f} a process"
            if plan.memory.total > plan.room and not config.oversubscribe:
                doubts.append(f"{plan.name} needs {facts[f'memory of {plan.name}']}; spag plan names settings that take less")
        needed, free = _disk(config, shape, due), shutil.disk_usage(_existing(folder)).free
        facts["disk"] = f"models take about {needed / GIB:,.1f} GiB; {free / GIB:,.1f} are free in {_existing(folder)}"
        if needed > free:
            doubts.append(f"{folder}: {facts['disk']}; free space, or choose another --output")
    return Outlook([StageOutlook(name, state, _work(name, plans, config)) for name, state in stages], facts, doubts)


def _shape(config: RunConfig) -> ModelShape | None:
    try:
        return read_shape(config.model.name, trust_remote_code=config.model.trust_remote_code)
    except ModelError:  # of another family, or a GGUF file: its config has been read before
        return None


def _machine(config: RunConfig) -> tuple[int, GPU, str]:
    """Return how many processes train at most, what each of them has of this machine, and the machine in words."""
    from spag.training.launch import gpu_count, process_count  # noqa: PLC0415 - imports torch

    gpus = gpu_count(config.model)
    processes = max([process_count(config.model, training) for training in trainings(config).values()], default=1)
    if gpus:
        import torch  # noqa: PLC0415 - slow to import

        memory, machine = float(torch.cuda.get_device_properties(0).total_memory), f"{gpus} GPUs"
    else:
        memory, machine = memory_bytes() / processes, f"{core_count()} CPU cores"
    return processes, GPU("here", memory, 1e12, 1e11, 1e10), f"{machine}, {memory_bytes() / GIB:,.1f} GiB of memory"


def _work(stage: str, plans: dict[str, StagePlan], config: RunConfig) -> str:
    where, _, part = stage.partition("/")
    name = _PLANS.get(stage) or {"play": "self-play", "train": "offline RL"}.get(part, "")
    if name not in plans:
        return "from the games" if part == "samples" else ""
    plan = plans[name]
    if stage == "online/train":
        return f"{config.online.steps:,} steps of {config.online.games:,} games"
    training = config.imitation.training if where == "imitation" else config.offline_rl
    steps = f", {math.ceil(plan.count / training.global_batch_size):,} steps" if plan.unit == "samples" else ""
    return f"{'about ' if plan.unit == 'samples' else ''}{plan.count:,} {plan.unit}{steps}"


def _disk(config: RunConfig, shape: ModelShape, due: list[str]) -> float:
    """Return the bytes of the models that the due stages save, and of the fullest checkpoint to resume from, old and new."""
    return sum(saved for saved, _ in _saved(config, shape, due)) + max((2 * state for _, state in _saved(config, shape, due)), default=0.0)


def _saved(config: RunConfig, shape: ModelShape, due: list[str]) -> Iterator[tuple[float, float]]:
    """Yield (bytes of the model, bytes of a checkpoint to resume from) of each due training."""
    for option, training in trainings(config).items():
        kind = {"imitation.training": "imitation", "offline_rl": "iteration-", "online": "online"}[option]
        adapters = sum(len(game.roles) for game in config.online_games()) if option == "online" and config.online.per_role else 1
        trained = adapters * shape.adapter(training.lora) or shape.parameters
        count = sum(name.startswith(kind) and name.endswith("/train") for name in due)
        yield from [(4.0 * trained, _STATE_BYTES * trained)] * count


def _existing(folder: Path) -> Path:
    """Return where ``folder`` is, or would be."""
    path = folder.absolute()
    return next(one for one in (path, *path.parents) if one.exists())
