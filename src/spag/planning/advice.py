"""The nearest settings with which training would fit."""

from collections.abc import Callable, Iterator
from typing import Any

from spag.algorithms.settings import LoraConfig, UpdateSettings
from spag.config.refusals import training_refusals
from spag.planning.specs import GIB


def advice(
    settings: UpdateSettings, processes: int, memory: Callable[[UpdateSettings, int], float], room: float, dtype: str,
    *, gpu: bool,
) -> Iterator[str]:  # fmt: skip
    """Yield the nearest settings whose ``memory`` fits into ``room``, with more GPUs if need be."""
    lean: dict[str, Any] = {"micro_batch_size": 1, "gradient_checkpointing": True}
    sharded, lora = lean | {"parallel": "fsdp"}, settings.lora or LoraConfig()
    quantized = {"lora": lora.model_copy(update={"quantize": True}), "parallel": "replicas", "offload": False}
    small = {"optimizer": "adamw_8bit", "parallel": "replicas", "offload": False}
    changes: list[dict[str, Any]] = [{"micro_batch_size": 1}, {"gradient_checkpointing": True}, lean]
    if processes > 1 and gpu:
        changes += [{"parallel": "fsdp"}, sharded, sharded | {"offload": True}]
    changes += [small, lean | small] if gpu else []
    changes += [lean | {"lora": lora}, *([lean | quantized] if gpu else [])]
    more = [count for count in (2, 4, 8, 16, 32) if count > processes and gpu]
    for count, one in [*((processes, one) for one in changes), *((count, sharded) for count in more)]:
        new = {name: value for name, value in one.items() if getattr(settings, name) != value}
        chosen = settings.model_copy(update=new)
        if (taken := memory(chosen, count)) <= room and not any(training_refusals(chosen, count, dtype)):
            said = [f"{count} GPUs"] * (count != processes) + [_setting(*pair) for pair in new.items()]
            yield f"{', '.join(said)}: {taken / GIB:.1f} GiB each"
            if chosen.lora == settings.lora:
                return  # an adapter is a different training: fixes that train the same weights are named too


def _setting(name: str, value: Any) -> str:
    if isinstance(value, LoraConfig):
        return "lora={quantize: true}" if value.quantize else "lora={}"
    return f"{name}={str(value).lower()}"
