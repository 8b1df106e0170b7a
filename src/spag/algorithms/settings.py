"""Options shared by the algorithms: how weights are updated, and where a phase's games come from.

An algorithm's own options extend one of the three kinds of phase, which decides how a run carries it out:
``TeacherSettings`` trains once on files of games or samples, ``IterationSettings`` plays a file of games with the
current policy and trains on it, several times, and ``OnlineSettings`` (``online_settings.py``) plays and trains step by
step.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from spag.core.options import Count, CountOrZero, Decay, Fraction, NonNegative, Positive, SamplingConfig, Section
from spag.core.types import Split

FREE_TO_CHANGE = frozenset(
    {"micro_batch_size", "gradient_checkpointing", "save_steps", "processes", "parallel", "offload"}
)
"""Options that do not affect results: a phase may resume with other values."""
SELF, START, SNAPSHOT, BASE, EARLIER = "self", "start", "snapshot", "base", "earlier"
"""Opponents by name: the policy itself, the phase's start model, a frozen policy of an earlier step, the run's base
model, and any model trained earlier in the run.
"""
_SNAPSHOT = re.compile(rf"{SNAPSHOT}-(\d+)")


def snapshot_name(step: int) -> str:
    """Return the name of the player with the policy's weights after ``step``."""
    return f"{SNAPSHOT}-{step}"


def step_of_snapshot(name: str) -> int | None:
    """Return the step in a snapshot's name; ``None`` for any other player."""
    found = _SNAPSHOT.fullmatch(name)
    return int(found[1]) if found else None


def opponent_group(name: str) -> str:
    """Return the group in which an opponent is counted: all snapshots are one."""
    return name if step_of_snapshot(name) is None else SNAPSHOT


class LoraConfig(Section):
    """A LoRA adapter (arXiv 2106.09685). If the start model is an adapter, it is trained further, and must match."""

    rank: Annotated[int, Field(gt=0, le=4096)] = Field(16, description="rank of the update matrices")
    alpha: Count = Field(32, description="the update is scaled by alpha / rank")
    target_modules: str | list[str] = Field("all-linear", description="layers that get an adapter")
    quantize: bool = Field(False, description="QLoRA: base model in 4 bits during training (bitsandbytes, NF4)")
    per_role: bool = Field(
        False, description="online phases: one adapter for each role of each game, over one base model"
    )


class UpdateSettings(Section):
    """How weights are updated, whatever the algorithm."""

    learning_rate: Positive = Field(5e-6, description="peak learning rate")
    lr_scheduler: Literal["cosine", "linear", "constant", "warmup_decay", "warmup_decay_0.13"] = Field(
        "cosine",
        description="cosine, linear, constant: shape after linear warm-up. warmup_decay: DeepSpeed's WarmupDecayLR "
        "(logarithmic warm-up, linear decay). warmup_decay_0.13: the same with DeepSpeed 0.13's off-by-one first step",
    )
    warmup_ratio: Fraction = Field(0.03, description="fraction of the updates spent warming up")
    weight_decay: NonNegative = Field(0.0, description="AdamW weight decay")
    adam_beta1: Decay = Field(0.9, description="AdamW's beta1")
    adam_beta2: Decay = Field(0.999, description="AdamW's beta2")
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw", description="adamw_8bit keeps AdamW's moments in 8 bits (bitsandbytes): 2 bytes per weight, not 8"
    )
    max_grad_norm: NonNegative = Field(1.0, description="maximum norm of the gradient; 0 disables clipping")
    micro_batch_size: Count = Field(2, description="samples per forward pass, on each process")
    kl_coef: NonNegative = Field(
        0.0, description="weight of the KL term towards the reference policy; at 0 no reference is computed"
    )
    gradient_checkpointing: bool = Field(True, description="recompute activations to save memory")
    lora: LoraConfig | None = Field(
        None,
        description="train a LoRA adapter instead of all weights; null: all weights, or the adapter of the start model",
    )
    processes: Count | None = Field(
        None,
        description="training processes; null: those started by torchrun, else one per visible GPU (one on CPUs)",
    )
    parallel: Literal["replicas", "fsdp", "deepspeed"] = Field(
        "replicas",
        description="how processes share the model. replicas: each has a full copy; fsdp (FSDP2) and deepspeed "
        "(ZeRO-3, not online) shard weights, gradients and optimiser",
    )
    offload: bool = Field(False, description="fsdp, deepspeed: keep sharded weights and optimiser in CPU memory")
    save_steps: Count = Field(50, description="steps between checkpoints to resume from")
    save_dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="precision of saved full weights; the published code saves bfloat16"
    )

    @property
    def per_role(self) -> bool:
        """Whether each role has its own adapter."""
        return self.lora is not None and self.lora.per_role

    def refusals(self, dtype: str) -> Iterator[str]:
        """Yield why training with these settings and ``model.dtype`` cannot work; no GPU is needed to tell."""
        sharded = f"parallel={self.parallel} with"
        if self.parallel != "replicas" and self.lora is not None and self.lora.quantize:
            yield f"{sharded} lora.quantize: a model in 4 bits is not sharded; set parallel=replicas"
        if self.parallel != "replicas" and self.optimizer == "adamw_8bit":
            yield f"{sharded} optimizer=adamw_8bit: moments in 8 bits are not sharded; set parallel=replicas"
        if self.parallel != "replicas" and self.per_role:
            yield f"{sharded} lora.per_role: adapters take turns in whole models; set parallel=replicas"
        if self.parallel == "fsdp" and dtype == "float16":
            yield f"{sharded} model.dtype=float16: set model.dtype to bfloat16 or float32"


class OfflineSettings(UpdateSettings):
    """Training on samples that all exist before the first update."""

    max_length: Count = Field(
        2048, description="tokens of prompt and completion; longer ones are truncated on the left"
    )
    epochs: Count = Field(1, description="passes over the samples")
    max_steps: Count | None = Field(None, description="exact number of updates, instead of epochs")
    global_batch_size: Count = Field(128, description="samples per update, over all processes")
    template: Literal["random", "game", "play"] = Field(
        "random",
        description="wording of a sample's prompt. random: drawn per utterance, as in the paper; game: drawn per game, "
        "whose samples then share an update and a prefix (faster); play: the prompt used in play (fastest)",
    )
    completions: Literal["sampled", "text"] = Field(
        "sampled",
        description="which tokens of an utterance are trained. sampled: those that the engine sampled, where known; "
        "text: the text retokenised, with an end token, as in the published code",
    )
    sft_coef: NonNegative = Field(0.5, description="weight of the SFT loss")
    sft_data: Path | None = Field(
        None, description="instruction data to mix in (Alpaca JSON or prompt/completion rows); null: none"
    )
    sft_samples: CountOrZero | None = Field(None, description="SFT rows to mix in; null: all")
    loss_group: Count | None = Field(
        None,
        description="RL and SFT losses are averaged within random groups of this many samples, then over the groups: 2 "
        "is the published code's micro-batch (docs/training.md); null averages over the global batch",
    )
    keep_held_out: bool = Field(
        False,
        description="train on held-out tasks too, as the paper does; no result then counts as held out",
    )

    @property
    def splits(self) -> list[Split]:
        """The splits whose tasks are played and trained."""
        return [*Split] if self.keep_held_out else [Split.TRAIN]


class TeacherSettings(OfflineSettings):
    """Training on files of games or samples."""

    episodes: list[str] = Field(
        ["teacher"],
        description="sources of training data: 'teacher' (the shipped teacher games), bot:NAME, or files of games or "
        "samples (ours or upstream's)",
    )
    max_episodes: Count | None = Field(None, description="games to use, drawn by seed; null: all (200 for a bot)")


def known_opponents(*known: str) -> AfterValidator:
    """Return a check that raises ``ValueError`` for a name that is neither ``known`` nor a model."""

    def check(names: Any) -> Any:
        for name in names:
            if name not in known and not set(name) & {"/", ":"}:  # a model's name has one of them
                models = "a model: ORG/NAME, ./FOLDER, openai:MODEL, bot:NAME"
                raise ValueError(f"there is no opponent {name} (known: {', '.join(known)}, or {models})")
        return names

    return AfterValidator(check)


class IterationSettings(OfflineSettings):
    """Play with the current policy into a file, then train on it; repeated."""

    iterations: Annotated[int, Field(gt=0, le=1000)] = Field(3, description="rounds of play and training (SPAG epochs)")
    tasks: Count | None = Field(
        None, description="tasks (target words, deals, cities) per iteration, drawn from the train split; null: all"
    )
    repeats: Annotated[int, Field(gt=0, le=10_000)] = Field(1, description="games per task")
    discount: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.8, description="the winner's k-th utterance gets (1/discount)^k, normalised over the game"
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="how both players sample")
    opponents: Annotated[dict[str, Positive], Field(min_length=1), known_opponents(SELF, BASE, START, EARLIER)] = Field(
        {SELF: 1.0},
        description="opponents by weight: self, base, start, earlier (any model that the run trained "
        "before), or a model (ORG/NAME, ./FOLDER, openai:MODEL). Only the policy's own utterances are trained",
    )

    @property
    def met(self) -> list[str]:
        """The opponents of the policy."""
        return [*self.opponents]
