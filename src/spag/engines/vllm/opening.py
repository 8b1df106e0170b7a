"""Starts vLLM for a base model and its LoRA adapters."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from spag.config.schema import EngineConfig, ModelConfig, PlannedEngine
from spag.engines.vllm.engine import VLLMEngine
from spag.engines.vllm.pool import VLLMPool
from spag.engines.vllm.setup import (
    VLLMSettings,
    copy_count,
    engine_arguments,
    engine_gpus,
    own_device,
    visible_gpus,
    worker_environments,
)
from spag.models.finding import check_generation_config, read_adapter, resolve_model
from spag.models.loading import checked_device, load_tokenizer
from spag.models.refusals import loading
from spag.models.tokens import PromptStyle, stop_token_ids, token_count
from spag.storage.home import expanded


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a pool serves.

    ``name`` is the folder of its tokenizer (the adapter's or the base model's); ``adapter`` counts from 1 into the
    settings' adapters, 0 is the base model.
    """

    name: str
    style: PromptStyle = PromptStyle.PLAIN
    adapter: int = 0


def open_vllm(models: Sequence[ModelConfig], engine: EngineConfig, split: int) -> list[VLLMEngine]:
    """Start one vLLM for ``models``, a base model or adapters of it, and return an engine for each.

    An adapter listed twice can be given two sets of weights. ``split`` is how many vLLMs share the memory. Raises the
    errors of ``start_vllm``.
    """
    adapters = [read_adapter(expanded(model.name)) for model in models]
    folders = [str(adapter.folder) for adapter in adapters if adapter]
    first, gpus = models[0], visible_gpus()
    device = own_device(checked_device(first.device), gpus)
    settings = VLLMSettings(
        model=resolve_model(adapters[0].base if adapters[0] else first.name),
        dtype=first.dtype,
        device=device,
        adapters=tuple(folders),
        max_lora_rank=max((adapter.rank for adapter in adapters if adapter), default=0),
        concurrency=engine.concurrency,
        max_length=engine.max_length,
        tensor_parallel=engine.tensor_parallel,
        data_parallel=copy_count(engine, device, gpus),
        memory=engine.memory,
        split=split,
        trust_remote_code=first.trust_remote_code,
        sleep=engine.sleep if isinstance(engine, PlannedEngine) else 0,
        nccl=isinstance(engine, PlannedEngine) and engine.nccl,
    )
    count = itertools.count(1)
    served = [
        ServedModel(model.name, PromptStyle(model.prompt_style), next(count) if adapter else 0)
        for model, adapter in zip(models, adapters, strict=True)
    ]
    return start_vllm(settings, served)


def start_vllm(settings: VLLMSettings, models: Sequence[ServedModel]) -> list[VLLMEngine]:
    """Start vLLM and return an engine for each of ``models``; closing the last one ends it.

    Raises ``ModelError`` for a model without a readable config, ``ConfigError`` for too few GPUs, ``EngineError`` if
    vLLM does not start.
    """
    config = load_config(settings.model, trust_remote_code=settings.trust_remote_code)
    tokenizers = [load_tokenizer(model.name, trust_remote_code=settings.trust_remote_code) for model in models]
    stops = [_stop_ids(settings, tokenizer, model.style) for tokenizer, model in zip(tokenizers, models, strict=True)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    environments = worker_environments(settings, cores=cores, visible_gpus=visible_gpus())
    arguments = engine_arguments(
        settings,
        model_positions=getattr(config, "max_position_embeddings", None),
        token_bytes=_token_bytes(config, settings.dtype),
        free_bytes=psutil.virtual_memory().available,
    )
    count = max(map(token_count, tokenizers))
    sleep = 0 if settings.on_cpu else settings.sleep
    pool = VLLMPool(arguments, environments, count, settings.adapters, sleep, engine_gpus(settings))
    return [
        VLLMEngine(pool, tokenizer, stop_ids, model.style, settings.concurrency, model.adapter)
        for tokenizer, stop_ids, model in zip(tokenizers, stops, models, strict=True)
    ]


def load_config(model: str, *, trust_remote_code: bool) -> PreTrainedConfig:
    """Return the config of the language model in ``model``, a folder or a hub id. Raises ``ModelError``."""
    with loading(model, model, trust_remote_code=trust_remote_code):
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        return config.get_text_config(decoder=True)


def _stop_ids(settings: VLLMSettings, tokenizer: PreTrainedTokenizerBase, style: PromptStyle) -> frozenset[int]:
    check_generation_config(settings.model)
    try:
        generation = GenerationConfig.from_pretrained(settings.model)
    except OSError:  # many models have none
        generation = None
    return stop_token_ids(generation, tokenizer, style)


def _token_bytes(config: PreTrainedConfig, dtype: str) -> int:
    """Return the bytes of one token's keys and values, over all layers."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * getattr(torch, dtype).itemsize)
