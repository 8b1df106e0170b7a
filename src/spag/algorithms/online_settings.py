"""Options of phases that alternate between playing games with the current policy and training on them."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from spag.algorithms.settings import SELF, SNAPSHOT, START, UpdateSettings, known_opponents
from spag.core.options import (
    Count,
    CountOrZero,
    Decay,
    NonNegative,
    Number,
    Positive,
    SamplingConfig,
    Section,
    Temperature,
)


class OnlineSampling(SamplingConfig):
    """How the policy samples in online steps. An empty utterance is trained as it is."""

    temperature: Temperature = Field(1.0, description="sampling temperature; at 0 all games on a task are the same")
    min_new_tokens: CountOrZero = Field(1, description="shortest utterance, in tokens")

    @property
    def empty_retries(self) -> int:
        return 0


class RewardOverride(Section):
    """Rewards that replace a game's."""

    tie: Number | None = Field(None, description="reward of each role in a draw; null: the game's")
    illegal: Number | None = Field(None, description="reward of the role that breaks a rule; null: the game's")
    tie_by_role: dict[str, Number] = Field({}, description="reward in a draw by role, in place of tie")


class MovingReference(Section):
    """A reference policy that follows the policy; set exactly one option."""

    ema: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="moving average: fraction of the way that the reference moves to the policy after each step"
    )
    every: Count | None = Field(None, description="steps between updates of the reference to the current policy")

    @model_validator(mode="after")
    def _one(self) -> "MovingReference":
        if (self.ema is None) == (self.every is None):
            raise ValueError("name one: {ema: 0.03} or {every: 40}")
        return self


class OnlineSettings(UpdateSettings):
    """Steps that play games with the current policy and train on them."""

    learning_rate: Positive = Field(1e-6, description="peak learning rate")
    lr_scheduler: Literal["cosine", "linear", "constant"] = Field("constant", description="shape after the warm-up")
    micro_batch_size: Count = Field(8, description="samples per forward pass, on each process")
    gradient_checkpointing: bool = Field(False, description="recompute activations to save memory")
    save_steps: Count = Field(10, description="steps between checkpoints to resume from")
    parallel: Literal["replicas", "fsdp"] = Field(
        "replicas", description="how processes share the model: replicas (each has a full copy) or fsdp (FSDP2)"
    )
    steps: Count = Field(100, description="steps of play and training")
    games: Annotated[int, Field(gt=0, le=1_000_000)] = Field(64, description="games per step")
    mix: list[dict[str, Any]] = Field(
        [],
        description="several games in one phase, each {name, weight} and the game's settings, with its own baselines; "
        "empty: the phase's game",
    )
    sampling: OnlineSampling = Field(default_factory=OnlineSampling, description="how the policy samples")
    opponents: Annotated[dict[str, Positive], Field(min_length=1), known_opponents(SELF, START, SNAPSHOT)] = Field(
        {SELF: 1.0},
        description="opponents by weight: self, start (the phase's first policy, frozen), snapshot (all "
        "snapshots together), or a model or bot. Only the policy's own utterances are trained",
    )
    matchmaking: Literal["weights", "results"] = Field(
        "weights",
        description="how each task's opponent is drawn. weights: by the weights in opponents; results: by these times "
        "the policy's loss rate against each opponent (prioritised fictitious self-play)",
    )
    snapshot_every: Count | None = Field(
        None,
        description="steps between policies saved as models in snapshots/, for opponents and the arena; "
        "null: 20 if opponents names snapshot, else none are saved",
    )
    rewards: dict[Annotated[str, "GAME"], RewardOverride] = Field(
        {}, description="rewards by game, in place of the game's own"
    )
    roles: str = Field("both", description="roles whose utterances are trained: both, or the name of one (an ablation)")
    epochs: Count = Field(1, description="passes over a step's samples")
    minibatches: Count = Field(1, description="updates per pass")
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.2,
        description="importance ratios are clipped to 1 -/+ this, relative to the policy at the start of the step or, "
        "with overlap, the policy that played",
    )
    correction: Literal["token", "sequence", "mask"] = Field(
        "token",
        description="importance weight of the trainer's policy relative to the engine's sampling distribution. token: "
        "per token, truncated; sequence: per utterance, truncated; mask: per token, 0 outside 1/limit to limit",
    )
    correction_limit: Annotated[float, Field(ge=1.0, le=1000.0)] = Field(2.0, description="limit of that weight")
    entropy_coef: NonNegative = Field(0.0, description="weight of the entropy bonus at the first step")
    entropy_coef_end: NonNegative | None = Field(None, description="final value of entropy_coef; null: constant")
    kl_coef_end: NonNegative | None = Field(None, description="final value of kl_coef; null: constant")
    anneal_steps: Count | None = Field(None, description="steps until both reach their final values; null: all")
    reference: Literal["fixed"] | MovingReference = Field(
        "fixed",
        description="reference of the KL term: fixed (the phase's first policy), {ema: 0.03} or {every: 40}",
    )
    average_decay: Decay = Field(
        0.0,
        description="decay per step of the average of weights that becomes the final policy; 0: the last weights",
    )
    overlap: CountOrZero = Field(
        0, description="steps by which play runs ahead of training; games are off-policy by the same number of steps"
    )
    evaluate_every: Count | None = Field(10, description="steps between evaluations on held-out tasks; null: none")
    evaluation_tasks: Count = Field(16, description="held-out tasks of an evaluation, each played in both roles")
    evaluation_opponents: Annotated[list[str], Field(min_length=1), known_opponents(START)] = Field(
        [START], description="opponents of an evaluation: start, models or bots"
    )
    stop_on_collapse: bool = Field(False, description="end the phase when play collapses, instead of only warning")

    @property
    def updates(self) -> int:
        """Updates per step."""
        return self.epochs * self.minibatches

    @property
    def clips(self) -> bool:
        """Whether a ratio can be clipped: with one update on the policy's own games, all ratios are 1."""
        return self.updates > 1 or self.overlap > 0

    @property
    def tested_against(self) -> list[str]:
        """The opponents of evaluations; empty without evaluations."""
        return self.evaluation_opponents if self.evaluate_every else []

    def evaluates_after(self, step: int) -> bool:
        """Whether ``step`` ends with an evaluation; so does any that ends the phase early."""
        return self.evaluate_every is not None and (step % self.evaluate_every == 0 or step == self.steps)

    @property
    def met(self) -> list[str]:
        """The opponents of the policy, in training games and in evaluations."""
        return [*dict.fromkeys((*self.opponents, *self.tested_against))]

    @property
    def keeps_snapshots_every(self) -> int | None:
        """Steps between snapshots; ``None`` if none is kept."""
        return self.snapshot_every or (20 if SNAPSHOT in self.opponents else None)

    @property
    def needs_reference(self) -> bool:
        return bool(self.kl_coef or self.kl_coef_end)

    @property
    def repeats(self) -> int:
        """Games per task against one opponent in each step, a divisor of ``games``."""
        return 1

    @model_validator(mode="after")
    def _whole_groups(self) -> "OnlineSettings":
        if self.games % self.repeats:
            what = f"games={self.games} does not make whole groups of {self.repeats} games per task"
            raise ValueError(f"{what}; choose a multiple of {self.repeats}")
        return self

    @model_validator(mode="after")
    def _used_reference(self) -> "OnlineSettings":
        if self.reference != "fixed" and not self.needs_reference:
            raise ValueError("reference moves the policy that the KL term pulls to, and kl_coef is 0; set kl_coef")
        return self

    @model_validator(mode="after")
    def _met_snapshots(self) -> "OnlineSettings":
        every = self.keeps_snapshots_every or 0
        if SNAPSHOT in self.opponents and every + self.overlap >= self.steps > 1:  # one step is a trial
            what = f"opponents has {SNAPSHOT}, and the first one is kept after step {every} of {self.steps}"
            fewer = "steps - overlap" if self.overlap else "steps"
            raise ValueError(f"{what}: none is ever met; set snapshot_every to fewer than {fewer}")
        return self
