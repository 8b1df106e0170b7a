"""From a model's name to a running engine. Heavy libraries are imported only when an engine of their kind is opened."""

from spag.config import EngineConfig, ModelConfig, SamplingConfig
from spag.engines.base import Engine, PromptStyle, Sampling

OPENAI_PREFIX = "openai:"


def open_engine(model: ModelConfig, engine: EngineConfig) -> Engine:
    """Open the engine for ``model``: names of the form ``openai:MODEL`` go to an OpenAI-compatible endpoint, all others to transformers."""
    if model.name.startswith(OPENAI_PREFIX):
        from spag.engines.openai import OpenAIEngine  # noqa: PLC0415

        return OpenAIEngine(model.name.removeprefix(OPENAI_PREFIX), concurrency=engine.concurrency)
    from spag.engines.transformers import TransformersEngine  # noqa: PLC0415
    from spag.models import load_model, load_tokenizer  # noqa: PLC0415

    tokenizer = load_tokenizer(model.name, trust_remote_code=model.trust_remote_code)
    weights = load_model(model.name, dtype=model.dtype, device=model.device, trust_remote_code=model.trust_remote_code)
    return TransformersEngine(weights, tokenizer, style=PromptStyle(model.prompt_style), concurrency=engine.concurrency)


def sampling_of(config: SamplingConfig) -> Sampling:
    """Turn the settings into the engine's plain arguments."""
    return Sampling(**config.model_dump())
