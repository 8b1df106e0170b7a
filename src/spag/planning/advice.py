"""What to change if a stage does not fit: settings are changed, and the stage is planned again with them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, TypeVar

from pydantic import ValidationError

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import SELF, LoraConfig
from spag.planning.specs import GIB
from spag.planning.stage import StagePlan, StagePlanner, labels

P = TypeVar("P", bound=StagePlanner)
_ENGINE = "engine"
_BLOCK, _MARGIN = 256, 1.25
"""Advice on ``engine.max_length`` is a multiple of this many tokens, with room beyond the longest text counted here."""


@dataclass(frozen=True, slots=True)
class Change:
    """Changed ``options`` of the engine or of the phase of a label (``place``), on ``gpus`` GPUs or one CPU.

    ``effect`` in words; empty: the memory then. ``words``: instead of options of a command line.
    """

    gpus: int
    place: str
    options: dict[str, Any]
    effect: str = ""
    words: str = ""

    def applied(self, planner: P) -> P:
        """Return the planner of the changed run."""
        config = planner.config
        if self.place == _ENGINE:
            parts: dict[str, Any] = {"engine": config.engine.model_copy(update=self.options)}
        else:
            named = zip(labels(config), config.phases, strict=True)
            phases = [one.model_copy(update=self.options) if label == self.place else one for label, one in named]
            parts = {"phases": phases}
        return replace(planner, config=config.model_copy(update=parts), devices=self.gpus)

    def described(self, planner: StagePlanner) -> str:
        """Return the change as options of ``spag plan``."""
        place = _ENGINE if self.place == _ENGINE else planner.place_of(self.place)
        more = [f"--gpus {self.gpus}"] * (self.gpus != planner.devices)
        return self.words or " ".join([*more, *(_set_words(place, *pair) for pair in self.options.items())])


def fitting(planner: P, plan: Callable[[P], StagePlan], changes: Iterable[Change]) -> Iterator[tuple[Change, str]]:
    """Yield the ``changes`` with which the stage that ``plan`` returns has no problem left, and each in words."""
    for change in changes:
        with suppress(ValidationError):  # an algorithm of another package may refuse it
            stage = plan(change.applied(planner))
            effect = change.effect or f"{stage.memory.total / GIB:.1f} GiB each"
            if not stage.problems:
                yield change, f"{change.described(planner)}: {effect}"


def nearest(found: Iterable[tuple[Change, str]]) -> Iterator[str]:
    """Yield the first change in words. An adapter is a different training: one is named, and the first without."""
    adapted = False
    for change, said in found:
        is_other = "lora" in change.options
        if not (adapted and is_other):
            yield said
        if not is_other:
            return
        adapted = True


def training_changes(planner: StagePlanner, label: str) -> Iterator[Change]:
    """Yield changes of a phase with which its training takes less memory, the nearest first, with more GPUs at last."""
    settings, gpu = planner.phase(label).settings, not planner.device.is_cpu
    plays, engine = isinstance(settings, OnlineSettings), planner.config.engine.gpus
    actors = planner.config.cluster.actors
    playing = actors * engine if plays else 0
    each = engine if plays and gpu and planner.on_vllm and not actors else 1  # GPUs of a process that plays
    processes, lora = settings.processes or max(planner.devices // each, 1), settings.lora or LoraConfig()
    lean = {"micro_batch_size": 1, "gradient_checkpointing": True}
    whole, sharded = {"parallel": "replicas", "offload": False}, lean | {"parallel": "fsdp"}
    small = {"optimizer": "adamw_8bit"} | whole
    changes: list[dict[str, Any]] = [{"micro_batch_size": 1}, {"gradient_checkpointing": True}, lean]
    if processes > 1 and gpu:
        changes += [{"parallel": "fsdp"}, sharded, sharded | {"offload": True}]
    changes += [small, lean | small] if gpu else []
    adapters = [lora, *([lora.model_copy(update={"quantize": True})] if gpu else [])]
    changes += [lean | {"lora": adapter} | whole for adapter in adapters]
    more = [count for count in (2, 4, 8, 16, 32) if count > processes and gpu]
    all_train = settings.processes is None and not playing and each == 1
    for count, one in [*((processes, one) for one in changes), *((count, sharded) for count in more)]:
        options = {name: value for name, value in one.items() if getattr(settings, name) != value}
        if settings.processes != count and not all_train:
            options["processes"] = count
        yield Change(max(count * each + playing, planner.devices) if gpu else planner.devices, label, options)


def engine_changes(planner: StagePlanner, engines: int = 1, training: int = 0) -> Iterator[Change]:
    """Yield changes with which each of ``engines``, beside ``training`` GPUs, takes less memory, the nearest first."""
    engine, splits = planner.config.engine, planner.on_vllm and not planner.device.is_cpu
    online = any(isinstance(phase.settings, OnlineSettings) for phase in planner.config.phases)
    if splits and online and not planner.config.cluster.actors:
        return  # a setting of the whole run, with which each training process would need several GPUs to play
    for times in (2, 4, 8, 16):
        if splits:
            needed = training + engines * engine.gpus * times
            yield Change(max(needed, planner.devices), _ENGINE, {"tensor_parallel": engine.tensor_parallel * times})
        else:
            yield Change(planner.devices, _ENGINE, {"concurrency": ceil(engine.concurrency / times)})


def sharing_changes(planner: StagePlanner, label: str, text: float) -> Iterator[Change]:
    """Yield single changes with which trainer and vLLM may fit together. ``text``: tokens of the longest text."""
    gpus, longest = planner.devices, planner.config.engine.max_length
    alone = "no start, snapshot or other model in opponents and evaluation_opponents"
    yield Change(gpus, _ENGINE, {"memory": None}, "the share that training leaves")
    yield Change(gpus, label, {"overlap": 0}, "vLLM then sleeps while training")
    yield Change(gpus, label, {"opponents": {SELF: 1.0}, "evaluate_every": None}, "one engine", alone)
    shorter = min(_BLOCK * ceil(_MARGIN * text / _BLOCK), longest)
    yield Change(gpus, _ENGINE, {"max_length": shorter}, "less cache at least")


def _set_words(place: str, name: str, value: Any) -> str:
    """Return a setting as words of a command line."""
    if isinstance(value, LoraConfig):
        return f"--set {place}.lora.quantize=true" if value.quantize else f"--set {place}.lora={{}}"
    return f"--set {place}.{name}={'null' if value is None else str(value).lower()}"
