"""Checks of a run's players and machine before anything is loaded: models' configs, endpoints, numbers of GPUs, cores
and connections, memory for play.
"""

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import BASE, EARLIER, SELF, SNAPSHOT, START, TeacherSettings
from spag.config.schema import ModelConfig, RunConfig
from spag.core.errors import ConfigError, ModelError
from spag.engines.opening import backend_and_reason
from spag.engines.players import Kind, bot_of, kind_of, members_of
from spag.engines.vllm.setup import Backend, split_refusal
from spag.games.base import Game
from spag.models.finding import EMBEDDED_NAME, adapter_base, embedded_gguf, resolve_model
from spag.models.roles import model_of_role, models_of
from spag.runs.layout import mixed_model, planned_models
from spag.storage.home import expanded
from spag.storage.machine import is_loopback, memory_bytes, open_files, usable_cores

SLOT_TOKENS = 128
"""Tokens that the transformers engine allocates for each concurrent utterance before the first is generated
(``slots.GROWTH``).
"""
_CONNECT_S = 5.0
_FILES = 64  # files that a process has open besides its connections


def check_players(config: RunConfig, games_of: Mapping[str, Sequence[Game]]) -> None:
    """Raise the ``SpagError`` with which play would fail, as far as the configs of the models tell.

    ``games_of`` has each player's games, by its name.
    """
    backend_here(config)
    bots_first = sorted(games_of.items(), key=lambda item: kind_of(item[0]) is not Kind.BOT)  # need no files
    for name, games in bots_first:
        if kind_of(name) is Kind.BOT:
            for game in games:
                bot_of(game, name)
        elif kind_of(name) is Kind.ENDPOINT:
            _check_endpoint()
        else:
            for member in members_of(config.model.model_copy(update={"name": name})):
                for one in models_of(member.name):
                    _check_model(config.model.model_copy(update={"name": one}), config)
                for game in games:
                    for role in game.roles:
                        model_of_role(member.name, game.name, role)


def players(config: RunConfig) -> dict[str, list[Game]]:
    """Return all models and bots in the settings of a run by name, each with the games that it plays under that name.

    The run's model plays as ``base`` in the arena; as the start of a phase it is that phase's to check.
    """
    arena = [config.game.build()]
    in_arena = BASE in (config.arena.entrants or [BASE])
    named = [(config.model.name, arena if in_arena or kind_of(config.model.name) is Kind.BOT else [])]
    for phase in config.phases:
        settings = phase.settings
        if not isinstance(settings, TeacherSettings):
            games = [game for game, _ in phase.mix(config.game_of(phase))]
            named += [(name, games) for name in settings.met]
    named += [(name, arena) for name in config.arena.entrants]
    own = {SELF, START, SNAPSHOT, BASE, EARLIER, *(model.name for model in planned_models(config))}
    found: dict[str, list[Game]] = {}
    for name, games in named:
        if name not in own and mixed_model(config, name) is None:
            found.setdefault(name, []).extend(games)
    return found


def is_elsewhere(config: RunConfig) -> bool:
    """Whether other machines play and train: a cluster that this process does not start."""
    return config.cluster.address not in (None, "local")


def backend_here(config: RunConfig, model: ModelConfig | None = None) -> Backend:
    """Return the backend of a local model, by default the run's own. Raises ``ConfigError`` for an unsupported one.

    If it plays on other machines, only what the settings say is known.
    """
    if is_elsewhere(config):
        return Backend.VLLM if config.engine.backend == "vllm" else Backend.TRANSFORMERS
    return backend_and_reason(model or config.model, config.engine)[0]


def check_machine(config: RunConfig) -> None:
    """Raise ``ConfigError`` for the first count that exceeds this machine."""
    for option, asked, has, what in _counts(config):
        if asked > has:
            raise ConfigError(f"{option}={asked:,}: this machine has fewer {what} ({has:,}); lower it")


def check_dtype(config: RunConfig) -> None:
    """Raise ``ConfigError`` if ``model.dtype=auto`` would be the choice of this machine's CPU for a cluster's GPUs."""
    from spag.learning.launch import gpu_count  # noqa: PLC0415 - imports torch

    model, address = config.model, config.cluster.address
    if model.dtype != "auto" or model.device == "cpu" or address is None or not is_elsewhere(config):
        return
    if not gpu_count(model) and cluster_gpus(address):
        fix = "set bfloat16, float16 or float32"
        raise ConfigError(f"model.dtype=auto: this machine has no GPU on which the cluster's could be measured; {fix}")


def cluster_gpus(address: str) -> int:
    """Return how many GPUs the cluster at ``address`` has."""
    from spag.rollout.ray.connection import connected, gpu_count  # noqa: PLC0415 - Ray is optional

    with connected(address):
        return gpu_count()


def _counts(config: RunConfig) -> Iterator[tuple[str, int, int, str]]:
    """Yield (option, requested, available, of what)."""
    from spag.learning.launch import gpu_count  # noqa: PLC0415 - imports torch

    engine, gpus = config.engine, gpu_count(config.model)
    has, what = (gpus, "GPUs") if gpus else (usable_cores(), "CPU cores")
    if not is_elsewhere(config):
        for number, phase in enumerate(config.phases):
            yield f"phases.{number}.processes", phase.settings.processes or 1, has, what
        yield "engine.tensor_parallel", engine.tensor_parallel, has, what
        each = f"{what} for each {engine.tensor_parallel}"
        yield "engine.data_parallel", engine.data_parallel or 1, has // engine.tensor_parallel, each
        yield from _playing_processes(config, gpus)
    if config.cluster.address == "local":
        yield "cluster.workers", config.cluster.workers or 1, has, what
        online = [phase.settings for phase in config.phases if isinstance(phase.settings, OnlineSettings)]
        if config.cluster.online_workers and online:
            training = max(settings.processes or 1 for settings in online)
            yield "cluster.online_workers", config.cluster.online_workers, has - training, f"{what} left to play"
    if any(kind_of(name) is Kind.ENDPOINT for name in players(config)):
        yield "engine.concurrency", engine.concurrency, max(open_files() - _FILES, 1), "connections (ulimit -n)"


def _playing_processes(config: RunConfig, gpus: int) -> Iterator[tuple[str, int, int, str]]:
    """As ``_counts``, for processes that train and each play with vLLM on several of ``gpus``."""
    from spag.learning.launch import process_count  # noqa: PLC0415 - imports torch

    each, both = config.engine.gpus, "engine.tensor_parallel x engine.data_parallel"
    if each == 1 or not gpus or config.cluster.actors or backend_here(config) is not Backend.VLLM:
        return
    for number, phase in enumerate(config.phases):
        if not isinstance(settings := phase.settings, OnlineSettings):
            continue
        if config.cluster.address:
            what = f"on Ray, each training process has one GPU and cannot run an engine on {each}"
            raise ConfigError(f"{both}={each}: {what}; set cluster.online_workers")
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or process_count(config.model, settings)
        yield f"phases.{number}.processes", here, gpus // each, f"groups of {each} GPUs ({both}), one for each"


def _check_endpoint() -> None:
    """Check address and key of the endpoint, and for this machine also that something listens there."""
    from spag.engines.openai.client import open_client, shown_address  # noqa: PLC0415 - HTTP libraries

    address = urlsplit(shown_address())
    asyncio.run(open_client(concurrency=1, max_retries=0, timeout_s=_CONNECT_S).close())
    host, port = str(address.hostname), address.port or (443 if address.scheme == "https" else 80)
    if is_loopback(host):
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except OSError as error:
            what = f"{address.geturl()}: nothing answers there ({error.strerror or error})"
            raise ConfigError(f"{what}; start the endpoint, or correct OPENAI_BASE_URL") from error


def _check_model(model: ModelConfig, config: RunConfig) -> None:
    """Read a model's config, and an adapter's; check that there are weights, a chat template if it is used, attention
    that vLLM can split, and memory for the utterances.
    """
    from spag.models.loading import load_config, load_tokenizer  # noqa: PLC0415 - imports torch

    folder = expanded(model.name)
    if model.name == EMBEDDED_NAME:
        embedded_gguf()  # refuses it if its package is not installed
        return
    if folder.suffix == ".gguf" and folder.is_file():
        return  # loading converts it, once
    source, trust = resolve_model(adapter_base(folder) or model.name), model.trust_remote_code
    found = load_config(model.name, source, trust_remote_code=trust)
    if Path(source).is_dir() and not any(Path(source).glob("*.safetensors")):
        raise ModelError(
            f"{model.name}: no safetensors weights found (pickled weights are never loaded); convert it first"
        )
    is_chat = model.prompt_style == "chat" and folder.is_dir()  # of a hub id the tokenizer would be downloaded
    if is_chat and not load_tokenizer(model.name, trust_remote_code=trust).chat_template:
        fix = "name a model with one, or set model.prompt_style=plain for all models"
        raise ModelError(f"{model.name}: its tokenizer has no chat template; {fix}")
    if backend_here(config, model) is Backend.VLLM:
        if refusal := split_refusal(*_heads(found), config.engine.tensor_parallel):
            raise ConfigError(f"{model.name}: {refusal}")
    elif not is_elsewhere(config):
        _check_slots(config, found)


def _heads(model: Any) -> tuple[int, int]:
    """Return the heads of a config's attention, and those of keys and values; 0 if it has none."""
    heads = int(getattr(model, "num_attention_heads", 0) or 0)
    return heads, int(getattr(model, "num_key_value_heads", 0) or heads)


def _check_slots(config: RunConfig, model: Any) -> None:
    """Raise ``ConfigError`` if there is not enough memory for the concurrent utterances, whatever their lengths."""
    heads, kv_heads = _heads(model)
    size = int(getattr(model, "head_dim", 0) or getattr(model, "hidden_size", 0) // max(heads, 1))
    number = 4 if config.model.dtype == "float32" else 2  # bytes
    slot = 2 * number * int(getattr(model, "num_hidden_layers", 0)) * kv_heads * size * SLOT_TOKENS
    count, has = config.engine.concurrency, memory_bytes()
    if (needed := count * slot) > has:
        what = f"{count:,} concurrent utterances take {needed / 2**30:,.0f} GiB before the first is generated"
        raise ConfigError(f"engine.concurrency: {what}, and this machine has {has / 2**30:,.0f}; lower it")
