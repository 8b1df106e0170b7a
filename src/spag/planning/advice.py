"""The nearest settings with which training would fit, and why training refuses some."""

from collections.abc import Callable, Iterator
from typing import Any

from spag.algorithms.settings import LoraConfig, OfflineSettings, UpdateSettings
from spag.planning.specs import GIB, Device


def advice(
    settings: UpdateSettings, processes: int, memory: Callable[[UpdateSettings, int], float], room: float,
    device: Device, dtype: str,
) -> Iterator[str]:  # fmt: skip
    """Yield the nearest settings whose ``memory`` fits into ``room``, with more GPUs if need be."""
    lean: dict[str, Any] = {"micro_batch_size": 1, "gradient_checkpointing": True}
    sharded, lora = lean | {"parallel": "fsdp"}, settings.lora or LoraConfig()
    quantized = {"lora": lora.model_copy(update={"quantize": True}), "parallel": "replicas", "offload": False}
    small = {"optimizer": "adamw_8bit", "parallel": "replicas", "offload": False}
    changes: list[dict[str, Any]] = [{"micro_batch_size": 1}, {"gradient_checkpointing": True}, lean]
    if processes > 1 and not device.is_cpu:
        changes += [{"parallel": "fsdp"}, sharded, sharded | {"offload": True}]
    changes += [] if device.is_cpu else [small, lean | small]
    changes += [lean | {"lora": lora}, *([] if device.is_cpu else [lean | quantized])]
    more = [count for count in (2, 4, 8, 16, 32) if count > processes and not device.is_cpu]
    for count, one in [*((processes, one) for one in changes), *((count, sharded) for count in more)]:
        new = {name: value for name, value in one.items() if getattr(settings, name) != value}
        chosen = settings.model_copy(update=new)
        if (taken := memory(chosen, count)) <= room and not any(refusals(chosen, count, dtype)):
            said = [f"{count} GPUs"] * (count != processes) + [_setting(*pair) for pair in new.items()]
            yield f"{', '.join(said)}: {taken / GIB:.1f} GiB each"
            if chosen.lora == settings.lora:
                return  # an adapter is another training: what trains the same weights is named too


def refusals(settings: UpdateSettings, processes: int, dtype: str) -> Iterator[str]:
    """Yield why training refuses its settings on so many processes, as ``spag.learning.devices`` does; that imports
    torch.
    """
    kind, lora = settings.parallel, settings.lora
    together = settings.micro_batch_size * processes
    if isinstance(settings, OfflineSettings) and settings.global_batch_size % together:
        what = f"is not a multiple of {together} (micro_batch_size x processes)"
        yield f"global_batch_size={settings.global_batch_size} {what}"
    if kind != "replicas" and lora is not None and lora.quantize:
        yield f"parallel={kind} with lora.quantize: a model in 4 bits is not sharded; set parallel=replicas"
    if kind != "replicas" and settings.optimizer == "adamw_8bit":
        yield f"parallel={kind} with optimizer=adamw_8bit: moments in 8 bits are not sharded; set parallel=replicas"
    if kind != "replicas" and settings.per_role:
        yield f"parallel={kind} with lora.per_role: adapters take turns in whole models; set parallel=replicas"
    if kind == "fsdp" and dtype == "float16":
        yield "parallel=fsdp with model.dtype=float16: set model.dtype to bfloat16 or float32"


def _setting(name: str, value: Any) -> str:
    if isinstance(value, LoraConfig):
        return "lora={quantize: true}" if value.quantize else "lora={}"
    return f"{name}={str(value).lower()}"
