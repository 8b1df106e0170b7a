"""Hours of training and play: operations divided by the compute rate, bytes divided by the bandwidth of memory and
links.

A linear map of N parameters takes 2N operations per token forward and 4N backward (2N if its weights are frozen);
gradient checkpointing repeats the forward pass, and the reference log-probabilities cost one more. Attention adds 2 x
length x query size per layer and token forward (causal: half of the length is seen), with the same multiples. Nothing
is assumed to overlap.
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated

from pydantic import Field, ValidationError

from spag.algorithms.settings import UpdateSettings
from spag.config.schema import EngineConfig
from spag.core.errors import ConfigError
from spag.core.options import Positive, Section
from spag.planning.samples import Work
from spag.planning.specs import HOST, PCIE, Device, ModelShape

Share = Annotated[float, Field(gt=0.0, le=1.0)]
START_S = {False: 70.0, True: 10.0}
"""Seconds for a stage to open engines or a trainer: vLLM's start-up, 65 to 80 s measured here; on a CPU (True) the
transformers engine, a few.
"""
_MACHINE = 8
"""GPUs in an A100 or H100 machine."""
_OF_PRODUCTS, _IN_BFLOAT16 = 0.55, 0.3
"""Share of the speed of matrix products that training and play reach on a CPU, and training in bfloat16, whose products
are so fast (AVX512-BF16) that the rest of a layer, in float32, matters. Measured here with SmolLM2-135M.
"""


class Assumptions(Section):
    """Numbers that neither a config nor a datasheet states. ``--assume NAME=VALUE`` changes one."""

    mfu: Share = Field(0.35, description="share of a GPU's peak FLOP/s; 0.3 to 0.5 reported for 7B on A100s")
    bandwidth: Share = Field(0.6, description="share of the bandwidth of memory and links; a guess")
    network: Positive = Field(50.0, description="GB/s between two machines: 400 Gbit/s")
    utterance: Positive = Field(23.0, description="tokens of an utterance in play: docs/results/online-metrics.jsonl")
    thought: Positive = Field(1000.0, description="tokens of a thought, at most thinking.max_tokens; a guess")
    decided: Share = Field(0.68, description="share of Taboo games with a winner: 33,973 of 50,000 in a replication")

    def changed(self, changes: Sequence[str]) -> "Assumptions":
        """Return these assumptions with ``NAME=VALUE`` changes. Raises ``ConfigError``."""
        try:
            return Assumptions.model_validate(self.model_dump() | dict(text.partition("=")[::2] for text in changes))
        except ValidationError as error:
            first, known = error.errors()[0], list(Assumptions.model_fields)
            name, what = str(first["loc"][0]), first["msg"].lower()
            if name not in known:
                what = f"there is no assumption {name} (known: {', '.join(known)})"
            raise ConfigError(f"--assume {name}={first['input']}: {what}") from error


def training_hours(
    shape: ModelShape, settings: UpdateSettings, work: Work, updates: float, device: Device, processes: int,
    assumed: Assumptions, *, reference: bool, number: int,
) -> float:  # fmt: skip
    """Return the hours of ``updates`` on ``processes`` devices. The reference sees each sample once.

    In the last round of an update, processes without a micro-batch compute as long on a filler. Replicas reduce float32
    gradients in an update (2 x 4 bytes per parameter). Sharded weights are gathered in half precision for the forward
    and the backward pass of a micro-batch (2 x 2 bytes), and their gradients scattered (4). With offload, shards cross
    PCIe as often, and AdamW, on the CPU, moves 28 bytes per parameter.
    """
    passes = (2 if settings.lora else 3) + settings.gradient_checkpointing
    once = reference / work.passes
    head = 2.0 * shape.embedding * ((3 if settings.lora else 4) + once)  # its chunks are always recomputed
    operations = work.fed * _token(shape, work.length) * (passes + once) + work.trained * head
    rounds = work.parts if processes == 1 else updates * ceil(work.parts / updates / processes)
    reached = _IN_BFLOAT16 if number == 2 else _OF_PRODUCTS
    seconds = operations / _flops(device, number, assumed, reached) * rounds / work.parts
    trained = shape.adapter(settings.lora) or shape.parameters
    link = device.link if processes <= _MACHINE else min(device.link, assumed.network * 1e9)
    moved = 8.0 * trained * updates
    if settings.parallel != "replicas":
        moved = max(rounds, updates) * (4.0 * shape.parameters + 4.0 * trained)
        if settings.offload and not device.is_cpu:
            seconds += moved / processes / (PCIE * assumed.bandwidth)
            seconds += updates * 28.0 * trained / ceil(processes / _MACHINE) / (HOST * assumed.bandwidth)
    return (seconds + moved * (processes - 1) / processes / (link * assumed.bandwidth)) / 3600


def play_hours(
    shape: ModelShape, engine: EngineConfig, work: Work, device: Device, copies: int, batch: float, number: int,
    assumed: Assumptions,
) -> float:  # fmt: skip
    """Return the hours of ``copies`` engines, each with ``batch`` utterances in a decoding step.

    A step reads weights and cache, or computes, whichever takes longer. Prefill is added.
    """
    flops = _flops(device, number, assumed, _OF_PRODUCTS)
    gpus = engine.tensor_parallel
    cache = batch * work.length * gpus * shape.kv_bytes(number, gpus)
    moved = number * (shape.layers * shape.layer + shape.embedding) + cache
    operations = batch * (_token(shape, 2 * work.length) + 2.0 * shape.embedding)
    step = max(moved / (device.bandwidth * assumed.bandwidth), operations / flops)
    reading = work.fed * _token(shape, work.length) / flops
    return (reading + work.trained / batch * step) / copies / gpus / 3600


def _token(shape: ModelShape, length: float) -> float:
    """Return the operations of a token's forward pass through the layers; it attends to half of ``length`` tokens."""
    return 2.0 * shape.layers * (shape.layer + shape.query_size * length)


def _flops(device: Device, number: int, assumed: Assumptions, of_products: float) -> float:
    """Return operations per second. ``of_products``: the reached share of a CPU's speed in matrix products."""
    flops = device.flops if number == 2 else device.full_flops or device.flops / 2
    return flops * (of_products if device.is_cpu else assumed.mfu)
