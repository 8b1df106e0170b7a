"""What to change if a stage lacks memory: options are changed together, then as few of them as it takes."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import UpdateSettings
from spag.config.files import dump_config, parse_config, phase_option
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.planning.specs import GIB

if TYPE_CHECKING:
    from spag.planning.plan import Planner

Changes = tuple[str, ...]
"""Overrides of options of the engine and of a PHASE; the last is the first that a stage goes without."""
_WHOLE: Changes = ("PHASE.parallel=replicas", "PHASE.offload=false")
Fits = Callable[[RunConfig, int], float | None]
"""Returns the bytes that a stage takes with a config and a number of GPUs; ``None`` if it does not fit."""


def advice(planner: "Planner", label: str, fits: Fits) -> list[str]:
    """Return options of ``spag plan`` with which a stage fits: changes that keep the method and the number of GPUs; if
    there are none, an adapter, and twice as many GPUs or more.

    ``label``: the phase that the stage trains; empty if it only plays.
    """
    config, devices, on_gpu = planner.config, planner.devices, planner.on_gpu
    text, engine, cluster = dump_config(config), config.engine, config.cluster
    phase = planner.phases[label].settings if label else None
    place = phase_option(config, [*planner.phases].index(label)) if label else ""

    def size(overrides: list[str], gpus: int) -> float | None:
        with suppress(ConfigError):  # an option, or several together, that the algorithm refuses
            return fits(parse_config(text, "plan", overrides), gpus)
        return None

    def first(tried: Iterable[tuple[int, Changes]]) -> list[str]:
        """Return the first changes that help, without those that are not needed, in words."""
        for gpus, changes in tried:
            kept = [one.replace("PHASE", place) for one in changes]
            if (found := size(kept, gpus)) is None:
                continue
            for one in reversed(kept):
                fewer = [other for other in kept if other != one]
                if (without := size(fewer, gpus)) is not None:
                    kept, found = fewer, without
            words = [f"--gpus {gpus}"] * (gpus != devices) + [f"--set {one}" for one in kept]
            return [f"{' '.join(words)}: {found / GIB:.1f} GiB each"]
        return []

    halvings = () if planner.splits else range(1, engine.concurrency.bit_length())  # vLLM fills its share anyway
    same: list[Changes] = [(f"engine.concurrency={engine.concurrency >> times}",) for times in halvings]
    adapters: list[Changes] = []
    more: list[tuple[int, Changes]] = []
    if phase:
        lean = _lean(planner, devices, phase)
        sharded, small = (*lean, "PHASE.parallel=fsdp", "PHASE.offload=true"), (*lean, "PHASE.optimizer=adamw_8bit")
        same = [lean, *same, *[sharded] * (devices > 1), *[(*small, *_WHOLE)] * on_gpu]
        kinds = ("PHASE.lora={}", "PHASE.lora.quantize=true")[phase.lora is not None : 1 + on_gpu]
        adapters = [(*lean, kind, *_WHOLE) for kind in kinds]
    online = any(isinstance(one.settings, OnlineSettings) for one in config.phases)
    actors = cluster.actors if isinstance(phase, OnlineSettings) else 0
    engines = actors or (cluster.workers if cluster.address else 1) or 1
    trainers = _trainers(planner, devices, phase) if actors else 0
    for times in (2, 4, 8, 16, 32) if on_gpu else ():
        if phase:
            more.append((devices * times, (*_lean(planner, devices * times, phase), "PHASE.parallel=fsdp")))
        if planner.splits and (cluster.actors or not online):  # else each trainer would need several GPUs
            gpus = max(engines * engine.gpus * times + trainers, devices)
            more.append((gpus, (f"engine.tensor_parallel={engine.tensor_parallel * times}",)))
    here = first((devices, one) for one in same)
    return here or [*first((devices, one) for one in adapters), *first(more)]


def _trainers(planner: "Planner", gpus: int, phase: UpdateSettings | None) -> int:
    """Return how many processes can train a phase on ``gpus`` GPUs, beside its actors or sharing GPUs with vLLM."""
    each, actors = planner.config.engine.gpus, planner.config.cluster.actors
    if not isinstance(phase, OnlineSettings):
        return gpus
    return max(gpus // each if planner.splits and not actors else gpus - actors * each, 1)


def _lean(planner: "Planner", gpus: int, phase: UpdateSettings) -> Changes:
    """Return what saves memory with any weights and optimiser, and as many processes as ``gpus`` allow."""
    online = isinstance(phase, OnlineSettings)
    steps = ("engine.memory=null", "PHASE.overlap=0", "PHASE.evaluate_every=null") if online else ()
    processes = f"PHASE.processes={_trainers(planner, gpus, phase)}"
    return *steps, processes, "PHASE.micro_batch_size=1", "PHASE.gradient_checkpointing=true"
