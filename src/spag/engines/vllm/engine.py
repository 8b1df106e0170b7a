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
from spag.core.thinking import CLOSE, END_OF_ANSWER, OPEN
from spag.engines.base import (
    Completion,
    FinishReason,
    GroupPlace,
    Request,
    RequestError,
    Sampling,
    text_before_stop,
    token_limit,
)
from spag.engines.prompts import check_room, encode_request
from spag.engines.vllm.messages import WorkerOutput
from spag.engines.vllm.pool import VLLMPool
from spag.engines.vllm.setup import MAX_TEMPERATURE
from spag.models.tokens import PromptStyle, decode_reply, opening_of, spoken, token_count


@dataclass(slots=True)
class VLLMEngine:
    """One model of a pool. Satisfies ``UpdatableEngine``, ``GroupedEngine`` and ``RestingEngine``. ``stop_ids``: tokens
    that end a reply.
    """

    pool: VLLMPool
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    style: PromptStyle = PromptStyle.PLAIN
    concurrency: int = 32
    adapter: int = 0
    token_count: int = field(init=False)
    _waiting: set[str] = field(default_factory=set)
    _done: deque[Completion] = field(default_factory=deque)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.pool.users += 1
        self.token_count = token_count(self.tokenizer)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ``RequestError`` for an empty prompt or one that leaves no room for the utterance."""
        prompt, truncated = encode_request(self.tokenizer, request, self.style)
        fix = "raise engine.max_length if the model takes more, or shorten utterances"
        check_room(request, len(prompt), self.pool.max_length, fix)
        arguments = _sampling_arguments(request, self.stop_ids, self.style)
        callback = partial(self._finish, request, prompt, truncated)
        self._waiting.add(self.pool.submit(request.id, list(prompt), arguments, self.adapter, callback))

    def poll(self) -> list[Completion]:
        if self._waiting and not self._done:
            self.pool.wait()  # what finished may be another engine's; then we return nothing for now
        finished = list(self._done)
        self._done.clear()
        return finished

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """See ``UpdatableEngine``; vLLM is not restarted.

        Takes all weights, named as in the transformers model; for an adapter, all or some of its weights, named as in
        its ``PeftModel``. The base model changes for all its adapters. Nothing may be in flight on the pool, for any of
        its models.
        """
        self.pool.update_weights(weights, self.adapter)

    def group_size(self) -> tuple[str, int]:
        """See ``GroupedEngine``: for the base model, if vLLM was started for it."""
        return self.pool.group_size()

    def join_group(self, place: GroupPlace) -> str | None:
        return self.pool.join_group(place)

    def receive_weights(self, update: Mapping[str, Any], sums: Mapping[str, float]) -> None:
        self.pool.receive_weights(update, sums)

    def rest(self) -> bool:
        """See ``RestingEngine``: all engines of the pool rest, and wake at the next request or weights."""
        return self.pool.rest(asleep=True)

    def close(self) -> None:
        """Release the pool, which ends with its last engine. Requests in flight are dropped."""
        if not self._closed:
            self._closed = True
            self.pool.release(self._waiting)
            self._waiting.clear()
            self._done.clear()

    def _finish(self, request: Request, prompt: tuple[int, ...], truncated: bool, output: WorkerOutput) -> None:
        self._waiting.discard(output.key)
        if not all(map(math.isfinite, output.logprobs)):
            raise EngineError(
                f"{request.id}: the model's output is not finite; set model.dtype=float32, or look for broken weights"
            )
        ids, reason, text = self._trim(request, prompt, output)
        text = spoken(text, self.style, thinking=request.sampling.thought_tokens > 0)
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
            prompt_truncated=truncated,
            unknown_token=max(output.token_ids, default=0) >= self.token_count,
        )
        self._done.append(completion)

    def _trim(
        self, request: Request, prompt: tuple[int, ...], output: WorkerOutput
    ) -> tuple[tuple[int, ...], FinishReason, str]:
        """Return the tokens, the finish reason and the text.

        vLLM looks for stop strings only after ``min_new_tokens``, so it may have run past one: tokens after it are
        dropped.
        """
        thinking = request.sampling.thought_tokens > 0
        opening = opening_of(self.tokenizer, prompt, self.style, thinking=thinking)

        def decode(ids: tuple[int, ...]) -> str:
            return opening + decode_reply(self.tokenizer, prompt, ids)

        tagged = self.style is PromptStyle.TAGGED
        before_stop = partial(text_before_stop, stop=request.stop, thinking=thinking, tagged=tagged)
        ids = tuple(takewhile(lambda token: token < self.token_count, output.token_ids))
        if thinking:
            ids = within_limits(ids, decode, request.sampling)
        hit_limit = output.hit_limit or len(ids) < len(output.token_ids)
        cut = before_stop(decode(ids))
        while cut is not None and (earlier := before_stop(decode(ids[:-1]))) is not None:
            ids, cut = ids[:-1], earlier
        if cut is not None:
            return ids, FinishReason.STOP, cut
        if ids and ids[-1] in self.stop_ids:
            return ids, FinishReason.EOS, decode(ids[:-1])
        return ids, FinishReason.LENGTH if hit_limit else FinishReason.STOP, decode(ids)


def within_limits(
    ids: tuple[int, ...], decode: Callable[[tuple[int, ...]], str], sampling: Sampling
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
        "stop": [] if sampling.thought_tokens else stop,  # a thought may contain one: cut here
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,  # stop_token_ids has it
        "logprobs": 1,  # two columns, for the sampled token only (see extension.py)
        "flat_logprobs": True,
    }
