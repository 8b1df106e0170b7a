"""What to change if a stage lacks memory: overrides of options are tried, and the stage is planned again with them."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import UpdateSettings
from spag.config.files import dump_config, parse_config
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.planning.specs import GIB

_LEAN = "PHASE.micro_batch_size=1 PHASE.gradient_checkpointing=true"
_SHARDED, _WHOLE = f"{_LEAN} PHASE.parallel=fsdp", "PHASE.parallel=replicas PHASE.offload=false"
_SMALL = f"PHASE.optimizer=adamw_8bit {_WHOLE}"
_ENGINES = ("PHASE.overlap=0", "PHASE.evaluate_every=null")
_ON_CPU = ("PHASE.micro_batch_size=1", "PHASE.gradient_checkpointing=true", _LEAN)
_ON_GPU = (
    *_ON_CPU,
    "PHASE.parallel=fsdp",
    _SHARDED,
    f"{_SHARDED} PHASE.offload=true",
    _SMALL,
    f"{_LEAN} {_SMALL}",
)
"""Changes that keep the method and the number of GPUs, the nearest first."""
_ADAPTERS = (f"{_LEAN} PHASE.lora={{}} {_WHOLE}", f"{_LEAN} PHASE.lora.quantize=true {_WHOLE}")
_MORE = (2, 4, 8, 16, 32)
Change = tuple[int, str]
"""A number of GPUs, and overrides of options of the engine and of a PHASE."""
Fits = Callable[[RunConfig, int], float | None]
"""Returns the bytes that a stage takes with a config and a number of GPUs; ``None`` if it does not fit."""


def advice(
    config: RunConfig, devices: int, phase: UpdateSettings | None, place: str, fits: Fits, *, on_gpu: bool, splits: bool
) -> list[str]:
    """Return options of ``spag plan`` with which a stage fits: a change that keeps the method and the number of GPUs;
    if there is none, an adapter and more GPUs.

    ``phase``: the settings, which are at ``place``, of the phase that the stage trains, if it does not only play.
    ``splits``: vLLM plays, and can split a model over several GPUs.
    """
    engine, cluster = config.engine, config.cluster
    online = [one.settings for one in config.phases if isinstance(one.settings, OnlineSettings)]
    actors = cluster.actors if phase in online else 0
    shares = splits and phase in online and not actors  # each GPU between trainer and vLLM
    each, playing = engine.gpus if shares else 1, actors * engine.gpus
    processes = (phase and phase.processes) or max(devices // each, 1)

    def trained(line: str, count: int = processes) -> Change:
        """Return a change of the phase with ``count`` processes, for which there may have to be more GPUs."""
        follow = phase is None or (phase.processes is None and each == 1 and not playing)
        words = f"engine.memory=null {line}" if shares else line
        gpus = max(count * each + playing, devices) if on_gpu and phase else devices
        return gpus, words if follow else f"{words} PHASE.processes={count}"

    more = [trained(_SHARDED, count) for count in _MORE if count > processes and on_gpu and phase]
    if splits and (cluster.actors or not online):  # else each trainer would need several GPUs
        engines = actors or ((cluster.workers or 1) if cluster.address else 1)
        beside = processes if actors else 0
        for times in _MORE[:4]:
            gpus = max(beside + engines * engine.gpus * times, devices)
            more.append((gpus, f"engine.tensor_parallel={engine.tensor_parallel * times}"))
    fitting = partial(_first, config, devices, place, fits)
    halvings = () if splits else range(1, engine.concurrency.bit_length())  # vLLM fills its share, whatever plays
    fewer = (f"engine.concurrency={engine.concurrency >> times}" for times in halvings)
    changes = (*_ENGINES, *fewer, *(_ON_GPU if on_gpu else _ON_CPU))
    same = fitting(trained(one) for one in changes if processes > 1 or "fsdp" not in one)
    has_adapter = phase is not None and phase.lora is not None  # then it stays, but may be quantised
    return same or [*fitting(map(trained, _ADAPTERS[has_adapter : 1 + on_gpu])), *fitting(more)]


def _first(config: RunConfig, devices: int, place: str, fits: Fits, changes: Iterable[Change]) -> list[str]:
    """Return the first of ``changes`` that fits, in words, if one does."""
    text, found = dump_config(config), dict[str, bool]()
    for gpus, line in changes:
        overrides = line.replace("PHASE", place).split()
        for one in overrides:
            if one not in found:
                found[one] = False
                with suppress(ConfigError):  # no option of this phase, or one that its algorithm refuses
                    found[one] = parse_config(text, "plan", [one]) != config
        new = [one for one in overrides if found[one]]
        with suppress(ConfigError):  # not together
            if (size := fits(parse_config(text, "plan", new), gpus)) is not None:
                words = [f"--gpus {gpus}"] * (gpus != devices) + [f"--set {one}" for one in new]
                return [f"{' '.join(words)}: {size / GIB:.1f} GiB each"]
    return []
