"""Hours of training and play: tokens from the config, operations over what GPUs compute, bytes over what memory and links move.

A linear map of N parameters takes 2N operations a token forward and 4N backward (2N where its weights are frozen); gradient checkpointing
repeats the forward pass, and the reference log-probabilities cost one more. Attention adds 2 x length x query size a layer and token
forward (causal: half of the length is seen), and the same multiples of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from spag.config.base import Section
from spag.config.schema import EngineConfig, TrainingConfig
from spag.core.errors import ConfigError
from spag.planning.memory import number_bytes
from spag.planning.specs import GPU, ModelShape

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class Assumptions(Section):
    """Numbers that no config states, each with its reason. ``--assume NAME=VALUE`` changes one."""

    training_mfu: Share = Field(0.35, description="share of peak FLOP/s in training; 0.3 to 0.5 reported for 7B on A100s; not measured")
    play_mfu: Share = Field(0.4, description="share of peak FLOP/s while prefilling, and in decoding bound by computing; not measured")
    bandwidth_share: Share = Field(0.6, description="share of the bandwidth of memory, and of links between GPUs; not measured")
    step_overhead_ms: Positive = Field(3.0, description="vLLM's own work between two decoding steps; a guess")
    network_gb_s: Positive = Field(50.0, description="GB/s between two machines: 400 Gbit/s; the largest offer 3,200")
    host_gb_s: Positive = Field(20.0, description="GB/s between a GPU and CPU memory (offload): PCIe 4.0 x16 less protocol")
    stage_minutes: Positive = Field(4.0, description="minutes a stage for weights and engines to load; a guess for 7B from a local disk")
    memory_share: Share = Field(0.92, description="share of a GPU that training can fill; the rest: driver, CUDA context, fragments, ECC")
    utterance_tokens: Positive = Field(40, description="mean utterance; teacher play has 15, models say more at temperature 1.2; a guess")
    teacher_tokens: Positive = Field(16, description="mean utterance of teacher play with its end: 15.4 measured in the shipped games")
    turns: Positive = Field(2.94, description="the winner's utterances in a decided game: 99,740 in 33,973 games of a replication")
    decided_share: Share = Field(0.68, description="games that somebody wins: 33,973 of some 50,000 of a replication, after imitation")
    prefix_tokens: Positive = Field(160, description="rules and names before the conversation: 120 to 137 tokens a paraphrase, and headers")
    instruction_tokens: Positive = Field(45, description="a role's instruction and cue behind the conversation: 35 and 50 tokens")
    name_tokens: Positive = Field(5, description="a line's player name in the conversation")
    sft_prompt_tokens: Positive = Field(60, description="instruction rows: prompt with its template; a guess for Alpaca")
    sft_completion_tokens: Positive = Field(65, description="instruction rows: completion, some 270 characters in Alpaca")

    def changed(self, changes: Sequence[str]) -> "Assumptions":
        """Return these assumptions with ``NAME=VALUE`` changes. Raises ``ConfigError``."""
        try:
            return Assumptions.model_validate(self.model_dump() | dict(text.partition("=")[::2] for text in changes))
        except ValidationError as error:
            first, known = error.errors()[0], list(Assumptions.model_fields)
            name = str(first["loc"][0])
            what = first["msg"].lower() if name in known else f"there is no assumption {name} (known: {', '.join(known)})"
            raise ConfigError(f"--assume {name}={first['input']}: {what}") from error


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a stage: ``count`` samples or games, and the tokens that are read and those that are trained or generated.

    ``length``: of a sample, or of a game's text on average while it grows. ``unique``: the samples of one pass.
    """

    count: int
    read: float
    written: float
    length: float
    unique: int = 0


def training_flops(shape: ModelShape, training: TrainingConfig, load: Load) -> float:
    """Return the operations of all optimiser steps and of the reference pass, which sees each sample once."""
    token = 2.0 * shape.matrices + 2.0 * shape.layers * shape.query_size * load.length  # forward
    head = 2.0 * shape.embedding  # forward, for a trained token
    passes = (2 if training.lora else 3) + training.gradient_checkpointing
    head_passes = passes + (not training.gradient_checkpointing)  # its chunks are always computed again
    once = load.unique / load.count
    return load.read * token * (passes + once) + load.written * head * (head_passes + once)


def training_hours(shape: ModelShape, training: TrainingConfig, load: Load, gpu: GPU, processes: int, assumed: Assumptions) -> float:
    """Return the hours on ``processes`` GPUs. Computing and communicating overlap: the longer one counts.

    Replicas add up float32 gradients once a step (2 x 4 bytes a parameter). Sharded weights are gathered in half precision for each
    forward and backward pass of a micro-batch (2 x 2 bytes), and their gradients scattered (4 bytes).
    """
    computing = training_flops(shape, training, load) / (gpu.flops * assumed.training_mfu * processes)
    rounds = load.count / (training.micro_batch_size * processes)
    trained = shape.adapter(training.lora) or shape.parameters
    # A100 and H100 machines have 8 GPUs.
    link = gpu.link if processes <= 8 else min(gpu.link, assumed.network_gb_s * 1e9)
    seconds_a_byte = (processes - 1) / processes / (link * assumed.bandwidth_share)
    if training.parallel == "replicas":
        moving = load.count / training.global_batch_size * 8.0 * trained * seconds_a_byte
    else:
        moving = rounds * (4.0 * shape.parameters + 4.0 * trained) * seconds_a_byte
        if training.offload:
            moving += rounds * (8.0 * shape.parameters + 4.0 * trained) / processes / (assumed.host_gb_s * 1e9)
    return max(computing, moving) / 3600


def play_hours(
    shape: ModelShape, engine: EngineConfig, load: Load, gpu: GPU, copies: int, batch: float, dtype: str, assumed: Assumptions
) -> float:
    """Return the hours of ``copies`` vLLM engines, each with ``batch`` utterances in a decoding step.

    A step reads weights and cache, or computes, whichever takes longer; prompts are read beside it.
    """
    number, weights = number_bytes(dtype), shape.matrices + shape.embedding
    moved = number * weights + batch * load.length * shape.kv_bytes(number)
    operations = batch * 2.0 * (weights + 2 * shape.layers * shape.query_size * load.length)
    step = max(moved / (gpu.bandwidth * assumed.bandwidth_share), operations / (gpu.flops * assumed.play_mfu))
    step = step / engine.tensor_parallel + assumed.step_overhead_ms / 1000
    reading = load.read * 2.0 * shape.matrices / (gpu.flops * assumed.play_mfu * copies * engine.tensor_parallel)
    return (reading + load.written / copies / batch * step) / 3600
