"""Memory of one GPU (or process) in training, by what it is spent on, at the fullest moment of an optimiser step.

Weights, gradients and Adam's two moments are float32 (``spag.training.run``). Under bfloat16 or float16 autocast a linear map works on a
copy of its weights in half precision, and its input is copied for each map that reads it; norms and the residual stream stay float32. The
bytes of a token below follow the tensors that PyTorch keeps for the backward pass of transformers' Llama layer:

    kept in a layer       full, float32     autocast           LoRA instead
    inputs of 2 norms     4h + 4h           4h + 4h
    normalised inputs     4h + 4h           4h + 4h            0: the norms' weights are frozen
    inputs of q, k, v     4h                3 x 2h
    queries, keys, values 4(q + 2kv)        2(q + 2kv)
    gathered for a sample 4 x 2kv           2kv                (a sample's beginning is another's too; keys are copied by the cast as it is)
    attention's result    2 x 4q            2 x 2q             (once as it came, once as one row)
    inputs of gate, up    4h                2 x 2h
    MLP                   4 x 4f            4 x 2f             (gate, its activation, up, their product)
    adapters                                                   4r or 2r for each adapted map: what its first matrix gives
"""

from dataclasses import dataclass, replace

from spag.config.schema import TrainingConfig
from spag.planning.shapes import ModelShape

CHUNK = 256
"""Positions whose logits exist at once: ``spag.training.policy.CHUNK``, which a test holds equal (it imports torch, this must not)."""

_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in 4 bits: half a byte, an 8-bit scale for 64 weights, a float32 one for 256 scales (double quantisation)."""

_LIVE = 1e9
"""Parameters that ZeRO-3 keeps gathered at most: DeepSpeed's default of ``stage3_max_live_parameters``."""


_MAPS = 7
"""Linear maps in a layer, all of which an adapter may be for."""


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


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The largest micro-batch: tokens fed, and tokens trained."""

    tokens: int
    targets: int


def training_memory(shape: ModelShape, training: TrainingConfig, batch: MicroBatch, *, dtype: str, processes: int) -> Memory:
    """Return the fullest moment of a step on one of ``processes`` GPUs."""
    static = _static(shape, training, dtype, processes)
    gradients = static.gradients
    accumulated = training.global_batch_size > training.micro_batch_size * processes
    moments = _moments(shape, training, batch, dtype)
    if accumulated:
        found = [_with(static, one, gradients) for one in moments]
    else:  # the first backward pass of a step meets no gradients, and leaves all of them when its activations are gone
        found = [_with(static, one, 0.0) for one in moments] + [_with(static, Memory(), gradients)]
    return max(found, key=lambda memory: memory.total)


def _with(static: Memory, moment: Memory, gradients: float) -> Memory:
    return replace(moment, weights=static.weights, gradients=gradients, optimizer=static.optimizer, host=static.host)


def trained_parameters(shape: ModelShape, training: TrainingConfig) -> int:
    """Return how many parameters have gradients."""
    return shape.adapter(training.lora) if training.lora else shape.parameters


def _static(shape: ModelShape, training: TrainingConfig, dtype: str, processes: int) -> Memory:
    """Weights, gradients and moments, which a whole step holds."""
    sharded = training.parallel != "replicas"
    shards = processes if sharded else 1
    trained = trained_parameters(shape, training)
    adapter = trained if training.lora else 0
    weights = 4.0 * shape.parameters
    if training.lora and training.lora.quantize:
        weights = _NF4 * shape.matrices + 4.0 * (shape.parameters - shape.matrices)
    weights += 4.0 * adapter
    if training.parallel == "deepspeed" and dtype != "float32":
        # ZeRO computes on half-precision shards and keeps a float32 master of what is trained
        weights = 2.0 * (shape.parameters + adapter) + 4.0 * trained
    gradients = 4.0 * trained
    if training.parallel == "replicas" and processes > 1:
        gradients *= 2  # DDP's buckets are copies of them
    optimizer = 8.0 * trained
    if training.offload and sharded:
        return Memory(host=(weights + gradients + optimizer) / shards)
    return Memory(weights / shards, gradients / shards, optimizer / shards)


def _moments(shape: ModelShape, training: TrainingConfig, batch: MicroBatch, dtype: str) -> list[Memory]:
    """What the moments that may be the fullest need beside the static part: forward's end, and head and last layer going backward."""
    half = dtype != "float32"
    number = 2 if half else 4
    sharded = training.parallel != "replicas"
    layer = _layer_activations(shape, half=half, rank=training.lora.rank if training.lora else 0) * batch.tokens
    stream = 4.0 * shape.hidden * batch.tokens
    final = 2 * stream  # input of the last norm, and normalised
    backward = 2 * stream + 2.0 * number * shape.intermediate * batch.tokens  # gradients on their way through one layer
    scores = _head(shape, training, batch, half=half)
    every, one = _copies(shape, training, half=half, sharded=sharded)
    step = _matrix_gradient(shape, training, half=half)
    if training.gradient_checkpointing:
        kept = shape.layers * stream + final
        return [
            Memory(copies=every, activations=kept, logits=scores.forward),
            Memory(copies=one, activations=kept, logits=scores.backward),
            Memory(copies=one + step, activations=kept - final + layer + backward),
        ]
    kept = shape.layers * layer + final
    held = one if sharded else every
    return [
        Memory(copies=held, activations=kept, logits=scores.backward),
        Memory(copies=held + step, activations=kept - final + backward),
    ]


def _layer_activations(shape: ModelShape, *, half: bool, rank: int) -> float:
    """Bytes of a token in one layer: the table above. ``rank`` is 0 without adapters."""
    h, q, kv, f = shape.hidden, shape.query_size, shape.kv_size, shape.intermediate
    norms = 8 if rank else 16
    adapters = _MAPS * rank
    if half:
        return (norms + 10) * h + 6 * q + 6 * kv + 8 * f + 2 * adapters + 2 * 4 * shape.head_norms * (q + kv)
    return (norms + 8) * h + 12 * q + 16 * kv + 16 * f + 4 * adapters + 2 * 4 * shape.head_norms * (q + kv)


@dataclass(frozen=True, slots=True)
class _Scores:
    forward: float
    backward: float


def _head(shape: ModelShape, training: TrainingConfig, batch: MicroBatch, *, half: bool) -> _Scores:
    """Logits and the head's weights and gradient: of a chunk; all logits at once for models that bring their own code.

    Going backward, the log-softmax, its gradient and the loss's are there at once; under autocast all of them are gone when the head's
    gradient is cast to float32. Where chunks add up, the sum so far waits beside the next chunk's logits.
    """
    number = 2 if half else 4
    embedding = float(shape.embedding)
    weights = 2 * embedding if half else 0.0
    trained = not training.lora
    if shape.own_code:
        everything = 1.0 * batch.tokens * shape.vocab * number
        rows = 1.0 * batch.targets * shape.vocab
        gradient = embedding * (8 if half else 4) * trained
        return _Scores(weights + everything + rows * (number + 8), weights + 2 * everything + rows * (number + 12) + gradient)
    rows = 1.0 * min(batch.targets, CHUNK) * shape.vocab
    waiting = number * embedding * (trained and batch.targets > CHUNK)
    logits = weights + rows * 12 + waiting
    gradient = 6 * embedding if half else rows * 4 + embedding * 4 + waiting
    return _Scores(weights + rows * (10 if half else 8), max(logits, gradient * trained))


def _matrix_gradient(shape: ModelShape, training: TrainingConfig, *, half: bool) -> float:
    """The gradient of one matrix before it is added up."""
    if training.lora:
        return 0.0
    return (6.0 if half else 4.0) * shape.hidden * max(shape.intermediate, shape.query_size)


def _copies(shape: ModelShape, training: TrainingConfig, *, half: bool, sharded: bool) -> tuple[float, float]:
    """Weights in the precision of computation at the end of the forward pass, and while one layer goes backward."""
    number = 2.0 if half else 4.0
    if sharded:  # gathered: two layers and their gradients; embedding and head stay gathered
        gathered = 2 * shape.layer * number + shape.embedding * (1 if shape.tied else 2) * number
        if training.parallel == "deepspeed":
            gathered = min(shape.parameters, _LIVE) * number
        if not training.lora:
            gathered += 2 * shape.layer * number
        return gathered, gathered
    quantised = training.lora is not None and training.lora.quantize
    one = shape.layer_matrices * number if half or quantised else 0.0
    if quantised:
        one = number * shape.hidden * shape.intermediate  # one matrix at a time
        return one, one
    if not half:
        return 0.0, 0.0
    # Autocast remembers the copies of trained weights until the forward pass ends; frozen ones live on in what backward needs.
    frozen = training.lora is not None
    every = 2.0 * (shape.layer_matrices if frozen and training.gradient_checkpointing else shape.matrices)
    return every, one
