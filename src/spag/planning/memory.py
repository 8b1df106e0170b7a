"""Peak memory of training and play on one GPU, or of the process on a CPU, by purpose.

Weights, gradients and Adam's two moments are float32 (``spag.learning.loop``). Under bfloat16 or float16 autocast a
linear map works on copies of its weights and input in half precision; norms and the residual stream stay float32.
``docs/planning.md`` lists the tensors that PyTorch keeps for the backward pass of transformers' Llama layer.
"""

from dataclasses import astuple, dataclass

from spag.algorithms.settings import UpdateSettings
from spag.config.schema import EngineConfig
from spag.engines.prompts import context_length
from spag.planning.specs import GIB, ModelShape
from spag.runs.machine_checks import SLOT_TOKENS

CHUNK, CHUNK_ON_GPU = 128, 1024
"""Equal to those of ``spag.models.forward``, as a test checks: that module imports torch, this one must not."""
BUFFER = 256 * 2**20
"""Equals ``BUFFER_BYTES`` of ``engines/vllm/transfer.py``, as a test checks."""
PROGRAM = 0.7e9
"""Python with torch, transformers and peft in CPU memory: 0.72 GB resident, measured here."""
_NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a 4-bit weight with quantised scales: arXiv 2305.14314, section 3."""
_8_BIT_MOMENTS = 2 + 2 * 4 / 256
"""Bytes of a weight's two moments in 8 bits, with their scales."""
_VLLM_WORKING = 2 * GIB
"""vLLM's memory besides weights and cache: CUDA graphs and workspace; a guess."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``copies``: weights in the compute precision, or gathered from other GPUs. ``policies``: further weights
    besides the trained ones: the engine's, a reference, an average. ``engines``: vLLM's reservation next to a trainer.
    ``host``: CPU memory for each GPU.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    copies: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    policies: float = 0.0
    cache: float = 0.0
    engines: float = 0.0
    program: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Bytes on the GPU, or of the process."""
        return float(sum(astuple(self))) - self.host

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(*map(sum, zip(astuple(self), astuple(other), strict=True)))


def training_memory(
    shape: ModelShape,
    settings: UpdateSettings,
    fed: float,
    trained: float,
    number: int,
    processes: int,
    *,
    on_gpu: bool,
    adapters: int = 1,
) -> Memory:
    """Return the memory of an update on one of ``processes``, with ``fed`` tokens in a micro-batch, ``trained`` of them
    trained, computing with numbers of ``number`` bytes. ``adapters``: how many are trained, if any.

    An update of a single micro-batch takes less: its activations are freed while its gradients are computed.
    """
    layer = _layer(shape, settings, number)
    # with checkpointing each layer's input, and one layer whole; the last norm, its input, a layer's gradients
    kept = 4 * shape.hidden * shape.layers + layer if settings.gradient_checkpointing else shape.layers * layer
    # log-softmax, its gradient and the loss's of a chunk; or the head's gradient, cast to float32
    chunk = 12.0 * min(trained, CHUNK_ON_GPU if on_gpu else CHUNK) * shape.vocab
    gradient = 0.0 if settings.lora else 4.0 * shape.embedding
    cast = number == 2 and (shape.tied or not _stores_frozen(settings))  # else it is stored in half precision
    head = 2.0 * shape.embedding if cast else 0.0
    moment = Memory(activations=(kept + 16 * shape.hidden) * fed, logits=head + max(chunk, gradient))
    held = _held(shape, settings, number, processes, adapters * shape.adapter(settings.lora), on_gpu=on_gpu)
    return held + Memory(copies=_copies(shape, settings, number, on_gpu=on_gpu)) + moment


def transfer_memory(shape: ModelShape, number: int, *, gathered: bool = False) -> Memory:
    """Return the size of the buffer for sending a whole model's new weights to vLLM, and of vLLM's copy of it;
    ``gathered``: also of all weights, which FSDP2 gathers before they are sent.
    """
    largest = max(shape.embedding, shape.hidden * max(shape.intermediate, shape.query_size))
    whole = float(number * shape.parameters) if gathered else 0.0
    return Memory(copies=2.0 * number * max(largest, min(BUFFER / number, shape.parameters)) + whole)


def resident_memory(training: Memory, settings: UpdateSettings, processes: int) -> Memory:
    """Return the part of ``training`` that stays between updates: not gradients, but DDP's buckets."""
    buckets = training.gradients / 2 if settings.parallel == "replicas" and processes > 1 else 0.0
    kept = {name: getattr(training, name) for name in ("weights", "optimizer", "policies", "program", "host")}
    return Memory(gradients=buckets, **kept)


def _held(
    shape: ModelShape, settings: UpdateSettings, number: int, processes: int, adapter: int, *, on_gpu: bool
) -> Memory:
    """Return the memory of weights, gradients and Adam's moments. ``adapter``: parameters of all adapters."""
    trained = adapter or shape.parameters
    weights = 4.0 * (shape.parameters + adapter)
    if settings.lora and _stores_frozen(settings):
        half = number if on_gpu else 4
        maps = _NF4 if settings.lora.quantize else half
        weights += (maps - 4.0) * shape.layers * shape.layer + (half - 4.0) * (0 if shape.tied else shape.embedding)
    if settings.parallel == "deepspeed" and number == 2:  # half-precision shards, float32 masters of trained weights
        weights = 2.0 * (shape.parameters + adapter) + 4.0 * trained
    if settings.parallel == "replicas":  # DDP's buckets are copies of the gradients
        moments = _8_BIT_MOMENTS if settings.optimizer == "adamw_8bit" else 8.0
        gradients = 4.0 if processes == 1 else 8.0
        return Memory(weights=weights, gradients=gradients * trained, optimizer=moments * trained)
    if settings.offload and on_gpu:
        return Memory(host=(weights + 12.0 * trained) / processes)
    return Memory(weights=weights / processes, gradients=4.0 * trained / processes, optimizer=8.0 * trained / processes)


def _copies(shape: ModelShape, settings: UpdateSettings, number: int, *, on_gpu: bool) -> float:
    """Return the weights in the compute precision during a layer's backward pass, and the gradient of its largest
    map. On a CPU frozen ones are copies until all of them are made.
    """
    largest = shape.hidden * max(shape.intermediate, shape.query_size)
    if settings.parallel != "replicas":  # gathered: two layers and their gradients; embedding and head stay gathered
        weights = 2.0 * shape.layer + shape.embedding * (1 if shape.tied else 2)
        return number * (weights + (0 if settings.lora else 2 * shape.layer))
    if settings.lora and settings.lora.quantize:
        return float(number * largest)  # one matrix at a time
    if _stores_frozen(settings):
        return 0.0 if on_gpu or number == 4 else 2.0 * shape.layers * shape.layer
    # autocast keeps the copies of all layers, unless layers are recomputed one by one
    copies = 2.0 * shape.layer * (1 if settings.gradient_checkpointing else shape.layers) * (number == 2)
    return copies + number * largest


def _stores_frozen(settings: UpdateSettings) -> bool:
    """Whether frozen linear maps are stored in the compute precision, as by ``spag.learning.start``."""
    return settings.lora is not None and settings.parallel == "replicas"


def _layer(shape: ModelShape, settings: UpdateSettings, number: int) -> float:
    h, q, kv, f, lora = shape.hidden, shape.query_size, shape.kv_size, shape.intermediate, settings.lora
    kept = (8 if lora else 16) * h + (number * len(shape.maps) * lora.rank if lora else 0)
    kept += 8 * (q + kv) if shape.head_norm else 0
    return kept + (10 * h + 6 * q + 6 * kv + 8 * f if number == 2 else 8 * h + 12 * q + 16 * kv + 16 * f)


def play_memory(
    shape: ModelShape, engine: EngineConfig, longest: float, number: int, models: int, vllm: bool
) -> Memory:
    """Return the least memory of engines for ``models`` models; ``longest``: tokens of a game's longest text.

    The transformers engine has a slot for each utterance. vLLM needs room for one text of ``engine.max_length``, or of
    as many tokens as a model has positions, and fills the rest of its share of the GPU.
    """
    most, gpus = context_length(engine.max_length, shape.positions), engine.tensor_parallel if vllm else 1
    tokens = most if vllm else engine.concurrency * (longest // SLOT_TOKENS + 1) * SLOT_TOKENS
    weights, cache = models * number * shape.parameters / gpus, models * tokens * shape.kv_bytes(number, gpus)
    return Memory(policies=weights, cache=cache, activations=models * _VLLM_WORKING * vllm)
