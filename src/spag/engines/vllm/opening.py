"""Starts vLLM for a base model and its LoRA adapters."""

import itertools
import os
from collections.abc import Sequence

import psutil
import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from spag.config.schema import EngineConfig, ModelConfig, PlannedEngine
from spag.core.errors import ModelError
from spag.engines.vllm.engine import VLLMEngine
from spag.engines.vllm.pool import VLLMPool
from spag.engines.vllm.setup import (
    VLLMSettings,
    engine_arguments,
    placement,
    visible_gpus,
    worker_environments,
)
from spag.models.finding import CONFIG, Adapter, check_generation_config, read_adapter, resolve_model
from spag.models.loading import checked_device, load_config, load_tokenizer
from spag.models.tokens import PromptStyle, stop_token_ids, token_count
from spag.storage.home import expanded


def open_vllm(models: Sequence[ModelConfig], engine: EngineConfig, split: int) -> list[VLLMEngine]:
    """Start one vLLM for ``models``, a base model and adapters of it, and return an engine for each, which end
    together. An adapter listed twice can be given two sets of weights. ``split`` is how many vLLMs share the memory.

    Raises ``ModelError`` for a model without a readable config, ``ConfigError`` for too few GPUs, ``EngineError`` if
    vLLM does not start.
    """
    adapters = [read_adapter(expanded(model.name)) for model in models]
    settings = _settings(models[0], tuple(filter(None, adapters)), engine, split)
    config = load_config(settings.model, settings.model, trust_remote_code=settings.trust_remote_code)
    tokenizers = [load_tokenizer(model.name, trust_remote_code=settings.trust_remote_code) for model in models]
    styles = [PromptStyle(model.prompt_style) for model in models]
    stops = [_stop_ids(settings, tokenizer, style) for tokenizer, style in zip(tokenizers, styles, strict=True)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    environments = worker_environments(settings, cores=cores, visible_gpus=visible_gpus())
    arguments = engine_arguments(
        settings,
        model_positions=getattr(config, "max_position_embeddings", None),
        token_bytes=_token_bytes(config, settings.dtype) if settings.on_cpu else 0,
        free_bytes=psutil.virtual_memory().available,
    )
    sleep = 0 if settings.on_cpu else settings.engine.sleep
    highest, folders = max(map(token_count, tokenizers)), tuple(str(adapter.folder) for adapter in settings.adapters)
    gpus = [*itertools.chain(*settings.replicas)]
    pool = VLLMPool(arguments, environments, highest, folders, sleep, gpus)
    numbers = itertools.count(1)  # 0 is the base model
    return [
        VLLMEngine(pool, tokenizer, stop_ids, style, engine.concurrency, next(numbers) if adapter else 0)
        for tokenizer, stop_ids, style, adapter in zip(tokenizers, stops, styles, adapters, strict=True)
    ]


def _settings(first: ModelConfig, adapters: tuple[Adapter, ...], engine: EngineConfig, split: int) -> VLLMSettings:
    return VLLMSettings(
        model=resolve_model(adapters[0].base if adapters else first.name),
        dtype=first.dtype,
        engine=PlannedEngine(**engine.model_dump()),
        replicas=placement(engine, checked_device(first.device), visible_gpus()),
        adapters=adapters,
        split=split,
        trust_remote_code=first.trust_remote_code,
    )


def _stop_ids(settings: VLLMSettings, tokenizer: PreTrainedTokenizerBase, style: PromptStyle) -> frozenset[int]:
    check_generation_config(settings.model)
    try:
        generation = GenerationConfig.from_pretrained(settings.model)
    except OSError:  # many models have none; transformers then reads the model's config
        generation = GenerationConfig.from_pretrained(settings.model, config_file_name=CONFIG)
    return stop_token_ids(generation, tokenizer, style)


def _token_bytes(config: PreTrainedConfig, dtype: str) -> int:
    """Return the bytes of one token's keys and values, over all layers."""
    if not (heads := getattr(config, "num_attention_heads", 0)):  # state-space models
        raise ModelError(f"vLLM on a CPU cannot cache this model ({config.model_type}); play it on a GPU")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * getattr(torch, dtype).itemsize)
