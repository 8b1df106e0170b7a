"""Attention over packed rows (``packing.py``), registered with transformers under ``ATTENTION``.

Each span of the row is one call of torch's scaled dot product attention: its queries against its ancestors' keys and
its own. Nothing is computed for tokens that do not see each other, unlike in one masked call for the whole row. Works
on every device, for models that pass ``packed_spans`` on to their attention function, as those of transformers do.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from spag.models.packing import Span

ATTENTION = "spag_packed"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_spans: list[Span] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return (1, T, heads, head_dim) for ``query`` (1, heads, T, head_dim), ``key`` and ``value`` (1, kv_heads, T,
    head_dim).

    Without ``packed_spans`` the rows are ordinary ones, of any number, perhaps behind cached keys and values: plain
    causal attention, or what ``attention_mask`` (B, 1, T, keys) allows.
    """
    if packed_spans is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, _causal_mask(query.shape[2], key.shape[2], query.device), **options
        )
        return plain
    # Split, not sliced: the gradient of a slice is a tensor as long as the row, and there are as many of them as spans
    # see spans.
    sizes, starts = [span.stop - span.start for span in packed_spans], [span.start for span in packed_spans]
    queries, keys, values = (states.split_with_sizes(sizes, dim=2) for states in (query, key, value))
    parts = []
    for index, span in enumerate(packed_spans):
        seen = [*_ancestors(span, starts), index]
        own_keys, own_values = (_joined(pieces, seen) for pieces in (keys, values))
        parts.append(sdpa_attention_forward(module, queries[index], own_keys, own_values, span.mask, **options)[0])
    return torch.cat(parts, dim=1), None


def computing_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which products of ``dtype`` are computed now: autocast may ask for another one."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype


def spans_on(spans: list[Span], device: torch.device, dtype: torch.dtype) -> list[Span]:
    """Return ``spans`` with additive masks in the dtype of computation, which the kernels run fastest."""

    def added(mask: Tensor | None) -> Tensor | None:
        return (
            mask
            if mask is None
            else torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf).to(device)[None, None]
        )

    return [Span(span.start, span.stop, span.context, added(span.mask)) for span in spans]


def _ancestors(span: Span, starts: list[int]) -> Iterator[int]:
    """Yield the indices of the spans (they begin at ``starts``) in the context of ``span``: each stretch is one or more
    whole spans.
    """
    for first, last in span.context:
        yield from range(bisect_left(starts, first), bisect_left(starts, last))


def _causal_mask(queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Return which keys each of the last ``queries`` positions sees, (queries, keys); ``None`` where the kernel's own
    causal flag says the same.

    That flag counts from the first key: behind a cache it would hide the end of the prompt.
    """
    if queries in (1, keys):
        return None
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)[None, None]


def _joined(pieces: Sequence[Tensor], chosen: list[int]) -> Tensor:
    return pieces[chosen[0]] if len(chosen) == 1 else torch.cat([pieces[index] for index in chosen], dim=2)


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask: packed rows bring their own."""


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
