"""Players: the meaning of their names.

    bot:NAME        a scripted player of the game
    openai:MODEL    a model behind an OpenAI-compatible endpoint
    mixture:FOLDER  in an arena: one of the models in FOLDER, drawn for each game
    anything else   a local model: hub id, folder, GGUF file, LoRA adapter, or a folder with an adapter for each role

Only this module interprets these prefixes. ``opening.py`` opens the engine that generates for a player.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import ConfigError
from spag.core.options import SamplingConfig
from spag.games.base import Bot, Game
from spag.models.finding import ADAPTER_CONFIG
from spag.models.roles import ROLES
from spag.storage.home import expanded

MODEL_FILES = ("config.json", ADAPTER_CONFIG, ROLES)
"""Every model folder holds one of these."""


class Kind(StrEnum):
    """The kinds of players. All values but the last are the prefixes of their names."""

    BOT = "bot:"
    ENDPOINT = "openai:"
    MIXTURE = "mixture:"
    LOCAL = ""


@dataclass(frozen=True, slots=True)
class PlayerConfig:
    """The player of a role: its recorded name, its model (or bot) and its sampling."""

    name: str
    model: ModelConfig
    sampling: SamplingConfig


CONSTANT = f"{Kind.BOT}constant"
"""The bot that always says the most harmless thing: a floor for comparison, in games that have it."""


def split_name(name: str) -> tuple[Kind, str]:
    """Return the kind of a player and its name without the prefix: ``bot:random`` is ``(Kind.BOT, "random")``."""
    kind = next(kind for kind in Kind if name.startswith(kind))
    return kind, name.removeprefix(kind)


def kind_of(name: str) -> Kind:
    """Return the kind of the player ``name``."""
    return split_name(name)[0]


def is_local(name: str) -> bool:
    """Whether ``name`` is a model whose weights are loaded here."""
    return kind_of(name) is Kind.LOCAL


def members_of(model: ModelConfig) -> list[ModelConfig]:
    """Return the models in the folder of ``mixture:FOLDER``, in order; any other model itself. Raises ``ConfigError``
    for a folder without models.
    """
    kind, name = split_name(model.name)
    if kind is not Kind.MIXTURE:
        return [model]
    # [!.]: a process that was killed while saving a model leaves a hidden folder
    places = sorted(place.parent for file in MODEL_FILES for place in expanded(name).glob(f"[!.]*/{file}"))
    if not places:
        raise ConfigError(f"{model.name}: no model in that folder; name one whose subfolders are models")
    return [model.model_copy(update={"name": str(place)}) for place in dict.fromkeys(places)]


def bot_names(game: Game) -> list[str]:
    """Return the player names of the game's bots."""
    return [f"{Kind.BOT}{name}" for name in game.bots]


def bot_of(game: Game, name: str) -> Bot:
    """Return the bot called ``bot:NAME``. Raises ``ConfigError`` for a game without it."""
    bot = game.bots.get(split_name(name)[1])
    if bot is None:
        raise ConfigError(f"{name}: {game.name} has no such bot (bots: {', '.join(bot_names(game)) or 'none'})")
    return bot


def identity_of(model: ModelConfig) -> dict[str, str]:
    """Return what determines a player's replies, for the record of its games; equal for copies under other names.

    Raises ``ModelError`` for a path that is not a model, ``ConfigError`` for an endpoint's faulty address.
    """
    kind, name = split_name(model.name)
    if kind is Kind.MIXTURE:
        raise ConfigError(f"{model.name}: a mixture can only play in an arena")
    if kind is Kind.BOT:
        return {"bot": name}
    if kind is Kind.ENDPOINT:
        from spag.engines.openai.client import shown_address  # noqa: PLC0415 - imports HTTP libraries

        return {"endpoint": shown_address(), "model": name}
    from spag.models.identity import weights_digest  # noqa: PLC0415 - imports huggingface_hub

    return {"weights": weights_digest(name), "dtype": model.dtype, "prompt_style": model.prompt_style}


def endpoint_environment(models: Iterable[ModelConfig]) -> dict[str, str]:
    """Return the variables that say where endpoints are, with the key, if one of ``models`` is an endpoint."""
    if not any(kind_of(model.name) is Kind.ENDPOINT for model in models):
        return {}
    return {name: os.environ.get(name, "") for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY")}


def gpus_of(models: Sequence[ModelConfig], engine: EngineConfig) -> int:
    """Return how many GPUs the engines of ``models`` need, if any: those of local models not kept on the CPU."""
    needs_gpu = any(is_local(model.name) and model.device != "cpu" for model in models)
    return engine.gpus if needs_gpu else 0
