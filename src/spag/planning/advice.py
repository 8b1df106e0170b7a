"""What to change if a stage lacks memory: options are changed together, then as few of them as it takes."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import UpdateSettings
from spag.config.files import dump_config, parse_config
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.planning.specs import GIB

Changes = tuple[str, ...]
"""Overrides of options of the engine and of a PHASE; the last is the first that a stage goes without."""
_WHOLE: Changes = ("PHASE.parallel=replicas", "PHASE.offload=false")
Fits = Callable[[RunConfig, int], float | None]
"""Returns the bytes that a stage takes with a config and a number of GPUs; ``None`` if it does not fit."""


def advice(
    config: RunConfig, devices: int, phase: UpdateSettings | None, place: str, fits: Fits, *, on_gpu: bool, splits: bool
) -> list[str]:
    """Return options of ``spag plan`` with which a stage fits: changes that keep the method and the number of GPUs; if
    there are none, an adapter, and twice as many GPUs or more.

    ``phase``: the settings, which are at ``place``, of the phase that the stage trains, if it does not only play.
    ``splits``: vLLM plays, and can split a model over several GPUs.
    """
    text, engine = dump_config(config), config.engine

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

    halvings = () if splits else range(1, engine.concurrency.bit_length())  # vLLM fills its share, whatever plays
    same: list[Changes] = [(f"engine.concurrency={engine.concurrency >> times}",) for times in halvings]
    adapters: list[Changes] = []
    more: list[tuple[int, Changes]] = []
    if phase:
        lean = _lean(config, devices, phase, splits=splits)
        sharded, small = (*lean, "PHASE.parallel=fsdp", "PHASE.offload=true"), (*lean, "PHASE.optimizer=adamw_8bit")
        same = [lean, *same, *[sharded] * (devices > 1), *[(*small, *_WHOLE)] * on_gpu]
        kinds = ("PHASE.lora={}", "PHASE.lora.quantize=true")[phase.lora is not None : 1 + on_gpu]
        adapters = [(*lean, kind, *_WHOLE) for kind in kinds]
    online = any(isinstance(one.settings, OnlineSettings) for one in config.phases)
    cluster, actors = config.cluster, _actors(config, phase)
    engines = actors or (cluster.workers if cluster.address else 1) or 1
    trainers = _trainers(config, devices, phase, splits=splits) if actors else 0
    for times in (2, 4, 8, 16, 32) if on_gpu else ():
        if phase:
            sharded = (*_lean(config, devices * times, phase, splits=splits), "PHASE.parallel=fsdp")
            more.append((devices * times, sharded))
        if splits and (cluster.actors or not online):  # else each trainer would need several GPUs
            gpus = max(engines * engine.gpus * times + trainers, devices)
            more.append((gpus, (f"engine.tensor_parallel={engine.tensor_parallel * times}",)))
    here = first((devices, one) for one in same)
    return here or [*first((devices, one) for one in adapters), *first(more)]


def _actors(config: RunConfig, phase: UpdateSettings | None) -> int:
    """Return how many engines play for a phase on GPUs of their own."""
    return config.cluster.actors if isinstance(phase, OnlineSettings) else 0


def _trainers(config: RunConfig, gpus: int, phase: UpdateSettings | None, *, splits: bool) -> int:
    """Return how many processes can train a phase on ``gpus`` GPUs, beside its actors or sharing GPUs with vLLM."""
    each, actors = config.engine.gpus, _actors(config, phase)
    shares = splits and isinstance(phase, OnlineSettings) and not actors
    return max(gpus // each if shares else gpus - actors * each, 1)


def _lean(config: RunConfig, gpus: int, phase: UpdateSettings, *, splits: bool) -> Changes:
    """Return what saves memory with any weights and optimiser, and as many processes as ``gpus`` allow."""
    online = isinstance(phase, OnlineSettings)
    steps = ("engine.memory=null", "PHASE.overlap=0", "PHASE.evaluate_every=null") if online else ()
    processes = f"PHASE.processes={_trainers(config, gpus, phase, splits=splits)}"
    return *steps, processes, "PHASE.micro_batch_size=1", "PHASE.gradient_checkpointing=true"
