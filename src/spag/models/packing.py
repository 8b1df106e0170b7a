"""Packed rows: several token sequences in one row without padding; shared prefixes are computed once.

The sequences of a micro-batch form a prefix tree: a prefix of several sequences (the rules of the game, the shared
history of two moves of a game) appears once. The tree is laid out depth first; a token attends to itself and its
ancestors, and its position is its depth. Every token sees exactly the context of its own sequence, so log-probabilities
and gradients equal those of separate sequences, up to rounding. Upstream pads each sequence to the longest of its batch
and recomputes every prefix.

Attention over such rows is registered with transformers under ``ATTENTION``. Each span of the row is one call of
torch's scaled dot product attention: its queries against its ancestors' keys and its own. Unlike one masked call for
the whole row, this computes little or nothing for tokens that do not see each other. It works on every device, for
models that pass ``packed_spans`` to their attention function, as transformers' models do.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from spag.models.tokens import shared_length

ATTENTION = "spag_packed"
UNSUPPORTED = (TypeError, ValueError, AttributeError, IndexError, RuntimeError)
"""Errors of a model's forward pass that does not know, or ignores, the arguments of packed rows."""
IN_FLOAT32 = ("cpu",)
"""Devices on which packed rows attend in float32: for spans as short as ours, bfloat16 kernels take three times as long
to compute the gradient.
"""
_WHOLE, _WHOLE_ON_GPU = 96, 4096
"""A subtree of at most this many tokens attends in one call: many small calls cost more than some masked-out scores.
On a GPU, where starting a kernel costs as much as many scores, adjacent subtrees share a call, too.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the row whose queries are computed together.

    They attend to all of the stretches ``context`` (their common ancestors), and to themselves according to ``mask``.
    ``mask`` (stop - start, context + stop - start) is True where a query may attend; ``None`` means causal, without
    context.
    """

    start: int
    stop: int
    context: tuple[tuple[int, int], ...] = ()
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Packing:
    """A packed row of T tokens.

    ``input_ids`` and ``position_ids`` (T,) int64. ``rows``: for each sequence, the index in the row of each token, (L,)
    int64.
    """

    input_ids: Tensor
    position_ids: Tensor
    rows: list[Tensor]

    def spans(self, *, on_gpu: bool = False) -> list[Span]:
        """Return the spans, which cover 0..T in order."""
        depths = self.position_ids.tolist()
        ends = _ends(depths)
        return list(_spans(_branches(depths, ends), torch.tensor(ends), on_gpu=on_gpu))

    def predicted_from(self, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the positions in the row whose logits predict the tokens of each sequence from its start on, (C,),
        and, sequence by sequence, which of them predicts each of these tokens, (K,).

        A sequence leaves out its last token: nothing follows it.
        """
        sources = torch.cat([row[start - 1 :] for row, start in zip(self.rows, starts, strict=True)])
        columns, picks = torch.unique(sources, return_inverse=True)
        return columns, picks


@dataclass(slots=True)
class _Branch:
    """Tokens ``start`` to ``stop`` without a fork; ``end`` is the end of all their descendants."""

    start: int
    stop: int
    end: int
    children: "list[_Branch]" = field(default_factory=list)


def pack(sequences: Sequence[Sequence[int]]) -> Packing:
    """Lay out ``sequences``, each of at least one token, as one row.

    Sequences with a common prefix should be adjacent: only prefixes shared with the previous sequence are computed
    once.
    """
    tokens: list[int] = []
    depths: list[int] = []
    rows: list[Tensor] = []
    path: list[int] = []  # index in the row of each token of the previous sequence
    before: Sequence[int] = ()
    for sequence in sequences:
        kept = shared_length(before, sequence)
        path = path[:kept] + list(range(len(tokens), len(tokens) + len(sequence) - kept))
        tokens.extend(sequence[kept:])
        depths.extend(range(kept, len(sequence)))
        rows.append(torch.tensor(path))
        before = sequence
    return Packing(torch.tensor(tokens), torch.tensor(depths), rows)


def packed_length(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many tokens ``pack`` would lay out."""
    before: Sequence[int] = ()
    total = 0
    for sequence in sequences:
        total += len(sequence) - shared_length(before, sequence)
        before = sequence
    return total


def _ends(depths: Sequence[int]) -> list[int]:
    """Return for each token the end of its subtree: the next token in depth-first order that is not deeper."""
    ends = [len(depths)] * len(depths)
    open_tokens: list[int] = []
    for index, depth in enumerate(depths):
        while len(open_tokens) > depth:
            ends[open_tokens.pop()] = index
        open_tokens.append(index)
    return ends


def _branches(depths: Sequence[int], ends: Sequence[int]) -> list[_Branch]:
    """Return the roots of the tree of branches. A branch ends at a fork, so all its children continue its last
    token.
    """
    forks = set()
    path: list[int] = []
    for index, depth in enumerate(depths):
        if 0 < depth < len(path):
            forks.add(path[depth - 1])
        path[depth:] = [index]
    starts = [at for at in range(len(depths)) if at == 0 or at - 1 in forks or depths[at] != depths[at - 1] + 1]
    roots: list[_Branch] = []
    stack: list[_Branch] = []
    for start, stop in zip(starts, [*starts[1:], len(depths)], strict=True):
        while stack and stack[-1].end <= start:
            stack.pop()
        branch = _Branch(start, stop, ends[start])
        (stack[-1].children if stack else roots).append(branch)
        stack.append(branch)
    return roots


def _spans(
    branches: Sequence[_Branch], ends: Tensor, context: tuple[tuple[int, int], ...] = (), *, on_gpu: bool
) -> Iterator[Span]:
    whole = _WHOLE_ON_GPU if on_gpu else _WHOLE
    for group in _adjacent(branches, whole if on_gpu else 0):
        first, last = group[0], group[-1]
        if last.end - first.start <= whole or not last.children:
            yield _span(first.start, last.end, context, ends)
        else:
            yield _span(first.start, first.stop, context, ends)
            yield from _spans(first.children, ends, _joined(context, (first.start, first.stop)), on_gpu=on_gpu)


def _adjacent(branches: Sequence[_Branch], most: int) -> Iterator[list[_Branch]]:
    """Yield ``branches`` in groups whose subtrees have at most ``most`` tokens, or of one branch."""
    group: list[_Branch] = []
    for branch in branches:
        if group and branch.end - group[0].start > most:
            yield group
            group = []
        group.append(branch)
    if group:
        yield group


def _span(start: int, stop: int, context: tuple[tuple[int, int], ...], ends: Tensor) -> Span:
    size, before = stop - start, sum(last - first for first, last in context)
    query = torch.arange(start, stop)[:, None]
    key = torch.arange(start, stop)[None, :]
    mask = (key <= query) & (query < ends[start:stop][None, :])
    if not context and bool((mask == torch.ones(size, size, dtype=torch.bool).tril()).all()):
        return Span(start, stop)
    return Span(start, stop, context, torch.cat([torch.ones(size, before, dtype=torch.bool), mask], dim=1))


def _joined(context: tuple[tuple[int, int], ...], stretch: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    if context and context[-1][1] == stretch[0]:
        return (*context[:-1], (context[-1][0], stretch[1]))
    return (*context, stretch)


def attends_to_all(config: PreTrainedConfig, longest: int) -> bool:
    """Whether no attention window is shorter than ``longest`` tokens, so that every layer attends to all previous ones,
    as in packed rows.
    """
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None)
    return kinds <= {"full_attention", "sliding_attention"} and (window is None or window >= longest)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_spans: list[Span] | None = None,
    in_checkpoint: bool = False,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return (1, T, heads, head_dim) for ``query`` (1, heads, T, head_dim), ``key`` and ``value`` (1, kv_heads, T,
    head_dim).

    ``in_checkpoint``: the backward pass recomputes the whole layer, so attention must not be recomputed once more.

    Without ``packed_spans``, rows are ordinary, in any number, possibly after cached keys and values: attention is
    plain causal. There is never an ``attention_mask`` (``_no_mask``), so rows must not be padded on the left.
    """
    if packed_spans is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, _causal_mask(query.shape[2], key.shape[2], query.device), **options
        )
        return plain
    spans, dtype = packed_spans, attention_dtype(query.device, query.dtype)
    computed = computing_dtype(query.device, query.dtype)  # per-head norms may leave queries in float32

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Split, not sliced: the gradient of a slice is a tensor as long as the row, and there would be one for each
        # pair of spans.
        sizes, starts = [span.stop - span.start for span in spans], [span.start for span in spans]
        queries, keys, values = (states.to(dtype).split_with_sizes(sizes, dim=2) for states in (query, key, value))
        parts = []
        for index, span in enumerate(spans):
            seen = [*_ancestors(span, starts), index]
            own_keys, own_values = (_gathered(pieces, seen) for pieces in (keys, values))
            parts.append(sdpa_attention_forward(module, queries[index], own_keys, own_values, span.mask, **options)[0])
        return torch.cat(parts, dim=1).to(computed)

    with torch.autocast(query.device.type, enabled=False):
        if in_checkpoint or not (torch.is_grad_enabled() and query.requires_grad):
            return attend(query, key, value), None
        # Autograd would keep each span's context: a prefix once per fork. So the backward pass recomputes attention.
        return checkpoint(attend, query, key, value, use_reentrant=False), None


def attention_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the attention dtype of packed rows: that of matrix products, or float32 (``IN_FLOAT32``)."""
    return torch.float32 if device.type in IN_FLOAT32 else computing_dtype(device, dtype)


def computing_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which matrix products of ``dtype`` are computed now: autocast may change it."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype


def spans_on(packing: Packing, device: torch.device, dtype: torch.dtype) -> list[Span]:
    """Return the spans of ``packing`` on ``device``, with additive masks, the fastest for the kernels, for weights of
    ``dtype``.
    """
    dtype = attention_dtype(device, dtype)

    def added(mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        hidden = ~mask.to(device)
        return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)[None, None]

    spans = packing.spans(on_gpu=device.type != "cpu")
    return [Span(span.start, span.stop, span.context, added(span.mask)) for span in spans]


def _ancestors(span: Span, starts: list[int]) -> Iterator[int]:
    """Yield the indices of the spans (they begin at ``starts``) in the context of ``span``: each stretch is one or more
    whole spans.
    """
    for first, last in span.context:
        yield from range(bisect_left(starts, first), bisect_left(starts, last))


def _causal_mask(queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Return which keys each of the last ``queries`` positions sees, (queries, keys); ``None`` if the kernel's causal
    flag is equivalent.

    That flag counts from the first key: after a cache it would hide the end of the prompt.
    """
    if queries in (1, keys):
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)[None, None]


def _gathered(pieces: Sequence[Tensor], chosen: list[int]) -> Tensor:
    return pieces[chosen[0]] if len(chosen) == 1 else torch.cat([pieces[index] for index in chosen], dim=2)


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: packed rows have their own."""


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
