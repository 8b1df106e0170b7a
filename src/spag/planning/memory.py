"""GPU memory of training and play, by purpose, at the fullest moment.

Weights, gradients and Adam's two moments are float32 (``spag.training.run``). Under bfloat16 or float16 autocast a linear map works on a
copy of its weights in half precision, and copies its input too; norms and the residual stream stay float32. ``docs/planning.md`` lists the
tensors that PyTorch keeps for the backward pass of transformers' Llama layer, whose bytes ``_layer_activations`` adds up.
"""

import math
from dataclasses import astuple, dataclass, replace

from spag.config.schema import EngineConfig, TrainingConfig
from spag.planning.specs import GIB, ModelShape

CHUNK = 256
"""Positions whose logits exist at once: ``spag.training.policy.CHUNK``, which a test holds equal (it imports torch, this must not)."""
_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: half a byte, an 8-bit scale for 64 weights, a float32 one for 256 scales (double quantisation)."""
_LIVE = 1e9
"""Parameters that ZeRO-3 keeps gathered at most: DeepSpeed's default of ``stage3_max_live_parameters``."""
_VLLM_WORKING = 2 * GIB
"""vLLM's memory beside weights and cache: CUDA graphs and working space; a guess."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one GPU. ``copies``: weights in the precision of computation, or gathered from other GPUs; ``host``: CPU memory a GPU."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    copies: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    cache: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Bytes on the GPU."""
        return float(sum(astuple(self))) - self.host

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def number_bytes(dtype: str) -> int:
    """Return the bytes of a number in a dtype of ``model.dtype``; ``auto`` means bfloat16 on a GPU."""
    return 4 if dtype == "float32" else 2


def training_memory(shape: ModelShape, training: TrainingConfig, tokens: int, trained: int, *, dtype: str, processes: int) -> Memory:
    """Return the fullest moment of an optimiser step on one of ``processes`` GPUs: ``tokens`` fed in a micro-batch, ``trained`` of them."""
    number = number_bytes(dtype)
    held = _held(shape, training, number, processes)
    moments = _moments(shape, training, tokens, trained, number)
    if training.global_batch_size > training.micro_batch_size * processes:
        candidates = [held + moment for moment in moments]
    else:  # the only backward pass meets no gradients, and leaves all of them when its activations are gone
        candidates = [*(replace(held, gradients=0.0) + moment for moment in moments), held]
    return max(candidates, key=lambda memory: memory.total)


def _held(shape: ModelShape, training: TrainingConfig, number: int, processes: int) -> Memory:
    """Return weights, gradients and Adam's moments, which the whole step holds."""
    adapter = shape.adapter(training.lora)
    trained = adapter or shape.parameters
    weights = 4.0 * (shape.parameters + adapter)
    if training.lora and training.lora.quantize:
        weights += (_NF4 - 4.0) * shape.matrices
    if training.parallel == "deepspeed" and number == 2:
        weights = 2.0 * (shape.parameters + adapter) + 4.0 * trained  # shards in half precision, float32 masters of what is trained
    if training.parallel == "replicas":
        buckets = processes > 1  # DDP's, which are copies of the gradients
        return Memory(weights=weights, gradients=4.0 * trained * (1 + buckets), optimizer=8.0 * trained)
    if training.offload:
        return Memory(host=(weights + 12.0 * trained) / processes)
    return Memory(weights=weights / processes, gradients=4.0 * trained / processes, optimizer=8.0 * trained / processes)


def _moments(shape: ModelShape, training: TrainingConfig, tokens: int, trained: int, number: int) -> list[Memory]:
    """Return what the moments that may be the fullest need beside ``_held``: forward's end, and head and last layer going backward."""
    half = number == 2
    stream = 4.0 * shape.hidden * tokens
    final = 2 * stream  # input of the last norm, and normalised
    layer = _layer_activations(shape, training, number) * tokens
    backward = 2 * stream + 2.0 * number * shape.intermediate * tokens  # gradients on their way through one layer
    gradient = 0.0 if training.lora else (6.0 if half else 4.0) * shape.hidden * max(shape.intermediate, shape.query_size)
    forward_logits, backward_logits = _logits(shape, training, trained, number)
    every, one = _copies(shape, training, number)
    kept, copies, again = shape.layers * layer, every, 0.0
    if training.gradient_checkpointing:
        kept, copies, again = shape.layers * stream, one, layer
    return [
        Memory(copies=every, activations=kept + final, logits=forward_logits),
        Memory(copies=copies, activations=kept + final, logits=backward_logits),
        Memory(copies=copies + gradient, activations=kept + again + backward),
    ]


def _layer_activations(shape: ModelShape, training: TrainingConfig, number: int) -> float:
    """Return the bytes of a token in one layer."""
    h, q, kv, f, lora = shape.hidden, shape.query_size, shape.kv_size, shape.intermediate, training.lora
    norms = (8 if lora else 16) * h + 8 * shape.head_norms * (q + kv)
    adapters = number * len(shape.maps) * lora.rank if lora else 0
    if number == 2:
        return norms + adapters + 10 * h + 6 * q + 6 * kv + 8 * f
    return norms + adapters + 8 * h + 12 * q + 16 * kv + 16 * f


def _logits(shape: ModelShape, training: TrainingConfig, trained: int, number: int) -> tuple[float, float]:
    """Return what head and logits of a chunk need at forward's end and going backward.

    Going backward, the log-softmax, its gradient and the loss's are there at once; under autocast all of them are gone when the head's
    gradient is cast to float32. Where chunks add up, the sum so far waits beside the next chunk's logits.
    """
    full, half = not training.lora, number == 2
    weights = 2.0 * shape.embedding * half
    rows = 1.0 * min(trained, CHUNK) * shape.vocab
    waiting = 1.0 * number * shape.embedding * (full and trained > CHUNK)
    gradient = 6.0 * shape.embedding if half else rows * 4 + 4.0 * shape.embedding + waiting
    return weights + rows * (10 if half else 8), max(weights + rows * 12 + waiting, gradient * full)


def _copies(shape: ModelShape, training: TrainingConfig, number: int) -> tuple[float, float]:
    """Return the weights in the precision of computation at forward's end, and while one layer goes backward."""
    if training.parallel != "replicas":  # gathered: two layers and their gradients; embedding and head stay gathered
        heads = shape.embedding * (1 if shape.tied else 2)
        weights = min(shape.parameters, _LIVE) if training.parallel == "deepspeed" else 2.0 * shape.layer + heads
        gathered = number * (weights + (0 if training.lora else 2 * shape.layer))
        return gathered, gathered
    if training.lora and training.lora.quantize:  # one matrix at a time
        one = 1.0 * number * shape.hidden * shape.intermediate
        return one, one
    if number == 4:
        return 0.0, 0.0
    # Autocast keeps the copies of trained weights until the forward pass ends; frozen ones live on in what backward needs.
    one = 2.0 * shape.layer_matrices
    return (one if training.lora and training.gradient_checkpointing else shape.layers * one), one


def vllm_memory(shape: ModelShape, engine: EngineConfig, room: float, *, dtype: str, models: int, adapter: int) -> tuple[Memory, int]:
    """Return what ``models`` vLLM engines together take of a GPU with ``room`` bytes, and the tokens that the cache of each holds.

    vLLM fills its share of the memory: the cache is what weights and working space leave, a negative number of tokens where they do not
    even fit. ``adapter``: parameters of all adapters together.
    """
    number = number_bytes(dtype)
    weights = number * (shape.parameters + adapter) / engine.tensor_parallel
    cache = (engine.memory or 0.9) * room / models - weights - _VLLM_WORKING
    tokens = math.floor(cache / (shape.kv_bytes(number) / engine.tensor_parallel))
    return Memory(weights=models * weights, cache=max(models * cache, 0.0), activations=models * _VLLM_WORKING), tokens
