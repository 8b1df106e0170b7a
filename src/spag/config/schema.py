"""Every option, once, as pydantic models; ``files.py`` reads them from presets, YAML files and dotted overrides.

Defaults are the paper's hyper-parameters for LLaMA-2-7B (arXiv 2404.10642, section 4 and upstream's scripts). Imports no torch.
``docs/configuration.md`` is generated from the descriptions here.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from spag.config.base import (
    LARGEST,
    Count,
    GameConfig,
    ModelConfig,
    Positive,
    SamplingConfig,
    Section,
    Temperature,
    check_opponents,
)
from spag.config.online import MixedGameConfig, OnlineConfig, OnlineSamplingConfig, PayConfig
from spag.config.training import FREE_TO_CHANGE, LoraConfig, OfflineRLConfig, TrainingConfig, UpdateConfig
from spag.core.errors import ConfigError
from spag.games.base import Game


class EngineConfig(Section):
    concurrency: Count = Field(32, description="utterances generated at once")
    in_flight: Count | None = Field(
        None, description="games in flight; null takes as many as concurrency. More pay off where games say the same"
    )
    backend: Literal["auto", "transformers", "vllm"] = Field(
        "auto", description="what generates text; auto takes vLLM on a GPU where it is installed, else transformers, and says which and why"
    )
    max_length: Count = Field(
        4096, description="vLLM: longest prompt and utterance together, in tokens; a game needs its rules and 2 x max_turns utterances"
    )
    memory: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="vLLM: share of the GPU's memory, or of a CPU's free memory; null takes 0.9, and on a CPU what the games need"
    )
    tensor_parallel: Count = Field(1, description="vLLM: GPUs that a copy of the model is spread over")
    data_parallel: Count = Field(1, description="vLLM: copies of the model, each with its own GPUs, or its share of the CPU cores")


class ImitationConfig(Section):
    episodes: list[str] = Field(
        ["teacher"],
        description="teacher play: 'teacher' (games that the game ships), bot:NAME, or episode files (ours or upstream's); "
        "empty without sft_data: no imitation, self-play begins with the base model",
    )
    utterances: Literal["winners", "all"] = Field(
        "winners", description="whose utterances are imitated: the winners' (the paper's), or all of games in which nobody broke a rule"
    )
    max_episodes: Count | None = Field(None, description="use only so many games, drawn by seed; null uses all (200 of a bot)")
    keep_held_out: bool = Field(
        False, description="train on games on held-out tasks too, as the paper does; report and model card then claim nothing held out"
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig)


OPPONENTS = ("self", "base", "imitation", "earlier")
"""Names of opponents that every run has; ``earlier`` is drawn from the frozen checkpoints before the current policy's."""


class SelfPlayConfig(Section):
    tasks: Count | None = Field(
        None, description="tasks (target words, deals, cities) an iteration, drawn anew each time from the train split; null plays all"
    )
    repeats: Annotated[int, Field(gt=0, le=10_000)] = Field(1, description="games a task")
    keep_held_out: bool = Field(
        False, description="play held-out tasks too, as the paper does; report and model card then claim nothing held out"
    )
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        None, description="weights in self-play, where they differ from model.dtype; the published code plays in float16"
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="how both players sample")
    roles: dict[str, SamplingConfig] = Field({}, description="how the player of a role samples, where it differs, by the role's name")
    opponents: Annotated[dict[str, Positive], Field(min_length=1)] = Field(
        {"self": 1.0},
        description="whom the current policy plays, by weight: self, base, imitation, earlier (any earlier checkpoint of the run), or "
        "a model (ORG/NAME, ./FOLDER, openai:MODEL). In games against others it takes either role, and only its own utterances are trained",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_roles(cls, data: Any) -> Any:
        """A role's settings extend those of ``sampling``."""
        if not isinstance(data, dict) or not isinstance(data.get("roles"), dict) or not isinstance(data.get("sampling", {}), dict):
            return data
        shared = data.get("sampling", {})
        return {**data, "roles": {role: {**shared, **own} if isinstance(own, dict) else own for role, own in data["roles"].items()}}

    def sampling_of(self, role: str) -> SamplingConfig:
        """Return how the player of ``role`` samples."""
        return self.roles.get(role, self.sampling)

    @field_validator("opponents")
    @classmethod
    def _known_opponents(cls, weights: dict[str, float]) -> dict[str, float]:
        check_opponents(weights, OPPONENTS)
        return weights


class RewardsConfig(Section):
    discount: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.8, description="the winner's k-th utterance gets (1/discount)^k, normalised over the game"
    )
    loser_reward: float = Field(
        0.0, ge=-1.0, le=0.0, description="0 drops the loser; -1 mirrors the winner's rewards (upstream: did not converge)"
    )
    tie_reward: float = Field(0.0, ge=-1.0, le=1.0, description="total reward of each side in a tie; 0 drops ties")
    roles: str = Field(
        "both", description="whose samples are kept: both, or one role (an ablation), which changes no weight of the samples that it keeps"
    )
    template: Literal["random", "game", "play"] = Field(
        "random",
        description="paraphrase, layout and names of a sample's prompt. random: drawn per utterance, as the paper; game: drawn once a "
        "game, which trains faster; play: the prompt of play, fastest",
    )
    completions: Literal["sampled", "text"] = Field(
        "sampled",
        description="what is trained of an utterance. sampled: the tokens that the engine drew, where they are known; text: its text, "
        "tokenised again and ended, as the published code",
    )


class ArenaSamplingConfig(SamplingConfig):
    temperature: Temperature = Field(0.0, description="0 is greedy (the paper's testing mode)")


class ArenaConfig(Section):
    tasks: Count = Field(100, description="held-out tasks (target words); each pair plays every task in both role assignments")
    sampling: ArenaSamplingConfig = Field(default_factory=ArenaSamplingConfig, description="how both sides sample")
    entrants: list[str] = Field(
        [],
        description="which models of a run compete: base, imitation, iteration-N, online; empty: base, imitation, the last iteration "
        "and online",
    )


class ClusterConfig(Section):
    address: str | None = Field(
        None,
        description="Ray cluster to play and train on: auto (the one this machine belongs to), local (a Ray of this machine alone) or an "
        "address; null uses no Ray",
    )
    workers: Count | None = Field(
        None, description="engines that play at once; null takes as many as the cluster's GPUs hold, without GPUs one a node"
    )
    online_workers: Count | None = Field(
        None,
        description="engines that play online steps, on GPUs beside those of online.processes, which then only train; null: each training "
        "process plays its share",
    )
    lease: Count = Field(16, description="games handed to an engine at a time; a lost engine's unfinished ones are played elsewhere")
    deadline: Annotated[float, Field(ge=1.0, le=LARGEST)] = Field(
        900.0, description="seconds without a finished game after which an engine counts as hung and is replaced"
    )
    storage: str | None = Field(
        None, description="folder or fsspec URL (s3://BUCKET/PATH) that every node sees, for weights; null: all nodes see the run folder"
    )


class RunConfig(Section):
    """A whole run: imitation, then ``iterations`` times self-play, rewards and offline RL, then the arena."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="decides the words, every game's draws, the prompts and the order of training"
    )
    algorithm: Literal["spag", "reinforce", "spag+reinforce"] = Field(
        "spag",
        description="how the policy learns after imitation: spag (offline iterations, the paper's), reinforce (online), or one "
        "after the other",
    )
    iterations: Annotated[int, Field(ge=0, le=1000)] = Field(3, description="self-play iterations (the paper's SPAG epochs)")
    oversubscribe: bool = Field(
        False, description="let processes, workers and utterances at once be more than this machine has cores, GPUs or memory for"
    )
    model: ModelConfig = Field(default_factory=ModelConfig)
    game: GameConfig = Field(default_factory=GameConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    imitation: ImitationConfig = Field(default_factory=ImitationConfig)
    selfplay: SelfPlayConfig = Field(default_factory=SelfPlayConfig)
    rewards: RewardsConfig = Field(default_factory=RewardsConfig)
    offline_rl: OfflineRLConfig = Field(default_factory=OfflineRLConfig)
    online: OnlineConfig = Field(default_factory=OnlineConfig)
    arena: ArenaConfig = Field(default_factory=ArenaConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)

    def online_games(self) -> list[Game]:
        """Return the games that online steps play."""
        return [part.build() for part in self.online.mix] or [self.game.build()]

    @model_validator(mode="after")
    def _roles_of_the_game(self) -> "RunConfig":
        roles = self.game.build().roles
        named = {"selfplay.roles": set(self.selfplay.roles), "rewards.roles": {self.rewards.roles} - {"both"}}
        for option, given in named.items():
            if unknown := sorted(given - set(roles)):
                raise ConfigError(f"{option}: {self.game.name} has no role {unknown[0]}; its roles are {', '.join(roles)}")
        played = self.online_games()
        if unknown := sorted(set(self.online.pay) - {game.name for game in played}):
            raise ConfigError(f"online.pay: {unknown[0]} is not played online; the games are {', '.join(game.name for game in played)}")
        if self.online.roles not in {"both", *(role for game in played for role in game.roles)}:
            raise ConfigError(f"online.roles: no game that is played online has a role {self.online.roles}")
        return self


__all__ = [
    "FREE_TO_CHANGE",
    "OPPONENTS",
    "ArenaConfig",
    "ArenaSamplingConfig",
    "ClusterConfig",
    "EngineConfig",
    "GameConfig",
    "ImitationConfig",
    "LoraConfig",
    "MixedGameConfig",
    "ModelConfig",
    "OfflineRLConfig",
    "OnlineConfig",
    "OnlineSamplingConfig",
    "PayConfig",
    "RewardsConfig",
    "RunConfig",
    "SamplingConfig",
    "SelfPlayConfig",
    "TrainingConfig",
    "UpdateConfig",
]
