"""Attention over packed rows (``packing.py``), registered with transformers under ``ATTENTION``.

Each span of the row is one call of torch's scaled dot product attention: its queries against its ancestors' keys and its own. Nothing is
computed for tokens that do not see each other, which one masked call for the whole row would do. Works on every device; models take part by
handing ``packed_spans`` through to their attention function, as those of transformers do.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from spag.training.packing import Span

ATTENTION = "spag_packed"


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_spans: list[Span],
    **options: Any,
) -> tuple[Tensor, None]:
    """Return (1, T, heads, head_dim) for ``query`` (1, heads, T, head_dim), ``key`` and ``value`` (1, kv_heads, T, head_dim)."""
    parts = []
    for span in packed_spans:
        own = (span.start, span.stop)
        keys, values = (_gather(states, [*span.context, own]) for states in (key, value))
        parts.append(sdpa_attention_forward(module, query[:, :, slice(*own)], keys, values, span.mask, **options)[0])
    return torch.cat(parts, dim=1), None


def spans_on(spans: list[Span], device: torch.device, dtype: torch.dtype) -> list[Span]:
    """Return ``spans`` with masks as the kernels like them best: numbers to add to the scores, in the type of computation."""

    def added(mask: Tensor | None) -> Tensor | None:
        return mask if mask is None else torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf).to(device)[None, None]

    return [Span(span.start, span.stop, span.context, added(span.mask)) for span in spans]


def _gather(states: Tensor, stretches: list[tuple[int, int]]) -> Tensor:
    parts = [states[:, :, first:last] for first, last in stretches]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _no_mask(*_: Any, **__: Any) -> None:
    """Packed rows bring their own masks."""


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
