"""Generation with vLLM: continuous batching over paged key-value blocks with automatic prefix caching and chunked prefill.

Both roles on one model share one engine and one cache, and so do LoRA adapters of one base model: ``open_vllm`` returns an engine for each
served model over one pool of vLLM processes (``pool.py``). Prompts are tokenized and texts decoded here, as in the transformers engine, so
both see the same tokens.
"""

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil
import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from spag.core.errors import EngineError
from spag.engines.base import Completion, FinishReason, Request, text_before_stop
from spag.engines.vllm.pool import VLLMPool
from spag.engines.vllm.setup import VLLMSettings, engine_arguments, worker_environments
from spag.engines.vllm.worker import WorkerOutput
from spag.models.finding import check_generation_config
from spag.models.loading import load_tokenizer
from spag.models.refusals import loading
from spag.models.tokens import PromptStyle, decode_reply, encode_prompt, stop_token_ids


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a pool serves.

    ``name`` is the folder of its tokenizer (the adapter's or the base model's); ``adapter`` counts from 1 into the settings' adapters, 0 is
    the base model.
    """

    name: str
    style: PromptStyle = PromptStyle.PLAIN
    adapter: int = 0


def open_vllm(settings: VLLMSettings, models: Sequence[ServedModel]) -> list["VLLMEngine"]:
    """Start vLLM and return an engine for each of ``models``; the last one closed ends it.

    Raises ``ModelError`` for a model without a readable config, ``ConfigError`` for too few GPUs, ``EngineError`` when vLLM does not start.
    """
    config = _load_config(settings)
    tokenizers = [load_tokenizer(model.name, trust_remote_code=settings.trust_remote_code) for model in models]
    stops = [_stop_ids(settings, tokenizer, model.style) for tokenizer, model in zip(tokenizers, models, strict=True)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    environments = worker_environments(settings, cores=cores, visible_gpus=_visible_gpus())
    arguments = engine_arguments(
        settings,
        model_positions=getattr(config, "max_position_embeddings", None),
        token_bytes=_token_bytes(config, settings.dtype),
        free_bytes=psutil.virtual_memory().available,
    )
    pool = VLLMPool(arguments, environments, settings.adapters)
    return [
        VLLMEngine(pool, tokenizer, stop_ids, model.style, settings.concurrency, model.adapter)
        for tokenizer, stop_ids, model in zip(tokenizers, stops, models, strict=True)
    ]


@dataclass(slots=True)
class VLLMEngine:
    """One model served by a pool. Satisfies ``spag.engines.base.UpdatableEngine``. ``stop_ids`` are the tokens that end a reply."""

    pool: VLLMPool
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    style: PromptStyle = PromptStyle.PLAIN
    concurrency: int = 32
    adapter: int = 0
    _waiting: set[str] = field(default_factory=set)
    _done: deque[Completion] = field(default_factory=deque)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.pool.users += 1

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ``EngineError`` for an empty prompt or one that leaves no room for the utterance."""
        prompt = encode_prompt(self.tokenizer, request.prompt, self.style)[-request.sampling.max_prompt_tokens :]
        if not prompt:
            raise EngineError(f"{request.id}: the prompt is empty, and the tokenizer has no BOS to start from")
        if len(prompt) + request.sampling.max_new_tokens > self.pool.max_length:
            what = f"a prompt of {len(prompt)} tokens and max_new_tokens={request.sampling.max_new_tokens}"
            limit = f"{self.pool.max_length} tokens"
            raise EngineError(
                f"{request.id}: {what} exceed {limit}; raise engine.max_length if the model takes more, or shorten utterances"
            )
        callback = partial(self._finish, request, tuple(prompt))
        self._waiting.add(self.pool.submit(request.id, prompt, _sampling_arguments(request, self.stop_ids), self.adapter, callback))

    def poll(self) -> list[Completion]:
        if self._waiting and not self._done:
            self.pool.wait()  # what has finished may be another engine's; then we return nothing for now
        finished = list(self._done)
        self._done.clear()
        return finished

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """As ``UpdatableEngine`` says, without a restart of vLLM.

        Names are those of the transformers model; for an adapter's engine those of its ``PeftModel``, the adapter's weights alone. The base
        model changes under all its adapters. Nothing may be in flight on the pool, for any of its models.
        """
        self.pool.update_weights(weights, self.adapter)

    def close(self) -> None:
        """Release the pool, which ends with its last engine. What is still in flight is dropped."""
        if not self._closed:
            self._closed = True
            self.pool.release(self._waiting)
            self._waiting.clear()
            self._done.clear()

    def _finish(self, request: Request, prompt: tuple[int, ...], output: WorkerOutput) -> None:
        self._waiting.discard(output.key)
        if not all(map(math.isfinite, output.logprobs)):
            raise EngineError(f"{request.id}: the model's output is not finite; set model.dtype=float32, or look for broken weights")
        ids, reason, text = self._trim(request, prompt, output)
        greedy = request.sampling.temperature == 0
        completion = Completion(
            id=request.id,
            text=request.sampling.trim(text),
            finish_reason=reason,
            prompt_tokens=len(prompt),
            completion_tokens=len(ids),
            prompt_ids=prompt,
            token_ids=ids,
            logprobs=output.logprobs[: len(ids)],
            sampling_logprobs=(0.0,) * len(ids) if greedy else output.sampling_logprobs[: len(ids)],
        )
        self._done.append(completion)

    def _trim(self, request: Request, prompt: tuple[int, ...], output: WorkerOutput) -> tuple[tuple[int, ...], FinishReason, str]:
        """Return the tokens, the finish reason and the text.

        vLLM looks for stop strings only after ``min_new_tokens``, so it may have run past one: then the tokens behind it go.
        """
        ids, decode = output.token_ids, partial(decode_reply, self.tokenizer, prompt)
        cut = text_before_stop(decode(ids), request.stop)
        while cut is not None and (earlier := text_before_stop(decode(ids[:-1]), request.stop)) is not None:
            ids, cut = ids[:-1], earlier
        if cut is not None:
            return ids, FinishReason.STOP, cut
        if ids and ids[-1] in self.stop_ids:
            return ids, FinishReason.EOS, decode(ids[:-1])
        return ids, FinishReason.LENGTH if output.hit_limit else FinishReason.STOP, decode(ids)


def _sampling_arguments(request: Request, stop_ids: frozenset[int]) -> dict[str, Any]:
    """Return the arguments of ``vllm.SamplingParams``."""
    sampling = request.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p or 1e-9,  # vLLM refuses 0, which leaves the likeliest token
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": min(sampling.min_new_tokens, sampling.max_new_tokens),
        "seed": request.seed & (2**63 - 1),
        "stop": list(request.stop),
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,  # stop_token_ids has it
        "logprobs": 1,  # two columns, for the sampled token alone (see extension.py)
        "flat_logprobs": True,
    }


def _load_config(settings: VLLMSettings) -> PreTrainedConfig:
    with loading(settings.model, settings.model, trust_remote_code=settings.trust_remote_code):
        config = AutoConfig.from_pretrained(settings.model, trust_remote_code=settings.trust_remote_code)
        return config.get_text_config(decoder=True)


def _stop_ids(settings: VLLMSettings, tokenizer: PreTrainedTokenizerBase, style: PromptStyle) -> frozenset[int]:
    check_generation_config(settings.model)
    try:
        generation = GenerationConfig.from_pretrained(settings.model)
    except OSError:  # many models have none
        generation = None
    return stop_token_ids(generation, tokenizer, style)


def _token_bytes(config: PreTrainedConfig, dtype: str) -> int:
    """Return what one token's keys and values take, over all layers."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * getattr(torch, dtype).itemsize)


def _visible_gpus() -> list[str]:
    """Return the GPUs that we may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return [str(index) for index in range(torch.cuda.device_count())]
