"""Generation with vLLM: continuous batching over paged key-value blocks with automatic prefix caching and chunked
prefill.

Both roles on one model share one engine and one cache, and so do LoRA adapters of one base model: each has an engine
over one pool of vLLM processes (``opening.py``, ``pool.py``). Prompts are tokenized and texts decoded here, as in the
transformers engine, so both engines see the same tokens.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.core.thinking import CLOSE, END_OF_ANSWER, OPEN
from spag.engines.base import Completion, Engine, FinishReason, Request, RequestError, token_limit
from spag.engines.prompts import TokenizedRequest, tokenize
from spag.engines.vllm.pool import VLLMPool
from spag.engines.vllm.setup import MAX_TEMPERATURE
from spag.engines.vllm.worker import WorkerOutput
from spag.models.tokens import PromptStyle, token_count


@dataclass(slots=True)
class VLLMEngine(Engine):
    """One model of a pool, whose engines all end with the first that is closed. ``stop_ids``: tokens that end a reply.
    While few texts are in flight, ``poll`` returns every tenth of a second, so it needs no ``wake``.
    """

    pool: VLLMPool
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    style: PromptStyle = PromptStyle.PLAIN
    concurrency: int = 32
    adapter: int = 0
    token_count: int = field(init=False)
    _waiting: int = 0
    _growing: dict[str, tuple[TokenizedRequest, WorkerOutput]] = field(default_factory=dict)
    _done: deque[Completion] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.token_count = token_count(self.tokenizer)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ``RequestError`` for an empty prompt."""
        fix = "raise engine.max_length if the model takes more, or shorten utterances"
        asked = tokenize(self.tokenizer, request, self.style, self.pool.max_length, fix)
        if isinstance(asked, Completion):
            self._done.append(asked)
            return
        arguments = _sampling_arguments(request, self.stop_ids, self.style)
        callback = partial(self._take, asked)
        self.pool.submit(request.id, list(asked.prompt), arguments, self.adapter, callback)
        self._waiting += 1

    def poll(self) -> list[Completion]:
        if self._waiting and not self._done:
            self.pool.wait()  # what finished may be another engine's; then we return nothing for now
        finished = list(self._done)
        self._done.clear()
        return finished

    def partial(self, request_id: str) -> str | None:
        if (found := self._growing.get(request_id)) is None:
            return None
        return found[0].spoken(self._trim(*found)[2])

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """See ``Engine``. Takes all weights, named as in the transformers model, or some of an adapter's, named as in
        its ``PeftModel``. The base model changes for all its adapters. Nothing may be in flight on the pool.
        """
        self.pool.update_weights(weights, self.adapter)

    def rest(self) -> bool:
        """See ``Engine``: all engines of the pool rest, and wake at the next request or weights."""
        return self.pool.rest(asleep=True)

    def close(self) -> None:
        self.pool.close()
        self._waiting = 0
        self._growing.clear()
        self._done.clear()

    def _take(self, asked: TokenizedRequest, output: WorkerOutput) -> None:
        if not output.finished:
            self._growing[asked.request.id] = asked, output
            return
        self._growing.pop(asked.request.id, None)
        self._waiting -= 1
        if not all(map(math.isfinite, output.logprobs)):
            fix = "set model.dtype=float32, or look for broken weights"
            raise EngineError(f"{asked.request.id}: the model's output is not finite; {fix}")
        ids, reason, text = self._trim(asked, output)
        greedy = asked.request.sampling.temperature == 0
        sampling_logprobs = (0.0,) * len(ids) if greedy else output.sampling_logprobs[: len(ids)]
        unknown = max(output.token_ids, default=0) >= self.token_count
        logprobs = output.logprobs[: len(ids)]
        self._done.append(asked.completion(text, reason, ids, logprobs, sampling_logprobs, unknown_token=unknown))

    def _trim(self, asked: TokenizedRequest, output: WorkerOutput) -> tuple[tuple[int, ...], FinishReason, str]:
        """Return the tokens, the finish reason and the text. vLLM looks for stop strings only after ``min_new_tokens``,
        so it may have run past one: tokens after it are dropped.
        """
        ids = tuple(takewhile(lambda token: token < self.token_count, output.token_ids))
        if asked.request.sampling.thinks:
            ids = within_limits(ids, asked.decode, asked.request.sampling)
        hit_limit = output.hit_limit or len(ids) < len(output.token_ids)

        def before_stop(count: int) -> str | None:
            return asked.before_stop(asked.decode(ids[:count]))

        if (cut := before_stop(len(ids))) is not None:
            count = bisect_left(range(len(ids)), True, key=lambda count: before_stop(count) is not None)
            return ids[:count], FinishReason.STOP, before_stop(count) or cut
        if ids and ids[-1] in self.stop_ids:
            return ids, FinishReason.EOS, asked.decode(ids[:-1])
        return ids, FinishReason.LENGTH if hit_limit else FinishReason.STOP, asked.decode(ids)


def within_limits(
    ids: tuple[int, ...], decode: Callable[[tuple[int, ...]], str], sampling: SamplingConfig
) -> tuple[int, ...]:
    """Return the tokens up to the first limit, of thought or utterance, that they reach: vLLM knows only their sum."""
    thought, utterance = sampling.thought_tokens, sampling.max_new_tokens
    closed_at = None
    if CLOSE in decode(ids):
        closed_at = bisect_left(range(len(ids) + 1), True, key=lambda count: CLOSE in decode(ids[:count]))
    count, end = min(thought, utterance), len(ids) if closed_at is None else closed_at
    while count < end:
        text = decode(ids[:count])
        if count >= token_limit(sampling, text, None):
            return ids[:count]
        count = thought if OPEN in text else count + 1  # a thought that has begun ends at its own limit only
    return ids if closed_at is None else ids[: closed_at + utterance]


def _sampling_arguments(request: Request, stop_ids: frozenset[int], style: PromptStyle) -> dict[str, Any]:
    """Return the arguments of ``vllm.SamplingParams``."""
    sampling = request.sampling
    stop = [*request.stop, END_OF_ANSWER] if style is PromptStyle.TAGGED else list(request.stop)
    if sampling.temperature > MAX_TEMPERATURE:
        raise RequestError(f"temperature {sampling.temperature:g}: vLLM takes at most {MAX_TEMPERATURE:g}; lower it")
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p or 1e-9,  # vLLM refuses 0, which keeps only the likeliest token
        "top_k": sampling.top_k,
        "max_tokens": sampling.most_tokens,
        # with thinking, vLLM counts the thought's tokens too
        "min_tokens": min(sampling.min_new_tokens, sampling.max_new_tokens),
        "seed": request.seed & (2**63 - 1),
        "stop": [] if sampling.thinks else stop,  # a thought may contain one: cut here
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,  # stop_token_ids has it
        "logprobs": 1,  # two columns, for the sampled token only (see extension.py)
        "flat_logprobs": True,
    }
