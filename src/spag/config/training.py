"""Options of training: how weights are updated, and the two offline stages."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from spag.config.base import Count, CountOrZero, Fraction, NonNegative, Positive, Section

FREE_TO_CHANGE = frozenset(
    {"micro_batch_size", "gradient_checkpointing", "save_steps", "log_steps", "report_to", "processes", "parallel", "offload"}
)
"""Training settings that do not change what is computed: a run may resume with other values of them."""


class LoraConfig(Section):
    rank: Annotated[int, Field(gt=0, le=4096)] = Field(16, description="rank of the update matrices")
    alpha: Count = Field(32, description="scale of the update is alpha / rank")
    dropout: Fraction = Field(0.0, description="dropout on the adapter's input")
    target_modules: str | list[str] = Field("all-linear", description="which layers get an adapter")
    quantize: bool = Field(False, description="QLoRA: the base model's weights in 4 bits while training (bitsandbytes, NF4)")


class UpdateConfig(Section):
    """How weights are updated, whatever the algorithm."""

    learning_rate: Positive = Field(5e-6, description="peak learning rate")
    micro_batch_size: Count = Field(2, description="samples a forward pass, on each process")
    warmup_ratio: Fraction = Field(0.03, description="share of the steps with rising learning rate")
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup", "warmup_decay", "warmup_decay_0.13"] = Field(
        "cosine",
        description="shape after a linear warm-up; or DeepSpeed's WarmupDecayLR, warm-up along a logarithm and linear decay: "
        "warmup_decay, or warmup_decay_0.13 with the late start of upstream's release",
    )
    weight_decay: NonNegative = Field(0.0, description="AdamW weight decay")
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.9, description="AdamW's decay of the mean gradient")
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.999, description="AdamW's decay of the mean squared gradient")
    max_grad_norm: NonNegative = Field(1.0, description="clip the gradient's norm; 0 switches clipping off")
    max_length: Count = Field(2048, description="tokens of prompt and completion; longer ones lose tokens on the left")
    kl_coef: NonNegative = Field(0.1, description="weight of the KL term towards the reference policy")
    gradient_checkpointing: bool = Field(True, description="recompute activations to save memory")
    lora: LoraConfig | None = Field(None, description="train a LoRA adapter instead of all weights")
    processes: Count | None = Field(
        None, description="processes that train together; null takes what torchrun started, else one a visible GPU (one on CPUs)"
    )
    parallel: Literal["replicas", "fsdp", "deepspeed"] = Field(
        "replicas",
        description="how processes share the model. replicas: each holds all of it; fsdp (FSDP2) and deepspeed (ZeRO-3) shard weights, "
        "gradients and optimiser",
    )
    offload: bool = Field(False, description="fsdp and deepspeed: keep the sharded weights and optimiser in CPU memory")
    save_steps: Count = Field(50, description="optimiser steps between checkpoints to resume from")
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="where the rows of metrics.jsonl go besides; each needs its package"
    )


class TrainingConfig(UpdateConfig):
    epochs: Count = Field(1, description="passes over the samples")
    max_steps: Count | None = Field(
        None, description="exactly so many optimiser steps, however many samples there are: passes are cut or repeated; replaces epochs"
    )
    global_batch_size: Count = Field(128, description="samples an optimiser step, over all processes")
    drop_last: bool = Field(
        False, description="leave out the samples of a last batch that is incomplete, as the published code does; a single batch stays"
    )
    log_steps: Count = Field(1, description="optimiser steps between rows of metrics.jsonl")
    sft_coef: NonNegative = Field(0.5, description="weight of the SFT mix's loss")
    loss_group: Count | None = Field(
        None,
        description="RL and SFT losses are averaged within random groups of so many samples, then over the groups: 2 is the published "
        "code's micro-batch, in which sft_coef counts for less (docs/training.md); null averages over the global batch",
    )
    sft_data: Path | None = Field(None, description="instruction data mixed in (Alpaca JSON or prompt/completion rows); null mixes none")
    sft_samples: CountOrZero | None = Field(None, description="how many SFT rows to mix in; null takes all")


class OfflineRLConfig(TrainingConfig):
    learning_rate: Positive = Field(2e-6, description="peak learning rate")
    kl_coef: NonNegative = Field(0.2, description="weight of the KL term towards the reference policy")
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(0.2, description="importance ratios are clipped to 1 -/+ this")
    objective: Literal["offline_rl", "sft"] = Field(
        "offline_rl", description="sft (an ablation): likelihood of the same samples by their weights alone, without rewards, ratios and KL"
    )
