"""Hours of training and play: operations over what GPUs compute, bytes over what their memory and links move.

A linear map of N parameters takes 2N operations a token forward and 4N backward (2N where its weights are frozen); gradient
checkpointing repeats the forward pass, and the reference log-probabilities cost one more. Attention adds 2 x length x query size a layer
and token forward (causal: half of the length is seen), and the same multiples of it.
"""

from dataclasses import dataclass

from spag.config.schema import TrainingConfig
from spag.planning.assumptions import Assumptions
from spag.planning.gpus import GPU
from spag.planning.playing import number_bytes
from spag.planning.shapes import ModelShape
from spag.planning.workload import PlayLoad, TrainingLoad


def training_flops(shape: ModelShape, training: TrainingConfig, load: TrainingLoad) -> float:
    """Return the operations of all optimiser steps and of the reference pass."""
    token = 2.0 * shape.matrices + 2.0 * shape.layers * shape.query_size * load.mean_length  # forward
    head = 2.0 * shape.embedding  # forward, for a trained token
    passes = (2 if training.lora else 3) + training.gradient_checkpointing
    head_passes = passes if training.gradient_checkpointing else passes + 1  # its chunks are always computed again
    once = load.unique / load.samples  # the reference pass sees each sample once
    return load.tokens * token * (passes + once) + load.target_tokens * head * (head_passes + once)


def training_hours(
    shape: ModelShape, training: TrainingConfig, load: TrainingLoad, gpu: GPU, processes: int, assumptions: Assumptions
) -> float:
    """Return the hours of a training on ``processes`` GPUs: computing and communicating overlap, the longer one counts."""
    computing = training_flops(shape, training, load) / (gpu.flops * assumptions.training_mfu * processes)
    return max(computing, _communication(shape, training, load, gpu, processes, assumptions)) / 3600


def _communication(
    shape: ModelShape, training: TrainingConfig, load: TrainingLoad, gpu: GPU, processes: int, assumptions: Assumptions
) -> float:
    """Return the seconds that weights and gradients are on their way between GPUs, and to and from CPU memory.

    Replicas add up float32 gradients once a step (2 x 4 bytes a parameter). Sharded weights are gathered in half precision for each
    forward and backward pass of a micro-batch (2 x 2 bytes), and their gradients scattered (4 bytes).
    """
    steps = load.samples / training.global_batch_size
    rounds = load.samples / (training.micro_batch_size * processes)
    trained = shape.adapter(training.lora) if training.lora else shape.parameters
    between = (processes - 1) / processes
    one_machine = processes <= assumptions.machine_gpus
    link = gpu.link * assumptions.link_share if one_machine else min(gpu.link, assumptions.network_gb_s * 1e9) * assumptions.link_share
    if training.parallel == "replicas":
        return steps * 8.0 * trained * between / link
    moved = rounds * (4.0 * shape.parameters + 4.0 * trained) * between / link
    if training.offload:
        moved += rounds * (8.0 * shape.parameters + 4.0 * trained) / processes / (assumptions.host_gb_s * 1e9)
    return moved


@dataclass(frozen=True, slots=True)
class Tables:
    """How play is spread: engines that work at the same time, GPUs of each, and games in flight on each."""

    copies: int
    gpus_each: int
    batch: float
    models: int = 1
    vllm: bool = True


def step_seconds(shape: ModelShape, gpu: GPU, tables: Tables, context: float, dtype: str, assumptions: Assumptions) -> float:
    """Return the seconds of a decoding step of one engine: the longer of reading weights and cache, and computing, and what it costs to
    start it.
    """
    number = number_bytes(dtype)
    batch = max(tables.batch / tables.models, 1.0)
    read = number * (shape.matrices + shape.embedding) + batch * context * shape.kv_bytes(number)
    operations = batch * 2.0 * (shape.matrices + shape.embedding + 2 * shape.layers * shape.query_size * context)
    moving = read / tables.gpus_each / (gpu.bandwidth * assumptions.bandwidth_share)
    computing = operations / tables.gpus_each / (gpu.flops * assumptions.decode_mfu)
    overhead = assumptions.step_overhead_ms if tables.vllm else shape.layers * assumptions.layer_overhead_ms
    return max(moving, computing) + overhead / 1000


def play_hours(shape: ModelShape, load: PlayLoad, gpu: GPU, tables: Tables, dtype: str, assumptions: Assumptions) -> float:
    """Return the hours of a stage of play: reading what is new in each prompt, and decoding in batches.

    Two models at one table take turns on the same GPUs, each with half of the games.
    """
    reading = load.prompt_tokens * 2.0 * shape.matrices / (gpu.flops * assumptions.prefill_mfu * tables.copies * tables.gpus_each)
    steps = load.new_tokens / tables.copies / max(tables.batch / tables.models, 1.0)
    return (reading + steps * step_seconds(shape, gpu, tables, load.context, dtype, assumptions)) / 3600
