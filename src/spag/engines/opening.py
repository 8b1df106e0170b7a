"""Opening the engines of players: models by vLLM, transformers or an endpoint, and bots.

Heavy libraries are imported only when an engine of their kind is opened.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from spag.config.schema import EngineConfig, ModelConfig, PlannedEngine
from spag.engines.base import Engine, Player
from spag.engines.bot import BotEngine
from spag.engines.players import Kind, PlayerConfig, bot_of, is_local, kind_of, split_name
from spag.engines.roles import RoleEngine
from spag.engines.turns import take_turns
from spag.engines.vllm.setup import Backend, choose_backend, installed_vllm
from spag.games.base import Game
from spag.models.finding import BAICHUAN, adapter_base, model_type, read_adapter, resolve_model
from spag.models.roles import models_of, read_roles
from spag.storage.home import expanded
from spag.storage.machine import free_objects

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

OpenModels = Callable[[Sequence[ModelConfig], EngineConfig], list[Engine]]
"""The type of ``open_models``; tests pass a function that returns scripted engines."""


def open_models(models: Sequence[ModelConfig], engine: EngineConfig) -> list[Engine]:
    """Open an engine for each of ``models``, local or endpoints; the caller closes them.

    Equal models share an engine, and LoRA adapters their base model: one vLLM, or one copy of the weights.
    """
    parts = dict.fromkeys(part for model in models for part in _parts(model))
    groups: dict[tuple[Backend, ModelConfig], list[ModelConfig]] = {}  # by backend and base model
    for part in parts:
        if is_local(part.name):
            groups.setdefault((backend_of(part, engine), _base_model(part)), []).append(part)
    vllms = sum(backend is Backend.VLLM for backend, _ in groups)
    opened: dict[ModelConfig, Engine] = {}
    with ExitStack() as stack:  # closes what was opened if one fails
        for part in parts:
            if kind_of(part.name) is Kind.ENDPOINT:
                from spag.engines.openai.engine import OpenAIEngine  # noqa: PLC0415 - imports HTTP libraries

                opened[part] = OpenAIEngine(split_name(part.name)[1], concurrency=engine.concurrency)
                stack.callback(opened[part].close)
        for (backend, _), group in sorted(groups.items(), key=lambda item: item[0][0] is not Backend.VLLM):
            # vLLM first: it reserves a share of the memory
            engines = _open_vllm(group, engine, vllms) if backend is Backend.VLLM else _open_transformers(group, engine)
            for part, one in zip(group, engines, strict=True):
                opened[part] = one
                stack.callback(one.close)
        by_model = {model: _whole(model, opened) for model in dict.fromkeys(models)}
        stack.pop_all()
    return [by_model[model] for model in models]


class KeptModels:
    """``open_models`` for successive plays: engines stay open until a play needs a model that is not open.

    ``players``: all that will play. Those of one base model are opened together, because an extra adapter costs little,
    while vLLM takes a minute to start.
    """

    def __init__(self, players: Iterable[ModelConfig], opener: OpenModels) -> None:
        self._bases = {model: set(map(_base_model, _parts(model))) for model in players if is_local(model.name)}
        self._opener = opener
        self._open: dict[ModelConfig, Engine] = {}

    def __call__(self, models: Sequence[ModelConfig], engine: EngineConfig) -> list[Engine]:
        """Return the engines of ``models``, which ``close`` closes."""
        if not self._open.keys() >= set(models):
            self.close()
            bases = set[ModelConfig]().union(*(self._bases.get(model, ()) for model in models))
            wanted = [*dict.fromkeys([*models, *(one for one, its in self._bases.items() if its <= bases)])]
            self._open = dict(zip(wanted, self._opener(wanted, engine), strict=True))
        for model, one in self._open.items():
            if model not in models:
                one.forget()  # else the cache of each model that has played stays
        return [self._open[model] for model in models]

    def close(self) -> None:
        """Close all engines and return their memory."""
        if not self._open:
            return
        with ExitStack() as stack:  # closes all, even if one fails
            while self._open:
                stack.callback(self._open.popitem()[1].close)
        free_objects()


def open_model(model: ModelConfig, engine: EngineConfig) -> Engine:
    """Open the engine for one model, local or an endpoint; the caller closes it."""
    return open_models([model], engine)[0]


def open_copies(model: ModelConfig, names: Sequence[str], engine: EngineConfig) -> Mapping[str, Engine]:
    """Open engines for copies of one model, by name; each may be given its own weights. The caller closes them.

    Adapters share one vLLM; whole models take turns in one engine if the memory plan says so. Otherwise only the first
    of ``names`` is opened: the others cost as much each, so they are opened when needed.
    """
    if isinstance(engine, PlannedEngine) and engine.in_turn:
        return take_turns(open_model(model, engine), names, cache(partial(_first_weights, model)))
    parts = _parts(model)
    adapters = all(adapter_base(expanded(part.name)) for part in parts)
    if not adapters or backend_of(parts[0], engine) is not Backend.VLLM:
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


def open_matches(
    matches: Sequence[Mapping[str, PlayerConfig]],
    game: Game,
    engine: EngineConfig,
    open_models: OpenModels = open_models,
) -> list[dict[str, Player]]:
    """Open the engines of each match's players, by role, each model's once; the caller closes them."""
    configs = dict.fromkeys(player.model for players in matches for player in players.values())
    engines = {one: open_player(one, game, engine) for one in configs if kind_of(one.name) is Kind.BOT}
    models = [one for one in configs if one not in engines]
    engines |= zip(models, open_models(models, engine), strict=True)
    return [
        {role: Player(engines[one.model], one.name, one.sampling) for role, one in players.items()}
        for players in matches
    ]


def backend_of(model: ModelConfig, engine: EngineConfig) -> Backend:
    """Return the backend of a local model, and log the reason. Raises ``ConfigError``."""
    backend, reason = backend_and_reason(model, engine)
    if reason:
        logger.info("models play with %s: %s", backend, reason)  # no name: a run opens a dozen, and logs it once
    return backend


def backend_and_reason(model: ModelConfig, engine: EngineConfig) -> tuple[Backend, str]:
    """Return the backend of a local model, and the reason if it was not given. Raises ``ConfigError``."""
    from spag.models.loading import checked_device  # noqa: PLC0415 - imports torch

    device, misfit = checked_device(model.device), _misfit(model.name)
    return choose_backend(engine.backend, vllm=installed_vllm(), device=device, misfit=misfit)


def _misfit(name: str) -> str:
    """Return why vLLM cannot play a local model, if so."""
    from spag.models.adapters import weights_beside_lora  # noqa: PLC0415 - imports torch

    if model_type(name) == BAICHUAN:
        return f"{name} is a Baichuan model, which vLLM has not supported since 0.24"
    adapter, what = read_adapter(expanded(name)), ""
    if adapter and adapter.changes_base:
        what = "changes to its base model (init_lora_weights or layer_replication)"
    elif adapter and (adapter.more or adapter.whole):
        what = adapter.more or f"whole modules ({', '.join(adapter.whole)})"
    elif adapter:  # vLLM ignores embeddings, which peft saves unchanged with an adapter for them
        others = [key for key in weights_beside_lora(adapter) if not key.endswith(".base_layer.weight")]
        what = f"weights besides LoRA's ({others[0]})" if others else ""
    return f"{name} is an adapter with {what}, which vLLM does not support" if what else ""


def _parts(model: ModelConfig) -> list[ModelConfig]:
    """Return the adapters of a model that has one for each role, else the model itself."""
    return [model.model_copy(update={"name": name}) for name in models_of(model.name)]


def _whole(model: ModelConfig, opened: Mapping[ModelConfig, Engine]) -> Engine:
    """Return the engine of ``model``; ``opened`` has the engines of its parts."""
    roles = read_roles(model.name)
    if roles is None:
        return opened[model]
    return RoleEngine(model.name, dict(zip(roles, (opened[part] for part in _parts(model)), strict=True)))


def _base_model(part: ModelConfig) -> ModelConfig:
    """Return the model whose weights ``part`` needs, an adapter's base or itself, under one name for all spellings."""
    name = resolve_model(adapter_base(expanded(part.name)) or part.name)
    return part.model_copy(update={"name": name, "prompt_style": "plain"})


def _open_transformers(models: Sequence[ModelConfig], engine: EngineConfig) -> Sequence[Engine]:
    """Open engines for a base model and its adapters; several adapters share a copy of the base, if they can."""
    from spag.engines.transformers.engine import TransformersEngine  # noqa: PLC0415 - imports torch
    from spag.models.adapters import weights_beside_lora  # noqa: PLC0415
    from spag.models.loading import load_adapters, load_model, load_tokenizer  # noqa: PLC0415
    from spag.models.tokens import PromptStyle  # noqa: PLC0415 - slow to import

    options: dict[str, Any] = models[0].model_dump(include={"dtype", "device", "trust_remote_code"})
    found = ((model, read_adapter(expanded(model.name))) for model in models)
    adapters = [model for model, one in found if one and not (one.changes_base or weights_beside_lora(one))]
    names = {model: f"adapter-{index}" for index, model in enumerate(adapters)} if len(adapters) > 1 else {}
    shared = load_adapters({name: model.name for model, name in names.items()}, **options) if names else None
    engines = []
    for model in models:
        weights = shared if shared is not None and model in names else load_model(model.name, **options)
        tokenizer = load_tokenizer(model.name, trust_remote_code=model.trust_remote_code)
        style, slots = PromptStyle(model.prompt_style), engine.concurrency
        engines.append(TransformersEngine(weights, tokenizer, style=style, concurrency=slots, adapter=names.get(model)))
    return engines


def _open_vllm(models: Sequence[ModelConfig], engine: EngineConfig, split: int) -> Sequence[Engine]:
    from spag.engines.vllm.opening import open_vllm  # noqa: PLC0415

    return open_vllm(models, engine, split)
