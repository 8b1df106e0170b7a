"""The nearest settings with which a training fits, where it does not as it is."""

from collections.abc import Callable, Iterator
from typing import Any

from spag.config.schema import LoraConfig, TrainingConfig
from spag.planning.gpus import GIB
from spag.planning.memory import Memory

_GPUS = (2, 4, 8, 16, 32, 64, 128)
MemoryOf = Callable[[TrainingConfig, int], Memory]


def training_remedies(training: TrainingConfig, processes: int, memory_of: MemoryOf, room: float) -> tuple[str, ...]:
    """Return what would make ``training`` fit into ``room`` bytes a GPU.

    One setting that computes the same on as many GPUs as there are; without such, adapters instead of all weights, and more GPUs.
    """

    def fits(changes: dict[str, Any], gpus: int) -> bool:
        chosen = training.model_copy(update=changes)
        divides = chosen.global_batch_size % (chosen.micro_batch_size * gpus) == 0
        return divides and memory_of(chosen, gpus).total <= room

    for changes in _same_result(training, processes):
        if fits(changes, processes):
            return (_described(changes, memory_of(training.model_copy(update=changes), processes)),)
    found = []
    sharded = {"parallel": _sharded(training), "gradient_checkpointing": True, "micro_batch_size": 1}
    many = () if _quantized(training) else (gpus for gpus in _GPUS if gpus > processes)
    more = next((gpus for gpus in many if fits(sharded, gpus)), None)
    for changes in _adapters(training):
        if fits(changes, processes):
            found.append(_described(changes, memory_of(training.model_copy(update=changes), processes)))
            break
    if more:
        memory = memory_of(training.model_copy(update=sharded), more)
        found.append(f"{more} GPUs and " + _described(_new(training, sharded), memory))
    return tuple(found)


def _same_result(training: TrainingConfig, processes: int) -> Iterator[dict[str, Any]]:
    """Yield changes that compute the same, the least first."""
    leaner: list[dict[str, Any]] = [{"micro_batch_size": 1}, {"gradient_checkpointing": True}]
    leaner.append({"micro_batch_size": 1, "gradient_checkpointing": True})
    steps = [_new(training, changes) for changes in leaner]
    yield from (changes for changes in steps if changes)
    if processes == 1 or _quantized(training):
        return
    for offload in (False, True):
        sharing = _new(training, {"parallel": _sharded(training), "offload": offload or training.offload})
        yield from (sharing | changes for changes in ({}, *steps) if sharing | changes)


def _adapters(training: TrainingConfig) -> Iterator[dict[str, Any]]:
    plain = training.lora or LoraConfig()
    if _quantized(training):
        return
    for lora in (plain.model_copy(update={"quantize": False}), plain.model_copy(update={"quantize": True})):
        for changes in ({}, {"micro_batch_size": 1, "gradient_checkpointing": True}):
            alone = {"parallel": "replicas", "offload": False} if lora.quantize else {}  # 4-bit weights are not sharded
            yield _new(training, {"lora": lora, **alone, **changes})


def _quantized(training: TrainingConfig) -> bool:
    return training.lora is not None and training.lora.quantize


def _sharded(training: TrainingConfig) -> str:
    return "fsdp" if training.parallel == "replicas" else training.parallel


def _new(training: TrainingConfig, changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if getattr(training, name) != value}


def _described(changes: dict[str, Any], memory: Memory) -> str:
    parts = []
    for name, value in changes.items():
        if isinstance(value, LoraConfig):
            parts.append("lora={quantize: true} (QLoRA)" if value.quantize else "lora={}")
        else:
            parts.append(f"{name}={str(value).lower()}")
    return f"{', '.join(parts)}: {memory.total / GIB:.1f} GiB a GPU"
