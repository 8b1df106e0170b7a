"""Every option, once, as pydantic models; ``files.py`` reads them from presets, YAML files and dotted overrides.

A run is a list of phases. A phase names its algorithm; its options are the algorithm's ``Settings``
(``spag.algorithms``), so new algorithms, like games, define their own options. Imports no torch.
``docs/configuration.md`` is generated from the descriptions here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from spag.algorithms import get as get_algorithm
from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import UpdateSettings
from spag.core.errors import ConfigError
from spag.core.options import LARGEST, Count, FileName, Positive, SamplingConfig, Section, Temperature
from spag.games.base import Game
from spag.games.registry import DEFAULT, settings_of
from spag.games.registry import get as get_game

GAME_FAULT = "game_fault"
"""The type of errors whose context has the registry's ``error``."""


class ModelConfig(Section):
    """The model, and how it is loaded and prompted."""

    name: FileName = Field(
        "meta-llama/Llama-2-7b-hf",
        description="hub id, local folder, GGUF file, or smollm2-135m (the embedded model, Q4_1, dequantised)",
    )
    prompt_style: Literal["plain", "chat", "tagged"] = Field(
        "plain",
        description="plain: BOS and bare text, as in the paper; chat: the model's own chat template; tagged: for base "
        "models that reason, with thought and answer in tags",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "bfloat16",
        description="precision of weights in play and of autocast in training; auto measures once which is fastest",
    )
    device: str | None = Field(None, description="torch device; null: the first GPU, else the CPU")
    trust_remote_code: bool = Field(False, description="run code from the model's repository; review it first")

    @property
    def names_one_device(self) -> bool:
        """Whether ``device`` is one of several of its kind, as ``cuda:0``."""
        return ":" in (self.device or "")


class GameConfig(BaseModel):
    """The game by name, and its settings: the fields of the game's class, checked by ``spag.games.registry``."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(DEFAULT, description="name of the game; spag games lists them")

    @model_validator(mode="before")
    @classmethod
    def _with_settings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        name = data.get("name", DEFAULT)
        if not isinstance(name, str) or not all(isinstance(key, str) for key in data):
            raise PydanticCustomError("game", "a game has a name and settings by name; spag games lists the games")
        try:
            game = get_game(name, **{key: value for key, value in data.items() if key != "name"})
        except ConfigError as error:  # the place of this game among the options is not known here
            raise PydanticCustomError(GAME_FAULT, "{error}", {"error": error}) from error
        return {"name": name, **settings_of(game)}

    def build(self) -> Game:
        """Return the game."""
        return get_game(self.name, **(self.model_extra or {}))


class EngineConfig(Section):
    """The engine that generates text, and its concurrency."""

    concurrency: Count = Field(32, description="utterances generated concurrently")
    in_flight: Count | None = Field(
        None,
        description="concurrent games; null: concurrency for each model that plays. Raise it when many games share "
        "prompts",
    )
    backend: Literal["auto", "transformers", "vllm"] = Field(
        "auto", description="generation backend; auto: vLLM on a GPU if it is installed, else transformers"
    )
    max_length: Count = Field(4096, description="vLLM: context length in tokens, prompt plus utterance")
    memory: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None,
        description="vLLM: fraction of the GPU's memory, or of free CPU memory, for all open engines together; null: "
        "0.9 on a dedicated GPU; what training leaves on a shared one; on a CPU, what the games need",
    )
    tensor_parallel: Count = Field(1, description="vLLM: GPUs that share one copy of the model")
    data_parallel: Count | None = Field(
        None,
        description="vLLM: replicas of the model, each on its own GPUs or CPU cores; null: as many as "
        "fit the visible GPUs, but only one on a CPU, in each of several training processes and in each Ray actor",
    )

    @property
    def gpus(self) -> int:
        """The number of GPUs that one engine uses."""
        return self.tensor_parallel * (self.data_parallel or 1)

    def games_in_flight(self, models: int) -> int:
        """Return how many games of ``models`` models, two at most in each, are in flight at once."""
        return self.in_flight or self.concurrency * min(2, max(1, models))


class PlannedEngine(EngineConfig):
    """An engine of online steps according to the memory plan (``spag.planning.here``): ``memory`` is its share of the
    GPU, ``sleep`` the level at which vLLM sleeps while the trainer trains (0: it stays awake). ``in_turn``: the
    policy's copies take turns in one engine.
    """

    sleep: Literal[0, 1, 2] = 0
    in_turn: bool = False


class ArenaSampling(SamplingConfig):
    """Sampling in the arena, greedy by default."""

    temperature: Temperature = Field(0.0, description="0 is greedy (the paper's testing mode)")


class ArenaConfig(Section):
    """The entrants and tasks of the arena at the end of a run."""

    tasks: Count = Field(100, description="held-out tasks; each pair plays every task twice, with roles swapped")
    sampling: ArenaSampling = Field(default_factory=ArenaSampling, description="how both sides sample")
    entrants: list[str] = Field(
        [],
        description="who competes: base, models of the run by the name of their phase (imitation, spag-3, reinforce), "
        "mixture:NAME (draws one of such a model's snapshots for each game), other models or bots; empty: base, the "
        "last model of each phase, and bot:constant where the game ships it",
    )


class ClusterConfig(Section):
    """The Ray cluster that plays and trains, if any."""

    address: str | None = Field(
        None,
        description="Ray cluster to play and train on: auto (the one this machine belongs to), local (starts Ray on "
        "this machine) or an address; null: no Ray",
    )
    workers: Count | None = Field(
        None,
        description="concurrent engines; null: as many as the cluster's GPUs allow, without GPUs one per node",
    )
    online_workers: Count | None = Field(
        None,
        description="engines that play online steps, on GPUs that do not train; null: each training process "
        "plays its share",
    )
    lease: Count = Field(16, description="games given to an engine at a time; if it is lost, other engines play them")
    deadline: Annotated[float, Field(ge=1.0, le=LARGEST)] = Field(
        900.0, description="seconds without a finished game after which an engine counts as hung and is replaced"
    )
    storage: str | None = Field(
        None, description="folder or fsspec URL (s3://BUCKET/PATH) shared by all nodes, for weights; null: the run's"
    )

    @property
    def actors(self) -> int:
        """The engines that play online steps on GPUs that do not train; 0: each training process plays its share."""
        return (self.online_workers or 0) if self.address else 0


class WeightedGame(Section):
    """A game of an online mix, and its share of the games."""

    game: GameConfig
    weight: Positive = 1.0

    @model_validator(mode="before")
    @classmethod
    def _of_mapping(cls, data: Any) -> Any:
        if isinstance(data, dict) and "game" not in data:
            rest = {key: value for key, value in data.items() if key != "weight"}
            return {"game": rest, "weight": data.get("weight", 1.0)}
        return data


class _Mix(Section):
    """The games of an online phase: a section, so that an error names its place."""

    mix: list[WeightedGame]


class PhaseConfig(BaseModel):
    """A phase of a run: its algorithm by name, its game if it differs from the run's, and the algorithm's options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    algorithm: str = Field(description="imitation, spag, reinforce, group, turnwise, or one of another package")
    game: GameConfig | None = Field(None, description="the game of this phase; null: the run's")

    @model_validator(mode="before")
    @classmethod
    def _with_settings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if not isinstance(name := data.get("algorithm"), str):
            raise PydanticCustomError("phase", "a phase names its algorithm, as in algorithm: spag")
        own = {key: value for key, value in data.items() if key not in ("algorithm", "game")}
        settings = get_algorithm(name).Settings.model_validate(own)
        _Mix.model_validate({"mix": getattr(settings, "mix", ())})
        return {"algorithm": name, "game": data.get("game"), **settings.model_dump()}

    @property
    def settings(self) -> Any:
        """The algorithm's options: an instance of its ``Settings``."""
        return get_algorithm(self.algorithm).Settings.model_validate(self.model_extra or {})

    def mix(self, default: GameConfig) -> list[tuple[Game, float]]:
        """Return the games of a phase, each with its weight: ``default``, unless it is online and names others."""
        mix = _Mix.model_validate({"mix": getattr(self.settings, "mix", ())}).mix
        return [(part.game.build(), part.weight) for part in mix] or [(default.build(), 1.0)]


class RunConfig(Section):
    """A whole run: its phases in order, then the arena."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        0, description="seed of the choice of tasks, all sampling, the prompts and the order of training samples"
    )
    model: ModelConfig = Field(default_factory=ModelConfig)
    game: GameConfig = Field(default_factory=GameConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    phases: Annotated[list[PhaseConfig], Field(min_length=1)] = Field(
        [PhaseConfig(algorithm="imitation"), PhaseConfig(algorithm="spag")],
        description="the phases in order; each starts from the previous one's model",
    )
    arena: ArenaConfig = Field(default_factory=ArenaConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        [], description="trackers that also get the rows of metrics.jsonl; each needs its package"
    )

    def game_of(self, phase: PhaseConfig) -> GameConfig:
        """Return the game of a phase."""
        return phase.game or self.game

    @model_validator(mode="before")
    @classmethod
    def _games_of_phases(cls, data: Any) -> Any:
        """Read a phase's game without a name, or one of a mix, as the run's game with other settings."""
        game, phases = (data.get(name) for name in ("game", "phases")) if isinstance(data, dict) else (None, None)
        game = game.model_dump() if isinstance(game, GameConfig) else game or {}
        if not isinstance(game, dict) or not isinstance(phases, list):
            return data
        game = {"name": DEFAULT, **game}
        return {**data, "phases": [_with_game(phase, game) if isinstance(phase, dict) else phase for phase in phases]}

    @model_validator(mode="after")
    def _roles_of_the_games(self) -> "RunConfig":
        for number, phase in enumerate(self.phases):
            games = {game.name: game for game, _ in phase.mix(self.game_of(phase))}
            _check_roles(f"phases.{number}", phase.settings, games)
        return self


def _with_game(phase: dict[str, Any], game: dict[str, Any]) -> dict[str, Any]:
    def whole(own: Any) -> Any:
        if isinstance(own, dict) and "game" in own:  # with its weight in a mix
            return {**own, "game": whole(own["game"])}
        return {**game, **own} if isinstance(own, dict) and "name" not in own else own

    mix = phase.get("mix")
    found = {"game": whole(phase.get("game")), "mix": [whole(one) for one in mix] if isinstance(mix, list) else mix}
    return {**phase, **{name: value for name, value in found.items() if name in phase}}


def _check_roles(place: str, settings: UpdateSettings, games: Mapping[str, Game]) -> None:
    """Raise ``ConfigError`` for a role or a game that is not among the phase's."""
    if settings.per_role and not isinstance(settings, OnlineSettings):
        raise ConfigError(f"{place}.lora.per_role: only online phases train an adapter for each role")
    named = [(f"{place}.roles", {getattr(settings, "roles", "both")} - {"both"}, game) for game in games.values()]
    for name, own in getattr(settings, "rewards", {}).items():
        if name not in games:
            known = ", ".join(games)
            raise ConfigError(f"{place}.rewards: {name} is not played in this phase; the games are {known}")
        named.append((f"{place}.rewards.{name}.tie_by_role", set(own.tie_by_role), games[name]))
    for option, roles, game in named:
        if unknown := sorted(roles - set(game.roles)):
            known = ", ".join(game.roles)
            raise ConfigError(f"{option}: {game.name} has no role {unknown[0]}; the roles are {known}")
