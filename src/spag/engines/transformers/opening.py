"""Opens transformers engines for a base model and its LoRA adapters."""

from collections.abc import Sequence
from typing import Any

from spag.config.schema import EngineConfig, ModelConfig
from spag.engines.transformers.engine import TransformersEngine
from spag.models.finding import adapter_base
from spag.models.loading import load_adapters, load_model, load_tokenizer
from spag.models.tokens import PromptStyle
from spag.storage.home import expanded


def open_transformers(models: Sequence[ModelConfig], engine: EngineConfig) -> list[TransformersEngine]:
    """Return an engine for each of ``models``, a base model and adapters; several adapters share a copy of it."""
    first = models[0]
    options: dict[str, Any] = {"dtype": first.dtype, "device": first.device}
    options["trust_remote_code"] = first.trust_remote_code
    adapters = {f"adapter-{at}": one for at, one in enumerate(models) if adapter_base(expanded(one.name))}
    names = {one: name for name, one in adapters.items()} if len(adapters) > 1 else {}
    shared = load_adapters({name: adapters[name].name for name in names.values()}, **options) if names else None
    engines = []
    for model in models:
        name = names.get(model)
        weights = shared if shared is not None and name else load_model(model.name, **options)
        tokenizer = load_tokenizer(model.name, trust_remote_code=model.trust_remote_code)
        style = PromptStyle(model.prompt_style)
        engines.append(
            TransformersEngine(weights, tokenizer, style=style, concurrency=engine.concurrency, adapter=name)
        )
    return engines
