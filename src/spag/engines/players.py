"""Players: what a name stands for, and the engine that generates for it.

    bot:NAME        a scripted player of the game
    openai:MODEL    a model behind an OpenAI-compatible endpoint
    mixture:FOLDER  in an arena: one of the models in FOLDER, drawn for each game
    anything else   a local model: hub id, folder, GGUF file, LoRA adapter, or a folder with an adapter for each role

Nothing else knows these prefixes. Heavy libraries are imported only when an engine of their kind is opened.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from spag.config.schema import EngineConfig, ModelConfig, PlannedEngine, SamplingConfig
from spag.core.errors import ConfigError
from spag.engines.base import Engine, Player, Sampling, UpdatableEngine
from spag.engines.bot import BotEngine
from spag.engines.roles import RoleEngine
from spag.engines.turns import take_turns
from spag.engines.vllm.setup import Backend, choose_backend, installed_vllm
from spag.games.base import Bot, Game
from spag.models.finding import BAICHUAN, adapter_base, model_type
from spag.models.roles import ROLES, read_roles

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

MODEL_FILES = ("config.json", "adapter_config.json", ROLES)
"""One of these is in every folder that is a model."""
Note = Callable[[str], None]
"""Takes a line about what is being opened and why."""
OpenModels = Callable[[Sequence[ModelConfig], EngineConfig, ExitStack, Note], list[Engine]]
"""The type of ``open_models``, which tests replace by a function that returns scripted engines."""


class Kind(StrEnum):
    """The kinds of players. The values of all but the last are the prefixes of their names."""

    BOT = "bot:"
    ENDPOINT = "openai:"
    MIXTURE = "mixture:"
    LOCAL = ""


@dataclass(frozen=True, slots=True)
class PlayerConfig:
    """The player of a role: its name for the record, its model (or bot) and its sampling."""

    name: str
    model: ModelConfig
    sampling: SamplingConfig


CONSTANT = f"{Kind.BOT}constant"
"""The bot that always says the most harmless thing: the floor to compare a policy with, in games that have it."""


def split_name(name: str) -> tuple[Kind, str]:
    """Return the kind of a player and its name without the prefix: ``bot:random`` is ``(Kind.BOT, "random")``."""
    kind = next(kind for kind in Kind if name.startswith(kind))
    return kind, name.removeprefix(kind)


def kind_of(name: str) -> Kind:
    """Return the kind of the player ``name``."""
    return split_name(name)[0]


def is_local(name: str) -> bool:
    """Whether ``name`` is that of a model whose weights are loaded here."""
    return kind_of(name) is Kind.LOCAL


def members_of(model: ModelConfig) -> list[ModelConfig]:
    """Return the models in the folder that ``mixture:FOLDER`` names, in order; any other model itself.

    Raises ``ConfigError`` for a folder without models.
    """
    kind, name = split_name(model.name)
    if kind is not Kind.MIXTURE:
        return [model]
    places = sorted(place.parent for file in MODEL_FILES for place in Path(name).expanduser().glob(f"*/{file}"))
    if not places:
        raise ConfigError(f"{model.name}: no model in that folder; name one whose subfolders are models")
    return [model.model_copy(update={"name": str(place)}) for place in dict.fromkeys(places)]


def bot_names(game: Game) -> list[str]:
    """Return the players' names of the game's bots."""
    return [f"{Kind.BOT}{name}" for name in game.bots]


def bot_of(game: Game, name: str) -> Bot:
    """Return the bot that ``bot:NAME`` names. Raises ``ConfigError`` for a game without it."""
    bot = game.bots.get(split_name(name)[1])
    if bot is None:
        raise ConfigError(f"{name}: {game.name} has no such bot (bots: {', '.join(bot_names(game)) or 'none'})")
    return bot


def identity_of(model: ModelConfig) -> dict[str, str]:
    """Return what decides the replies of a player, for the record of its games: equal for copies under other names.

    Raises ``ModelError`` for a path that is no model, ``ConfigError`` for an endpoint's faulty address.
    """
    kind, name = split_name(model.name)
    if kind is Kind.MIXTURE:
        raise ConfigError(f"{model.name}: a mixture plays in an arena only")
    if kind is Kind.BOT:
        return {"bot": name}
    if kind is Kind.ENDPOINT:
        from spag.engines.openai.client import shown_address  # noqa: PLC0415 - imports HTTP libraries

        return {"endpoint": shown_address(), "model": name}
    from spag.models.identity import weights_digest  # noqa: PLC0415 - imports huggingface_hub

    return {"weights": weights_digest(name), "dtype": model.dtype, "prompt_style": model.prompt_style}


def open_models(
    models: Sequence[ModelConfig], engine: EngineConfig, stack: ExitStack, note: Note = logger.info
) -> list[Engine]:
    """Open an engine for each of ``models``, local ones and endpoints; ``stack`` closes them.

    Equal models share an engine, and LoRA adapters their base model: one vLLM, or one copy of the weights. ``note``
    receives the backend of local models and the reason.
    """
    parts = dict.fromkeys(part for model in models for part in _parts(model))
    opened = {part: _open_endpoint(part, engine, stack) for part in parts if kind_of(part.name) is Kind.ENDPOINT}
    groups: dict[tuple[Backend, ModelConfig], list[ModelConfig]] = {}  # by backend and base model
    for part in parts:
        if is_local(part.name):
            base = part.model_copy(update={"name": _base(part.name), "prompt_style": "plain"})
            groups.setdefault((backend_of(part, engine, note), base), []).append(part)
    vllms = sum(backend is Backend.VLLM for backend, _ in groups)
    for (backend, _), group in sorted(groups.items(), key=lambda item: item[0][0] is not Backend.VLLM):
        # vLLM first: it reserves a share of the memory
        engines = _open_vllm(group, engine, vllms) if backend is Backend.VLLM else _open_transformers(group, engine)
        for part, one in zip(group, engines, strict=True):
            opened[part] = one
            stack.callback(one.close)
    by_model = {model: _whole(model, opened) for model in dict.fromkeys(models)}
    return [by_model[model] for model in models]


def open_model(model: ModelConfig, engine: EngineConfig) -> Engine:
    """Open the engine for one model, local or an endpoint; the caller closes it."""
    with ExitStack() as stack:
        [opened] = open_models([model], engine, stack)
        stack.pop_all()
    return opened


def open_copies(model: ModelConfig, names: Sequence[str], engine: EngineConfig) -> Mapping[str, Engine]:
    """Open engines for copies of one model, by name, each of which may be given weights of its own; the caller closes
    them.

    Adapters are there side by side in one vLLM; whole models take turns in one engine where the memory plan says so.
    Else only the first of ``names`` is opened: the others cost as much again, so they are opened when they are needed.
    """
    if isinstance(engine, PlannedEngine) and engine.in_turn:
        only = open_model(model, engine)
        assert isinstance(only, UpdatableEngine)  # a model that is trained
        return take_turns(only, names, cache(partial(_first_weights, model)))
    parts = _parts(model)
    adapters = all(_base(part.name) != part.name for part in parts)
    if not adapters or backend_of(parts[0], engine, logger.info) is not Backend.VLLM:
        return {names[0]: open_model(model, engine)}
    opened = iter(_open_vllm(parts * len(names), engine, 1))
    return {name: _whole(model, dict(zip(parts, opened, strict=False))) for name in names}


def _first_weights(model: ModelConfig) -> "Mapping[str, Tensor]":
    from spag.models.loading import load_model  # noqa: PLC0415 - imports torch

    loaded = load_model(model.name, dtype=model.dtype, device="cpu", trust_remote_code=model.trust_remote_code)
    return dict(loaded.named_parameters())


def open_player(model: ModelConfig, game: Game, engine: EngineConfig) -> Engine:
    """Open the engine for one player of ``game``, a bot or a model; the caller closes it."""
    if kind_of(model.name) is Kind.BOT:
        return BotEngine(bot_of(game, model.name), concurrency=engine.concurrency)
    return open_model(model, engine)


def open_players(
    players: Mapping[str, PlayerConfig],
    game: Game,
    engine: EngineConfig,
    stack: ExitStack,
    note: Note = logger.info,
    open_models: OpenModels = open_models,
) -> dict[str, Player]:
    """Open the engines of all players, by role; ``stack`` closes them. Raises what opening a model raises."""
    bots = [role for role, player in players.items() if kind_of(player.model.name) is Kind.BOT]
    engines = {role: open_player(players[role].model, game, engine) for role in bots}
    models = {role: player.model for role, player in players.items() if role not in bots}
    engines |= zip(models, open_models(list(models.values()), engine, stack, note), strict=True)
    return {role: Player(engines[role], player.name, sampling_of(player.sampling)) for role, player in players.items()}


def sampling_of(config: SamplingConfig) -> Sampling:
    """Turn the settings into the engine's plain arguments."""
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens,
        min_new_tokens=config.min_new_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        strip=not config.published,
        empty_retries=config.empty_retries,
        thought_tokens=config.thought_tokens,
        retry_cut=config.thinking.on_cut == "retry",
    )


def gpus_of(models: Sequence[ModelConfig], engine: EngineConfig) -> int:
    """Return how many GPUs the engines of ``models`` take where there are any: local models not kept on the CPU do."""
    needs_gpu = any(is_local(model.name) and model.device != "cpu" for model in models)
    return engine.tensor_parallel * (engine.data_parallel or 1) if needs_gpu else 0


def backend_of(model: ModelConfig, engine: EngineConfig, note: Note) -> Backend:
    """Return the backend of a local model; ``note`` receives the reason. Raises ``ConfigError``."""
    if engine.backend == "transformers":
        return Backend.TRANSFORMERS
    from spag.models.loading import checked_device  # noqa: PLC0415 - imports torch

    if model_type(model.name) == BAICHUAN:
        reason = "it is a Baichuan, which vLLM plays no more since 0.24"
        if engine.backend == "vllm":
            raise ConfigError(
                f"engine.backend=vllm, but {model.name} cannot: {reason}; set engine.backend=transformers"
            )
        note(f"{model.name} plays with {Backend.TRANSFORMERS}: {reason}")
        return Backend.TRANSFORMERS
    backend, reason = choose_backend(engine.backend, vllm=installed_vllm(), device=checked_device(model.device))
    note(f"models play with {backend}: {reason}")  # no name: a run opens a dozen models, and says this once
    return backend


def _parts(model: ModelConfig) -> list[ModelConfig]:
    """Return the adapters of a model that has one for each role, else the model itself."""
    roles = read_roles(model.name) or {"": model.name}
    return [model.model_copy(update={"name": name}) for name in roles.values()]


def _whole(model: ModelConfig, opened: Mapping[ModelConfig, Engine]) -> Engine:
    """Return the engine of ``model``, whose parts are ``opened``."""
    roles = read_roles(model.name)
    if roles is None:
        return opened[model]
    return RoleEngine(model.name, dict(zip(roles, (opened[part] for part in _parts(model)), strict=True)))


def _base(name: str) -> str:
    """Return the name of an adapter's base model, and that of any other model itself."""
    return adapter_base(Path(name).expanduser()) or name


def _open_endpoint(model: ModelConfig, engine: EngineConfig, stack: ExitStack) -> Engine:
    from spag.engines.openai.engine import OpenAIEngine  # noqa: PLC0415

    opened = OpenAIEngine(split_name(model.name)[1], concurrency=engine.concurrency)
    stack.callback(opened.close)
    return opened


def _open_transformers(models: Sequence[ModelConfig], engine: EngineConfig) -> Sequence[Engine]:
    from spag.engines.transformers.opening import open_transformers  # noqa: PLC0415

    return open_transformers(models, engine)


def _open_vllm(models: Sequence[ModelConfig], engine: EngineConfig, split: int) -> Sequence[Engine]:
    from spag.engines.vllm.opening import open_vllm  # noqa: PLC0415

    return open_vllm(models, engine, split)
