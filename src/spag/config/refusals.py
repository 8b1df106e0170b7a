"""Settings that training refuses; checked by plans, without a GPU, and by training before its first step."""

from collections.abc import Iterator

from spag.algorithms.settings import UpdateSettings


def training_refusals(settings: UpdateSettings, dtype: str) -> Iterator[str]:
    """Yield why training cannot work with ``settings`` and ``model.dtype``."""
    kind, lora = settings.parallel, settings.lora
    if kind != "replicas" and lora is not None and lora.quantize:
        yield f"parallel={kind} with lora.quantize: a model in 4 bits is not sharded; set parallel=replicas"
    if kind != "replicas" and settings.optimizer == "adamw_8bit":
        yield f"parallel={kind} with optimizer=adamw_8bit: moments in 8 bits are not sharded; set parallel=replicas"
    if kind != "replicas" and settings.per_role:
        yield f"parallel={kind} with lora.per_role: adapters take turns in whole models; set parallel=replicas"
    if kind == "fsdp" and dtype == "float16":
        yield "parallel=fsdp with model.dtype=float16: set model.dtype to bfloat16 or float32"
