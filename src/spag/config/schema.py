"""Every option, once, as pydantic models; ``files.py`` reads them from presets, YAML files and dotted overrides.

Defaults are the paper's hyper-parameters for LLaMA-2-7B (arXiv 2404.10642, section 4 and upstream's scripts). Imports no torch.
``docs/configuration.md`` is generated from the descriptions here.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_core import PydanticCustomError

from spag.core.errors import ConfigError
from spag.games.base import Game
from spag.games.registry import DEFAULT, get, settings_of

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

FREE_TO_CHANGE = frozenset(
    {"micro_batch_size", "gradient_checkpointing", "save_steps", "log_steps", "report_to", "processes", "parallel", "offload"}
)
"""Training settings that do not change what is computed: a run may resume with other values of them."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    name: str = Field("meta-llama/Llama-2-7b-hf", description="hub id, local folder, GGUF file, or smollm2-135m (the embedded model)")
    prompt_style: Literal["plain", "chat"] = Field(
        "plain", description="plain: BOS and bare text, as the paper; chat: the model's own chat template"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "bfloat16", description="weights while playing, and autocast while training; auto measures which is fastest here, once a run"
    )
    device: str | None = Field(None, description="torch device; null takes the first GPU, else the CPU")
    trust_remote_code: bool = Field(False, description="run code that the model's repository brings; review it first")


class GameConfig(BaseModel):
    """The game by name, and its settings: the fields of the game's class, which ``spag.games.registry`` checks."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(DEFAULT, description="the game that is played; spag games lists them")

    @model_validator(mode="before")
    @classmethod
    def _with_settings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        name = data.get("name", DEFAULT)
        game = get(str(name), **{key: value for key, value in data.items() if key != "name"})
        return {"name": name, **settings_of(game)}

    def build(self) -> Game:
        """Return the game."""
        return get(self.name, **(self.model_extra or {}))


class SamplingConfig(Section):
    temperature: NonNegativeFloat = Field(1.2, description="0 is greedy (the paper's testing mode)")
    top_p: Fraction = Field(1.0, description="nucleus sampling; 1 switches it off")
    top_k: NonNegativeInt = Field(0, description="keep the k most likely tokens; 0 switches it off")
    max_new_tokens: PositiveInt = Field(256, description="longest utterance, in tokens")
    min_new_tokens: NonNegativeInt = Field(2, description="shortest utterance, in tokens; models emit empty utterances otherwise")
    max_prompt_tokens: NonNegativeInt = Field(
        0, description="longest prompt, in tokens; a longer one loses its beginning, the rules, as in the published code; 0 keeps it whole"
    )
    strip: bool = Field(True, description="drop white space around an utterance; false keeps it in the history, as the published code")
    empty_retries: NonNegativeInt = Field(2, description="how often an empty utterance is sampled again; never when greedy")


class EngineConfig(Section):
    concurrency: PositiveInt = Field(32, description="utterances generated at once")
    in_flight: PositiveInt | None = Field(
        None, description="games in flight; null takes as many as concurrency. More pay off where games say the same"
    )
    backend: Literal["auto", "transformers", "vllm"] = Field(
        "auto", description="what generates text; auto takes vLLM on a GPU where it is installed, else transformers, and says which and why"
    )
    max_length: PositiveInt = Field(
        4096, description="vLLM: longest prompt and utterance together, in tokens; a game needs its rules and 2 x max_turns utterances"
    )
    memory: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="vLLM: share of the GPU's memory, or of a CPU's free memory; null takes 0.9, and on a CPU what the games need"
    )
    tensor_parallel: PositiveInt = Field(1, description="vLLM: GPUs that a copy of the model is spread over")
    data_parallel: PositiveInt = Field(1, description="vLLM: copies of the model, each with its own GPUs, or its share of the CPU cores")


class LoraConfig(Section):
    rank: PositiveInt = Field(16, description="rank of the update matrices")
    alpha: PositiveInt = Field(32, description="scale of the update is alpha / rank")
    dropout: Fraction = Field(0.0, description="dropout on the adapter's input")
    target_modules: str | list[str] = Field("all-linear", description="which layers get an adapter")
    quantize: bool = Field(False, description="QLoRA: the base model's weights in 4 bits while training (bitsandbytes, NF4)")


class UpdateConfig(Section):
    """How weights are updated, whatever the algorithm."""

    learning_rate: PositiveFloat = Field(5e-6, description="peak learning rate")
    micro_batch_size: PositiveInt = Field(2, description="samples a forward pass, on each process")
    warmup_ratio: Fraction = Field(0.03, description="share of the steps with rising learning rate")
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup", "warmup_decay", "warmup_decay_0.13"] = Field(
        "cosine",
        description="shape after a linear warm-up; or DeepSpeed's WarmupDecayLR, warm-up along a logarithm and linear decay: "
        "warmup_decay, or warmup_decay_0.13 with the late start of upstream's release",
    )
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW weight decay")
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.9, description="AdamW's decay of the mean gradient")
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.999, description="AdamW's decay of the mean squared gradient")
    max_grad_norm: NonNegativeFloat = Field(1.0, description="clip the gradient's norm; 0 switches clipping off")
    max_length: PositiveInt = Field(2048, description="tokens of prompt and completion; longer ones lose tokens on the left")
    kl_coef: NonNegativeFloat = Field(0.1, description="weight of the KL term towards the reference policy")
    gradient_checkpointing: bool = Field(True, description="recompute activations to save memory")
    lora: LoraConfig | None = Field(None, description="train a LoRA adapter instead of all weights")
    processes: PositiveInt | None = Field(
        None, description="processes that train together; null takes what torchrun started, else one a visible GPU (one on CPUs)"
    )
    parallel: Literal["replicas", "fsdp", "deepspeed"] = Field(
        "replicas",
        description="how processes share the model. replicas: each holds all of it; fsdp (FSDP2) and deepspeed (ZeRO-3) shard weights, "
        "gradients and optimiser",
    )
    offload: bool = Field(False, description="fsdp and deepspeed: keep the sharded weights and optimiser in CPU memory")
    save_steps: PositiveInt = Field(50, description="optimiser steps between checkpoints to resume from")
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="where the rows of metrics.jsonl go besides; each needs its package"
    )


class TrainingConfig(UpdateConfig):
    epochs: PositiveInt = Field(1, description="passes over the samples")
    max_steps: PositiveInt | None = Field(
        None, description="exactly so many optimiser steps, however many samples there are: passes are cut or repeated; replaces epochs"
    )
    global_batch_size: PositiveInt = Field(128, description="samples an optimiser step, over all processes")
    drop_last: bool = Field(
        False, description="leave out the samples of a last batch that is incomplete, as the published code does; a single batch stays"
    )
    log_steps: PositiveInt = Field(1, description="optimiser steps between rows of metrics.jsonl")
    sft_coef: NonNegativeFloat = Field(0.5, description="weight of the SFT mix's loss")
    loss_group: PositiveInt | None = Field(
        None,
        description="RL and SFT losses are averaged within random groups of so many samples, then over the groups: 2 is the published "
        "code's micro-batch, in which sft_coef counts for less (docs/training.md); null averages over the global batch",
    )
    sft_data: Path | None = Field(None, description="instruction data mixed in (Alpaca JSON or prompt/completion rows); null mixes none")
    sft_samples: NonNegativeInt | None = Field(None, description="how many SFT rows to mix in; null takes all")


class OfflineRLConfig(TrainingConfig):
    learning_rate: PositiveFloat = Field(2e-6, description="peak learning rate")
    kl_coef: NonNegativeFloat = Field(0.2, description="weight of the KL term towards the reference policy")
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(0.2, description="importance ratios are clipped to 1 -/+ this")
    objective: Literal["offline_rl", "sft"] = Field(
        "offline_rl", description="sft (an ablation): likelihood of the same samples by their weights alone, without rewards, ratios and KL"
    )


class ImitationConfig(Section):
    episodes: list[str] = Field(
        ["teacher"],
        description="teacher play: 'teacher' (games that the game ships), bot:NAME, or episode files (ours or upstream's); "
        "empty without sft_data: no imitation, self-play begins with the base model",
    )
    utterances: Literal["winners", "all"] = Field(
        "winners", description="whose utterances are imitated: the winners' (the paper's), or all of games in which nobody broke a rule"
    )
    max_episodes: PositiveInt | None = Field(None, description="use only so many games, drawn by seed; null uses all (200 of a bot)")
    keep_held_out: bool = Field(
        False, description="train on games on held-out tasks too, as the paper does; report and model card then claim nothing held out"
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig)


OPPONENTS = ("self", "base", "imitation", "earlier")
"""Names of opponents that every run has; ``earlier`` is drawn from the frozen checkpoints before the current policy's."""


class SelfPlayConfig(Section):
    tasks: PositiveInt | None = Field(
        None, description="tasks (target words, deals, cities) an iteration, drawn anew each time from the train split; null plays all"
    )
    repeats: PositiveInt = Field(1, description="games a task")
    keep_held_out: bool = Field(
        False, description="play held-out tasks too, as the paper does; report and model card then claim nothing held out"
    )
    dtype: Literal["bfloat16", "float16", "float32"] | None = Field(
        None, description="weights in self-play, where they differ from model.dtype; the published code plays in float16"
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="how both players sample")
    roles: dict[str, SamplingConfig] = Field({}, description="how the player of a role samples, where it differs, by the role's name")
    opponents: Annotated[dict[str, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]], Field(min_length=1)] = Field(
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
        _check_opponents(weights, OPPONENTS)
        return weights


def _check_opponents(names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known and not set(name) & {"/", ":"}:  # a model's name has one of them
            told = {"name": name, "known": f"{', '.join(known)}, or a model: ORG/NAME, ./FOLDER, openai:MODEL, bot:NAME"}
            raise PydanticCustomError("opponent", "there is no opponent {name} (known: {known})", told)


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


class OnlineSamplingConfig(SamplingConfig):
    temperature: NonNegativeFloat = Field(1.0, description="0 would leave nothing to learn from")
    min_new_tokens: NonNegativeInt = Field(1, description="shortest utterance, in tokens")
    empty_retries: NonNegativeInt = Field(0, description="how often an empty utterance is sampled again; those before it are not trained")


class PayConfig(Section):
    tie_reward: float | None = Field(None, description="what each role gets in a draw; null: what the game says")
    illegal_reward: float | None = Field(None, description="what a role gets that breaks a rule; null: what the game says")


class MixedGameConfig(GameConfig):
    weight: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = Field(1.0, description="share of the games, beside the others' weights")

    @model_validator(mode="before")
    @classmethod
    def _with_settings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        rest = GameConfig.model_validate({key: value for key, value in data.items() if key != "weight"})
        return {"weight": data.get("weight", 1.0), "name": rest.name, **(rest.model_extra or {})}


class OnlineConfig(UpdateConfig):
    """Online self-play (``algorithm: reinforce``): every step plays games with the current policy, then trains on them."""

    learning_rate: PositiveFloat = Field(1e-6, description="peak learning rate")
    micro_batch_size: PositiveInt = Field(8, description="samples a forward pass, on each process")
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = Field("constant_with_warmup", description="shape after the warm-up")
    kl_coef: NonNegativeFloat = Field(0.0, description="weight of the KL term towards the reference policy; 0 loads no reference")
    gradient_checkpointing: bool = Field(False, description="recompute activations to save memory")
    parallel: Literal["replicas", "fsdp"] = Field(
        "replicas", description="how processes share the model: replicas, each holds all of it; or fsdp (FSDP2)"
    )
    save_steps: PositiveInt = Field(10, description="steps between checkpoints to resume from")
    steps: PositiveInt = Field(100, description="steps of play and training")
    games: PositiveInt = Field(64, description="games a step")
    mix: list[MixedGameConfig] = Field(
        [], description="games that are played side by side, each with its weight, its settings and baselines of its own; empty: game alone"
    )
    sampling: OnlineSamplingConfig = Field(default_factory=OnlineSamplingConfig, description="how the policy samples")
    opponents: Annotated[dict[str, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]], Field(min_length=1)] = Field(
        {"self": 1.0},
        description="whom the policy plays, by weight: self, start (the frozen policy of the first step), snapshot (a frozen earlier "
        "policy), or a model or bot (ORG/NAME, ./FOLDER, openai:MODEL, bot:NAME). Only the policy's own utterances are trained",
    )
    snapshot_every: PositiveInt = Field(20, description="steps between the frozen policies that the opponent snapshot is drawn from")
    pay: dict[str, PayConfig] = Field({}, description="rewards of ties and broken rules that replace those of a game, by its name")
    roles: str = Field("both", description="whose utterances are trained: both, or one role (an ablation)")
    baseline_decay: Fraction = Field(0.95, description="decay of each role's moving average of rewards; 1 trains without baselines")
    normalize_advantages: bool = Field(False, description="divide a role's advantages by their standard deviation over the step")
    discount: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="a reward counts discount^k for an utterance that k more of the same player follow"
    )
    epochs: PositiveInt = Field(1, description="passes over a step's samples")
    minibatches: PositiveInt = Field(1, description="optimiser steps a pass")
    clip_range: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.2, description="importance ratios of several updates are clipped to 1 -/+ this"
    )
    correction_limit: PositiveFloat = Field(
        2.0, description="largest importance weight between the engine's probability of a token and the trainer's"
    )
    loss_divisor: Literal["constant", "length"] = Field(
        "constant", description="what a sample's summed token losses are divided by: max_new_tokens, or the sample's own length"
    )
    entropy_coef: NonNegativeFloat = Field(0.0, description="weight of the tokens' entropy at the first step")
    entropy_coef_end: NonNegativeFloat | None = Field(None, description="what entropy_coef falls or rises to; null: it stays")
    kl_coef_end: NonNegativeFloat | None = Field(None, description="what kl_coef falls or rises to; null: it stays")
    anneal_steps: PositiveInt | None = Field(None, description="steps in which both coefficients reach their ends; null: all steps")
    average_decay: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="the final policy is a moving average of the weights with this decay a step; 0: the last weights"
    )
    overlap: bool = Field(False, description="play the next step's games, with the weights before this update, while training")
    evaluate_every: PositiveInt | None = Field(10, description="steps between evaluations on held-out tasks; null: none")
    evaluation_tasks: PositiveInt = Field(16, description="held-out tasks of an evaluation, each played in both role assignments")
    evaluation_opponents: list[str] = Field(
        ["start"], description="whom an evaluation meets: start (the frozen policy of the first step), a model or a bot"
    )
    stop_on_collapse: bool = Field(False, description="end the run after a step that shows a collapse; else it only warns")

    @field_validator("opponents")
    @classmethod
    def _known_opponents(cls, weights: dict[str, float]) -> dict[str, float]:
        _check_opponents(weights, ("self", "start", "snapshot"))
        return weights

    @field_validator("evaluation_opponents")
    @classmethod
    def _known_evaluation_opponents(cls, names: list[str]) -> list[str]:
        _check_opponents(names, ("start",))
        return names


class ArenaSamplingConfig(SamplingConfig):
    temperature: NonNegativeFloat = Field(0.0, description="0 is greedy (the paper's testing mode)")


class ArenaConfig(Section):
    tasks: PositiveInt = Field(100, description="held-out tasks (target words); each pair plays every task in both role assignments")
    sampling: ArenaSamplingConfig = Field(default_factory=ArenaSamplingConfig, description="how both sides sample")


class ClusterConfig(Section):
    address: str | None = Field(
        None,
        description="Ray cluster to play and train on: auto (the one this machine belongs to), local (a Ray of this machine alone) or an "
        "address; null uses no Ray",
    )
    workers: PositiveInt | None = Field(
        None, description="engines that play at once; null takes as many as the cluster's GPUs hold, without GPUs one a node"
    )
    lease: PositiveInt = Field(16, description="games handed to an engine at a time; a lost engine's unfinished ones are played elsewhere")
    deadline: PositiveFloat = Field(
        900.0, description="seconds without a finished game after which an engine counts as hung and is replaced"
    )
    storage: str | None = Field(
        None, description="folder or fsspec URL (s3://BUCKET/PATH) that every node sees, for weights; null: all nodes see the run folder"
    )


class RunConfig(Section):
    """A whole run: imitation, then ``iterations`` times self-play, rewards and offline RL, then the arena."""

    seed: int = Field(0, description="decides the words, every game's draws, the prompts and the order of training")
    algorithm: Literal["spag", "reinforce", "spag+reinforce"] = Field(
        "spag",
        description="how the policy learns after imitation: spag (offline iterations, the paper's), reinforce (online), or one "
        "after the other",
    )
    iterations: NonNegativeInt = Field(3, description="self-play iterations (the paper's SPAG epochs)")
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

    @model_validator(mode="after")
    def _roles_of_the_game(self) -> "RunConfig":
        roles = self.game.build().roles
        named = {"selfplay.roles": set(self.selfplay.roles), "rewards.roles": {self.rewards.roles} - {"both"}}
        for option, given in named.items():
            if unknown := sorted(given - set(roles)):
                raise ConfigError(f"{option}: {self.game.name} has no role {unknown[0]}; its roles are {', '.join(roles)}")
        played = [part.build() for part in self.online.mix] or [self.game.build()]
        if unknown := sorted(set(self.online.pay) - {game.name for game in played}):
            raise ConfigError(f"online.pay: {unknown[0]} is not played online; the games are {', '.join(game.name for game in played)}")
        if self.online.roles not in {"both", *(role for game in played for role in game.roles)}:
            raise ConfigError(f"online.roles: no game that is played online has a role {self.online.roles}")
        return self
