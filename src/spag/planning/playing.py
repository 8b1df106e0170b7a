"""Memory of one GPU (or process) while playing: weights, keys and values, and the work of a forward pass."""

import math

from spag.config.schema import EngineConfig
from spag.planning.assumptions import Assumptions
from spag.planning.gpus import GIB, GPU
from spag.planning.memory import Memory
from spag.planning.shapes import ModelShape

_GROWTH = 128
"""Positions by which the slot cache grows: ``spag.engines.transformers.slots.GROWTH``, which a test holds equal."""


def number_bytes(dtype: str) -> int:
    """Return the bytes of a number in a dtype of ``model.dtype``; ``auto`` means bfloat16 on a GPU."""
    return 4 if dtype == "float32" else 2


def slot_memory(shape: ModelShape, *, slots: int, longest: int, prefilled: int, dtype: str) -> Memory:
    """Return what the transformers engine holds: ``slots`` texts of at most ``longest`` tokens each, of which ``prefilled`` are read at
    once.
    """
    number = number_bytes(dtype)
    capacity = _GROWTH * math.ceil((longest + 1) / _GROWTH)
    cache = slots * capacity * shape.kv_bytes(number)
    growing = cache / shape.layers if capacity > _GROWTH else 0.0  # a layer's old keys and values beside the new
    rows = slots * prefilled
    layer = rows * (number * (3 * shape.intermediate + 2 * shape.hidden) + 4 * shape.hidden)
    shared = shape.heads // shape.kv_heads
    masks = rows * longest * (1 + shared * (1 + number))
    logits = slots * shape.vocab * (number + 3 * 4)
    return Memory(weights=number * shape.parameters, cache=cache, activations=max(growing, layer + masks), logits=logits)


def vllm_memory(
    shape: ModelShape, engine: EngineConfig, gpu: GPU, assumptions: Assumptions, *, dtype: str, models: int, adapter: int
) -> tuple[Memory, int]:
    """Return what ``models`` vLLM engines together take of a GPU, and the tokens that the cache of each holds.

    vLLM fills its share of the memory: what weights and working space leave is cache. ``adapter``: parameters of all adapters together.
    A negative number of tokens says that not even the weights find room.
    """
    number = number_bytes(dtype)
    each = (engine.memory or 0.9) * gpu.memory / models
    weights = number * (shape.parameters + adapter) / engine.tensor_parallel
    working = assumptions.engine_gib * GIB
    cache = each - weights - working
    tokens = math.floor(cache / (shape.kv_bytes(number) / engine.tensor_parallel))
    return Memory(weights=models * weights, cache=max(models * cache, 0.0), activations=models * working), tokens
