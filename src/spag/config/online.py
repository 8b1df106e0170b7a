"""Options of online self-play."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from spag.config.base import (
    Count,
    CountOrZero,
    Fraction,
    GameConfig,
    NonNegative,
    Number,
    Positive,
    SamplingConfig,
    Section,
    Temperature,
    check_opponents,
)
from spag.config.training import LoraConfig, UpdateConfig


class OnlineSamplingConfig(SamplingConfig):
    temperature: Temperature = Field(1.0, description="0 would leave nothing to learn from")
    min_new_tokens: CountOrZero = Field(1, description="shortest utterance, in tokens")
    empty_retries: CountOrZero = Field(0, description="how often an empty utterance is sampled again; those before it are not trained")


class PayConfig(Section):
    tie_reward: Number | None = Field(None, description="what each role gets in a draw; null: what the game says")
    illegal_reward: Number | None = Field(None, description="what a role gets that breaks a rule; null: what the game says")


class MixedGameConfig(GameConfig):
    weight: Positive = Field(1.0, description="share of the games, beside the others' weights")

    @model_validator(mode="before")
    @classmethod
    def _with_settings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        rest = GameConfig.model_validate({key: value for key, value in data.items() if key != "weight"})
        return {"weight": data.get("weight", 1.0), "name": rest.name, **(rest.model_extra or {})}


class OnlineLoraConfig(LoraConfig):
    per_role: bool = Field(False, description="one adapter for each role of each game, over one base model; else all roles share one")

    @model_serializer(mode="wrap")
    def _as_before_this_option(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the option out where it is off, so that runs from before it can be resumed."""
        return {name: value for name, value in handler(self).items() if name != "per_role" or value}


class OnlineConfig(UpdateConfig):
    """Online self-play (``algorithm: reinforce``): every step plays games with the current policy, then trains on them."""

    learning_rate: Positive = Field(1e-6, description="peak learning rate")
    micro_batch_size: Count = Field(8, description="samples a forward pass, on each process")
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = Field("constant_with_warmup", description="shape after the warm-up")
    kl_coef: NonNegative = Field(0.0, description="weight of the KL term towards the reference policy; 0 loads no reference")
    gradient_checkpointing: bool = Field(False, description="recompute activations to save memory")
    parallel: Literal["replicas", "fsdp"] = Field(
        "replicas", description="how processes share the model: replicas, each holds all of it; or fsdp (FSDP2)"
    )
    lora: OnlineLoraConfig | None = Field(None, description="train a LoRA adapter instead of all weights")
    save_steps: Count = Field(10, description="steps between checkpoints to resume from")
    steps: Count = Field(100, description="steps of play and training")
    games: Annotated[int, Field(gt=0, le=1_000_000)] = Field(64, description="games a step")
    mix: list[MixedGameConfig] = Field(
        [], description="games that are played side by side, each with its weight, its settings and baselines of its own; empty: game alone"
    )
    sampling: OnlineSamplingConfig = Field(default_factory=OnlineSamplingConfig, description="how the policy samples")
    opponents: Annotated[dict[str, Positive], Field(min_length=1)] = Field(
        {"self": 1.0},
        description="whom the policy plays, by weight: self, start (the frozen policy of the first step), snapshot (a frozen earlier "
        "policy), or a model or bot (ORG/NAME, ./FOLDER, openai:MODEL, bot:NAME). Only the policy's own utterances are trained",
    )
    snapshot_every: Count = Field(20, description="steps between the frozen policies that the opponent snapshot is drawn from")
    pay: dict[str, PayConfig] = Field({}, description="rewards of ties and broken rules that replace those of a game, by its name")
    roles: str = Field("both", description="whose utterances are trained: both, or one role (an ablation)")
    baseline_decay: Fraction = Field(0.95, description="decay of each role's moving average of rewards; 1 trains without baselines")
    normalize_advantages: bool = Field(False, description="divide a role's advantages by their standard deviation over the step")
    discount: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="a reward counts discount^k for an utterance that k more of the same player follow"
    )
    epochs: Count = Field(1, description="passes over a step's samples")
    minibatches: Count = Field(1, description="optimiser steps a pass")
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.2, description="importance ratios of several updates are clipped to 1 -/+ this"
    )
    correction_limit: Positive = Field(
        2.0, description="largest importance weight between the engine's probability of a token and the trainer's"
    )
    loss_divisor: Literal["constant", "length"] = Field(
        "constant", description="what a sample's summed token losses are divided by: max_new_tokens, or the sample's own length"
    )
    entropy_coef: NonNegative = Field(0.0, description="weight of the tokens' entropy at the first step")
    entropy_coef_end: NonNegative | None = Field(None, description="what entropy_coef falls or rises to; null: it stays")
    kl_coef_end: NonNegative | None = Field(None, description="what kl_coef falls or rises to; null: it stays")
    anneal_steps: Count | None = Field(None, description="steps in which both coefficients reach their ends; null: all steps")
    average_decay: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="the final policy is a moving average of the weights with this decay a step; 0: the last weights"
    )
    overlap: bool = Field(False, description="play the next step's games, with the weights before this update, while training")
    evaluate_every: Count | None = Field(10, description="steps between evaluations on held-out tasks; null: none")
    evaluation_tasks: Count = Field(16, description="held-out tasks of an evaluation, each played in both role assignments")
    evaluation_opponents: list[str] = Field(
        ["start"], description="whom an evaluation meets: start (the frozen policy of the first step), a model or a bot"
    )
    stop_on_collapse: bool = Field(False, description="end the run after a step that shows a collapse; else it only warns")

    @property
    def per_role(self) -> bool:
        """Whether each role has an adapter of its own."""
        return self.lora is not None and self.lora.per_role

    @field_validator("opponents")
    @classmethod
    def _known_opponents(cls, weights: dict[str, float]) -> dict[str, float]:
        check_opponents(weights, ("self", "start", "snapshot"))
        return weights

    @field_validator("evaluation_opponents")
    @classmethod
    def _known_evaluation_opponents(cls, names: list[str]) -> list[str]:
        check_opponents(names, ("start",))
        return names
