"""Engines by model name. Heavy libraries are imported only when an engine of their kind is opened."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from spag.config.schema import EngineConfig, ModelConfig, SamplingConfig
from spag.core.errors import ConfigError
from spag.engines.base import Engine, Sampling
from spag.engines.bot import BOT_PREFIX
from spag.engines.roles import RoleEngine
from spag.engines.vllm.setup import Backend, VLLMSettings, choose_backend, installed_vllm
from spag.models.finding import BAICHUAN, adapter_base, model_type, read_adapter, resolve_model
from spag.models.roles import models_of, read_roles
from spag.models.tokens import PromptStyle

logger = logging.getLogger(__name__)

OPENAI_PREFIX = "openai:"


def open_engine(model: ModelConfig, engine: EngineConfig) -> Engine:
    """Open the engine for one model; the caller closes it."""
    with ExitStack() as stack:
        [opened] = open_engines([model], engine, stack)
        stack.pop_all()
    return opened


def open_engines(
    models: Sequence[ModelConfig], engine: EngineConfig, stack: ExitStack, note: Callable[[str], None] = logger.info
) -> list[Engine]:
    """Open an engine for each of ``models``; ``stack`` closes them. Equal models share one.

    Names of the form ``openai:MODEL`` go to an OpenAI-compatible endpoint, all others to vLLM or transformers; ``note`` is told which and
    why. LoRA adapters of one base model share it: one vLLM, or one copy of the weights.
    """
    wanted = {_key(model): model for model in models}
    parts = [(key, model.model_copy(update={"name": name})) for key, model in wanted.items() for name in models_of(model.name)]
    opened: dict[str, list[Engine]] = {key: [] for key in wanted}
    for (key, _), view in zip(parts, _open_each([part for _, part in parts], engine, stack, note), strict=True):
        opened[key].append(view)
    engines = {key: _as_one(model.name, opened[key]) for key, model in wanted.items()}
    return [engines[_key(model)] for model in models]


def _as_one(name: str, engines: Sequence[Engine]) -> Engine:
    """Return the engine of the model ``name``, made of those of its adapters where it has one for each role."""
    roles = read_roles(name)
    return engines[0] if roles is None else RoleEngine(name, dict(zip(roles, engines, strict=True)))


def _open_each(models: Sequence[ModelConfig], engine: EngineConfig, stack: ExitStack, note: Callable[[str], None]) -> list[Engine]:
    """Open an engine for each of ``models``, those of one base model together."""
    opened: dict[int, Engine] = {}
    groups: dict[Backend, dict[str, list[int]]] = {Backend.VLLM: {}, Backend.TRANSFORMERS: {}}
    for at, model in enumerate(models):
        if model.name.startswith(OPENAI_PREFIX):
            opened[at] = _open_endpoint(model, engine)
            stack.callback(opened[at].close)
        else:
            base = model.model_copy(update={"name": _base(model.name), "prompt_style": "plain"})
            groups[backend_of(model, engine, note)].setdefault(_key(base), []).append(at)
    for backend, by_base in groups.items():
        for group in by_base.values():
            together = [models[at] for at in group]
            views = _open_vllm(together, engine, len(by_base)) if backend is Backend.VLLM else _open_transformers(together, engine)
            for at, view in zip(group, views, strict=True):
                opened[at] = view
                stack.callback(view.close)
    return [opened[at] for at in range(len(models))]


def sampling_of(config: SamplingConfig) -> Sampling:
    """Turn the settings into the engine's plain arguments."""
    return Sampling(**config.model_dump())


def gpus_of(models: Sequence[ModelConfig], engine: EngineConfig) -> int:
    """Return how many GPUs the engines of ``models`` take where there are some: none for endpoints, bots and models kept on the CPU."""
    local = any(not model.name.startswith((OPENAI_PREFIX, BOT_PREFIX)) and model.device != "cpu" for model in models)
    return engine.tensor_parallel * engine.data_parallel if local else 0


def _key(model: ModelConfig) -> str:
    return model.model_dump_json()


def backend_of(model: ModelConfig, engine: EngineConfig, note: Callable[[str], None]) -> Backend:
    """Return what generates for a model whose weights are at hand; ``note`` is told why. Raises ``ConfigError`` for what cannot work."""
    if engine.backend == "transformers":
        return Backend.TRANSFORMERS
    from spag.models.loading import checked_device  # noqa: PLC0415 - imports torch

    if model_type(model.name) == BAICHUAN:
        reason = "it is a Baichuan, which vLLM plays no more since 0.24"
        if engine.backend == "vllm":
            raise ConfigError(f"engine.backend=vllm, but {model.name} cannot: {reason}; set engine.backend=transformers")
        note(f"{model.name} plays with {Backend.TRANSFORMERS}: {reason}")
        return Backend.TRANSFORMERS
    backend, reason = choose_backend(engine.backend, vllm=installed_vllm(), device=checked_device(model.device))
    note(f"models play with {backend}: {reason}")  # no name: a run opens a dozen models, and says this once
    return backend


def _open_endpoint(model: ModelConfig, engine: EngineConfig) -> Engine:
    from spag.engines.openai.engine import OpenAIEngine  # noqa: PLC0415

    return OpenAIEngine(model.name.removeprefix(OPENAI_PREFIX), concurrency=engine.concurrency)


def _open_transformers(models: Sequence[ModelConfig], engine: EngineConfig) -> Sequence[Engine]:
    """Return an engine for each of ``models``, a base model or adapters of it; several adapters are loaded over one copy of it."""
    from spag.engines.transformers.engine import TransformersEngine  # noqa: PLC0415
    from spag.models.loading import load_adapters, load_model, load_tokenizer  # noqa: PLC0415

    first = models[0]
    options: dict[str, Any] = {"dtype": first.dtype, "device": first.device, "trust_remote_code": first.trust_remote_code}
    adapters = {at: f"adapter-{at}" for at, model in enumerate(models) if adapter_base(Path(model.name).expanduser())}
    shared = load_adapters({name: models[at].name for at, name in adapters.items()}, **options) if len(adapters) > 1 else None
    engines = []
    for at, model in enumerate(models):
        adapter = adapters.get(at) if shared is not None else None
        weights = load_model(model.name, **options) if shared is None or adapter is None else shared
        tokenizer, style = load_tokenizer(model.name, trust_remote_code=model.trust_remote_code), PromptStyle(model.prompt_style)
        engines.append(TransformersEngine(weights, tokenizer, style=style, concurrency=engine.concurrency, adapter=adapter))
    return engines


def _open_vllm(models: Sequence[ModelConfig], engine: EngineConfig, split: int) -> Sequence[Engine]:
    """Open one vLLM for models that are one base model or adapters of it, and return an engine for each."""
    from spag.engines.vllm.engine import ServedModel, open_vllm  # noqa: PLC0415
    from spag.models.loading import checked_device  # noqa: PLC0415 - imports torch

    adapters = [read_adapter(Path(model.name).expanduser()) for model in models]
    folders = list(dict.fromkeys(str(adapter.folder) for adapter in adapters if adapter))
    first = models[0]
    settings = VLLMSettings(
        model=resolve_model(_base(first.name)),
        dtype=first.dtype,
        device=checked_device(first.device),
        adapters=tuple(folders),
        max_lora_rank=max((adapter.rank for adapter in adapters if adapter), default=0),
        concurrency=engine.concurrency,
        max_length=engine.max_length,
        tensor_parallel=engine.tensor_parallel,
        data_parallel=engine.data_parallel,
        memory=engine.memory,
        split=split,
        trust_remote_code=first.trust_remote_code,
    )
    served = [
        ServedModel(model.name, PromptStyle(model.prompt_style), folders.index(str(adapter.folder)) + 1 if adapter else 0)
        for model, adapter in zip(models, adapters, strict=True)
    ]
    return open_vllm(settings, served)


def _base(name: str) -> str:
    """Return the name of an adapter's base model, and that of any other model itself."""
    return adapter_base(Path(name).expanduser()) or name
