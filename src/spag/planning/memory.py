"""GPU memory of training and play, by purpose, at the fullest moment.

Weights, gradients and Adam's two moments are float32 (``spag.training.run``). Under bfloat16 or float16 autocast a linear map works on a
copy of its weights in half precision, and copies its input too; norms and the residual stream stay float32. ``docs/planning.md`` lists the
tensors that PyTorch keeps for the backward pass of transformers' Llama layer, whose bytes ``_layer_activations`` adds up.
"""

import math
from dataclasses import astuple, dataclass, replace

from spag.config.schema import EngineConfig, TrainingConfig
from spag.planning.specs import ModelShape

CHUNK = 256
"""Positions whose logits exist at once: ``spag.training.policy.CHUNK``, which a test holds equal (it imports torch, this must not)."""
SLOT_GROWTH = 128
"""Positions by which the slot cache grows: ``spag.engines.transformers.slots.GROWTH``, which a test holds equal."""
_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: half a byte, an 8-bit scale for 64 weights, a float32 one for 256 scales (double quantisation)."""
_LIVE = 1e9
"""Parameters that ZeRO-3 keeps gathered at most: DeepSpeed's default of ``stage3_max_live_parameters``."""


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
        return self.weights + self.gradients + self.optimizer + self.copies + self.activations + self.logits + self.cache

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The largest micro-batch: tokens fed, and tokens trained."""

    tokens: int
    trained: int


def quantized(training: TrainingConfig) -> bool:
    """Return whether the base model's weights have 4 bits (QLoRA)."""
    return training.lora is not None and training.lora.quantize


def number_bytes(dtype: str) -> int:
    """Return the bytes of a number in a dtype of ``model.dtype``; ``auto`` means bfloat16 on a GPU."""
    return 4 if dtype == "float32" else 2


def training_memory(shape: ModelShape, training: TrainingConfig, batch: MicroBatch, *, dtype: str, processes: int) -> Memory:
    """Return the fullest moment of an optimiser step on one of ``processes`` GPUs."""
    step = _Step(shape, training, batch, number_bytes(dtype), processes)
    held = step.held()
    if training.global_batch_size > training.micro_batch_size * processes:
        moments = [held + moment for moment in step.moments()]
    else:  # the only backward pass meets no gradients, and leaves all of them when its activations are gone
        moments = [*(replace(held, gradients=0.0) + moment for moment in step.moments()), held]
    return max(moments, key=lambda memory: memory.total)


@dataclass(frozen=True, slots=True)
class _Step:
    """One optimiser step; ``number`` is the bytes of a number under autocast."""

    shape: ModelShape
    training: TrainingConfig
    batch: MicroBatch
    number: int
    processes: int

    @property
    def half(self) -> bool:
        return self.number == 2

    @property
    def sharded(self) -> bool:
        return self.training.parallel != "replicas"

    def held(self) -> Memory:
        """Weights, gradients and Adam's moments, which the whole step holds."""
        shape, lora = self.shape, self.training.lora
        adapter = shape.adapter(lora) if lora else 0
        trained = adapter or shape.parameters
        weights = 4.0 * (shape.parameters + adapter)
        if quantized(self.training):
            weights += (_NF4 - 4.0) * shape.matrices
        if self.training.parallel == "deepspeed" and self.half:
            weights = 2.0 * (shape.parameters + adapter) + 4.0 * trained  # shards in half precision, float32 masters of what is trained
        buckets = self.processes > 1 and not self.sharded  # DDP's, which are copies of the gradients
        found = Memory(weights=weights, gradients=4.0 * trained * (1 + buckets), optimizer=8.0 * trained)
        if not self.sharded:
            return found
        if self.training.offload:
            return Memory(host=found.total / self.processes)
        return Memory(*(size / self.processes for size in astuple(found)))

    def moments(self) -> list[Memory]:
        """Return what the moments that may be the fullest need beside ``held``: forward's end, and head and last layer going backward."""
        shape, tokens = self.shape, self.batch.tokens
        stream = 4.0 * shape.hidden * tokens
        final = 2 * stream  # input of the last norm, and normalised
        layer = self._layer_activations() * tokens
        backward = 2 * stream + 2.0 * self.number * shape.intermediate * tokens  # gradients on their way through one layer
        gradient = 0.0 if self.training.lora else (6.0 if self.half else 4.0) * shape.hidden * max(shape.intermediate, shape.query_size)
        forward_logits, backward_logits = self._logits()
        every, one = self._copies()
        if self.training.gradient_checkpointing:
            kept = shape.layers * stream
            return [
                Memory(copies=every, activations=kept + final, logits=forward_logits),
                Memory(copies=one, activations=kept + final, logits=backward_logits),
                Memory(copies=one + gradient, activations=kept + layer + backward),
            ]
        kept, held = shape.layers * layer, one if self.sharded else every
        return [
            Memory(copies=held, activations=kept + final, logits=backward_logits),
            Memory(copies=held + gradient, activations=kept + backward),
        ]

    def _layer_activations(self) -> float:
        """Return the bytes of a token in one layer."""
        shape, lora = self.shape, self.training.lora
        h, q, kv, f = shape.hidden, shape.query_size, shape.kv_size, shape.intermediate
        norms = (8 if lora else 16) * h + 8 * shape.head_norms * (q + kv)
        adapters = self.number * len(shape.maps) * lora.rank if lora else 0
        if self.half:
            return norms + adapters + 10 * h + 6 * q + 6 * kv + 8 * f
        return norms + adapters + 8 * h + 12 * q + 16 * kv + 16 * f

    def _logits(self) -> tuple[float, float]:
        """Return what head and logits need at forward's end and going backward: of a chunk, or of all tokens for custom code.

        Going backward, the log-softmax, its gradient and the loss's are there at once; under autocast all of them are gone when the head's
        gradient is cast to float32. Where chunks add up, the sum so far waits beside the next chunk's logits.
        """
        shape, batch, number = self.shape, self.batch, self.number
        trained = not self.training.lora
        weights = 2.0 * shape.embedding * self.half
        if shape.custom_code:
            everything = 1.0 * batch.tokens * shape.vocab * number
            rows = 1.0 * batch.trained * shape.vocab
            gradient = (8.0 if self.half else 4.0) * shape.embedding * trained
            return weights + everything + rows * (number + 8), weights + 2 * everything + rows * (number + 12) + gradient
        rows = 1.0 * min(batch.trained, CHUNK) * shape.vocab
        waiting = 1.0 * number * shape.embedding * (trained and batch.trained > CHUNK)
        gradient = 6.0 * shape.embedding if self.half else rows * 4 + 4.0 * shape.embedding + waiting
        return weights + rows * (10 if self.half else 8), max(weights + rows * 12 + waiting, gradient * trained)

    def _copies(self) -> tuple[float, float]:
        """Return the weights in the precision of computation at forward's end, and while one layer goes backward."""
        shape, number = self.shape, self.number
        if self.sharded:  # gathered: two layers and their gradients; embedding and head stay gathered
            heads = shape.embedding * (1 if shape.tied else 2)
            weights = min(shape.parameters, _LIVE) if self.training.parallel == "deepspeed" else 2.0 * shape.layer + heads
            gathered = number * (weights + (0 if self.training.lora else 2 * shape.layer))
            return gathered, gathered
        if quantized(self.training):  # one matrix at a time
            one = 1.0 * number * shape.hidden * shape.intermediate
            return one, one
        if not self.half:
            return 0.0, 0.0
        # Autocast keeps the copies of trained weights until the forward pass ends; frozen ones live on in what backward needs.
        one_layer = self.training.lora and self.training.gradient_checkpointing
        return 2.0 * (shape.layer_matrices if one_layer else shape.matrices), 2.0 * shape.layer_matrices


def slot_memory(shape: ModelShape, *, slots: int, longest: int, prefilled: int, dtype: str) -> Memory:
    """Return what the transformers engine holds: ``slots`` texts of up to ``longest`` tokens, ``prefilled`` of each read at once."""
    number = number_bytes(dtype)
    capacity = SLOT_GROWTH * math.ceil((longest + 1) / SLOT_GROWTH)
    cache = slots * capacity * shape.kv_bytes(number)
    growing = cache / shape.layers if capacity > SLOT_GROWTH else 0.0  # a layer's old keys and values beside the new
    rows = slots * prefilled
    layer = rows * (number * (3 * shape.intermediate + 2 * shape.hidden) + 4 * shape.hidden)
    masks = rows * longest * (1 + shape.heads // shape.kv_heads * (1 + number))
    logits = slots * shape.vocab * (number + 3 * 4)
    return Memory(weights=number * shape.parameters, cache=cache, activations=max(growing, layer + masks), logits=logits)


def vllm_memory(
    shape: ModelShape, engine: EngineConfig, room: float, working: float, *, dtype: str, models: int, adapter: int
) -> tuple[Memory, int]:
    """Return what ``models`` vLLM engines together take of a GPU with ``room`` bytes, and the tokens that the cache of each holds.

    vLLM fills its share of the memory: the cache is what weights and working space leave, a negative number of tokens where they do not
    even fit. ``adapter``: parameters of all adapters together.
    """
    number = number_bytes(dtype)
    weights = number * (shape.parameters + adapter) / engine.tensor_parallel
    cache = (engine.memory or 0.9) * room / models - weights - working
    tokens = math.floor(cache / (shape.kv_bytes(number) / engine.tensor_parallel))
    return Memory(weights=models * weights, cache=max(models * cache, 0.0), activations=models * working), tokens
