"""Generation with transformers: continuous batching over a slot cache (``slots.py``).

Requests join and leave the running batch at any step. A request takes the free slot whose contents share its longest
prefix, so a game's next turn prefills only new tokens, and a new game copies the rules' keys and values from another
slot. Requests with identical tokens share one forward pass (``_known``): in a small game most do, so a step of hundreds
of hands costs as much as one of a dozen. Works for models with full and sliding-window attention; others (state-space
models, models with their own code) are refused with a pointer to vLLM.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.core.errors import EngineError, is_out_of_memory
from spag.core.options import SamplingConfig
from spag.core.thinking import CLOSE
from spag.core.visible import counted
from spag.engines.base import Completion, Engine, FinishReason, Request, check_shapes, token_limit
from spag.engines.prompts import TokenizedRequest, tokenize
from spag.engines.transformers.forward import SlotModel
from spag.engines.transformers.sampler import random_bits, sample_tokens
from spag.engines.transformers.slots import SlotCache
from spag.models.roles import weights_of_adapter
from spag.models.speed import choose_products
from spag.models.tokens import PromptStyle, check_ids, stop_token_ids, token_count
from spag.models.weights import weights_of

KNOWN = 256
"""Positions whose logits are kept: 50 MB with 50,000 tokens in float32."""
DRAWN = 8
"""Tokens sampled at once on a CPU: the noise for the whole vocabulary and its copies stay in the CPU's caches."""
DRAWN_ON_GPU = 32
"""A bound on the memory of these copies."""


@dataclass(slots=True, eq=False)
class _Row:
    """A request in progress. ``slot`` holds all of ``tokens`` except the last; -1: no slot."""

    asked: TokenizedRequest
    generator: torch.Generator
    text: str
    slot: int = -1
    generated: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    closed_at: int | None = None  # tokens up to the end of its thought

    @property
    def tokens(self) -> list[int]:
        return [*self.asked.prompt, *self.generated]

    @property
    def sampling(self) -> SamplingConfig:
        return self.asked.request.sampling


class TransformersEngine(Engine):
    """``adapter``: which of several LoRA adapters in ``model`` it uses; engines for the others may share the model, one
    at a time.
    """

    trains_here = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        style: PromptStyle = PromptStyle.PLAIN,
        concurrency: int = 32,
        adapter: str | None = None,
    ) -> None:
        choose_products(model.device, model.dtype)
        self.concurrency, self._adapter = concurrency, adapter
        self._model, self._tokenizer, self._style = model, tokenizer, style
        self._slots = SlotModel(model, adapter)
        self._dtype = str(model.dtype).removeprefix("torch.")
        self._cache = SlotCache(concurrency, self._slots.layers)
        self._drawn = DRAWN if model.device.type == "cpu" else DRAWN_ON_GPU
        self._stop_ids = stop_token_ids(model.generation_config, tokenizer, style)
        self._vocabulary, self._token_count = len(model.get_input_embeddings().weight), token_count(tokenizer)
        check_ids(tokenizer, self._stop_ids, self._vocabulary)
        self._refused: list[Completion] = []
        self._queue: list[_Row] = []
        self._active: list[_Row] = []
        self._known: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()
        self._woken = False

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ``RequestError`` for an empty prompt."""
        fix = "use a model with a longer context, or shorten utterances"
        asked = tokenize(self._tokenizer, request, self._style, self._slots.positions, fix)
        if isinstance(asked, Completion):
            self._refused.append(asked)
            return
        check_ids(self._tokenizer, asked.prompt, self._vocabulary)
        generator = torch.Generator(self._model.device).manual_seed(request.seed)
        self._queue.append(_Row(asked, generator, asked.opening))

    def poll(self) -> list[Completion]:
        finished, self._refused = self._refused, []
        try:
            with torch.inference_mode():
                while not finished and not self._woken and (self._queue or self._active):
                    finished = self._draw_known() or self._admit() or self._decode()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            what = f"out of memory with {counted(len(self._active), 'utterance')} in flight"
            raise EngineError(f"{what}; lower engine.concurrency") from error
        self._woken = False
        return finished

    def wake(self) -> None:
        self._woken = True

    def partial(self, request_id: str) -> str | None:
        rows = [*self._active, *self._queue]  # in the queue it may wait for another request's logits
        return next((row.asked.spoken(row.text) for row in rows if row.asked.request.id == request_id), None)

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._replace(weights, copies=True)

    def share_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._replace(weights, copies=False)

    def forget(self) -> None:
        self._known.clear()
        self._cache = SlotCache(self.concurrency, self._slots.layers)

    def _replace(self, weights: Mapping[str, torch.Tensor], *, copies: bool) -> None:
        """Compute with ``weights``, by name; the previous tensors may be shared, so they stay as they are."""
        own = dict(weights_of(self._model))
        if self._adapter is not None:  # callers know it as the only one
            own = weights_of_adapter(own, self._adapter)
        if self._queue or self._active:
            raise EngineError("weights change only between requests")
        check_shapes(weights, {name: weight.shape for name, weight in own.items()})
        for name, value in weights.items():
            own[name].data = value.detach().to(own[name].device, own[name].dtype, copy=copies)
        self.forget()

    def close(self) -> None:
        self._refused.clear()
        self._queue.clear()
        self._active.clear()
        self._known.clear()
        self._cache = SlotCache(0, 0)

    def _draw_known(self) -> list[Completion]:
        """Sample tokens of requests as long as another had the same tokens before; this needs no slot."""
        parked = [row for row in self._active if tuple(row.tokens) in self._known]
        self._queue = parked + self._queue
        for row in parked:
            row.slot = -1
            self._active.remove(row)
        finished: list[Completion] = []
        while not finished and (rows := [row for row in self._queue if tuple(row.tokens) in self._known]):
            finished += self._advance(rows, [self._known[tuple(row.tokens)] for row in rows])
        return finished

    def _admit(self) -> list[Completion]:
        """Move queued requests into free slots and prefill them. Returns those that ended with their first token."""
        taken = {row.slot for row in self._active}
        free = [slot for slot in range(self.concurrency) if slot not in taken]
        if not self._queue or not free:
            return []
        cold = not any(self._cache.tokens)
        # the first computes the prefix that all others copy
        rows = self._first_of_equals(1 if cold else len(free))
        if not rows:
            return []
        self._active += rows
        self._queue = [row for row in self._queue if row not in rows]
        slots, starts = self._cache.assign([row.tokens for row in rows], free)
        for row, slot in zip(rows, slots, strict=True):
            row.slot = slot
        return self._feed(rows, starts)

    def _first_of_equals(self, count: int) -> list[_Row]:
        """Return up to ``count`` queued requests. Those with the same tokens as another wait for its logits."""
        seen, rows = {tuple(row.tokens) for row in self._active}, list[_Row]()
        for row in self._queue:
            if len(rows) == count:  # the queue may be long
                break
            if (key := tuple(row.tokens)) not in seen:
                seen.add(key)
                rows.append(row)
        return rows

    def _decode(self) -> list[Completion]:
        """Feed every active row its last token and sample the next."""
        self._compact_slots()
        return self._feed(list(self._active), [len(self._cache.tokens[row.slot]) for row in self._active])

    def _feed(self, rows: list[_Row], starts: Sequence[int]) -> list[Completion]:
        """Feed rows their tokens from ``starts`` on and sample the next."""
        fed = [row.tokens[start:] for row, start in zip(rows, starts, strict=True)]
        logits = self._slots.logits(self._cache, [row.slot for row in rows], starts, fed)
        for row in rows:
            self._cache.tokens[row.slot] = row.tokens
        self._remember(rows, logits)
        return self._advance(rows, logits.unbind())

    def _compact_slots(self) -> None:
        """Move active rows into the first slots, so that their keys and values are read without copying."""
        count = len(self._active)
        gaps = sorted(set(range(count)).difference(row.slot for row in self._active))
        beyond = (row for row in self._active if row.slot >= count)
        for row, slot in zip(beyond, gaps, strict=True):
            self._cache.swap(row.slot, slot)
            row.slot = slot
        # not sorted in place: meanwhile, other threads would see an empty list
        self._active = sorted(self._active, key=lambda row: row.slot)

    def _advance(self, rows: list[_Row], logits: Sequence[torch.Tensor]) -> list[Completion]:
        """Sample a token for each row; return the completions of rows that ended with it."""
        finished: list[Completion] = []
        for start in range(0, len(rows), self._drawn):
            part = slice(start, start + self._drawn)
            finished += self._sample(rows[part], torch.stack(list(logits[part])))
        return finished

    def _sample(self, rows: list[_Row], logits: torch.Tensor) -> list[Completion]:
        # a thought's tokens count only until it is closed
        too_short = (len(row.generated) - (row.closed_at or 0) < row.sampling.min_new_tokens for row in rows)
        stops = [token for token in self._stop_ids if token < self._token_count]
        banned = {index: stops for index, is_short in enumerate(too_short) if is_short}
        generators = [row.generator if row.sampling.temperature > 0 else None for row in rows]
        noise = random_bits(generators, logits.shape[-1], logits.device)
        draw = sample_tokens(logits, [row.sampling for row in rows], noise, banned, self._token_count)
        drawn = zip(rows, draw.tokens.tolist(), draw.logprobs.tolist(), draw.sampling_logprobs.tolist(), strict=True)
        finished = []
        for row, token, logprob, sampling_logprob in drawn:
            if not math.isfinite(logprob):  # one non-finite logit is enough
                what = f"{row.asked.request.id}: the model's output is not finite (model.dtype={self._dtype})"
                raise EngineError(f"{what}; set model.dtype=float32, or look for broken weights")
            row.generated.append(token)
            row.logprobs.append(logprob)
            row.sampling_logprobs.append(sampling_logprob)
            reason = self._finish_reason(row)
            if reason is not None:
                finished.append(self._complete(row, reason))
        return finished

    def _remember(self, rows: Sequence[_Row], logits: torch.Tensor) -> None:
        """Keep the logits that others may wait for."""
        for row, row_logits in zip(rows, logits, strict=True):
            key = tuple(row.tokens)
            self._known[key] = row_logits
            self._known.move_to_end(key)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def _finish_reason(self, row: _Row) -> FinishReason | None:
        ended = row.generated[-1] in self._stop_ids
        row.text = row.asked.decode(row.generated[:-1] if ended else row.generated)
        if ended:
            return FinishReason.EOS
        if (cut := row.asked.before_stop(row.text)) is not None:
            row.text = cut
            return FinishReason.STOP
        if row.closed_at is None and CLOSE in row.text:
            row.closed_at = len(row.generated)
        is_full = len(row.generated) >= token_limit(row.sampling, row.text, row.closed_at)
        return FinishReason.LENGTH if is_full else None

    def _complete(self, row: _Row, reason: FinishReason) -> Completion:
        (self._queue if row.slot < 0 else self._active).remove(row)
        return row.asked.completion(row.text, reason, row.generated, row.logprobs, row.sampling_logprobs)
