"""Attention over packed rows (``samples.py``), registered with transformers under ``ATTENTION``.

Each span of the row is one call of torch's scaled dot product attention: its queries against its ancestors' keys and
its own. Unlike one masked call for the whole row, this computes little or nothing for tokens that do not see each
other. It works on every device, for models that pass ``packed_row`` to their attention function, as transformers'
models do.

In half precision on a GPU, one flash attention call covers the row. A chain is a stretch of the row without a fork
(``chains_of``). Its keys are those of its ancestors, then its own, so the kernel needs no mask: each query sees
the chain's keys up to its own. The keys of a prefix are gathered once for each chain that continues it.
"""

from bisect import bisect_left
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface

from spag.models.spans import Span, chains_of, spans_of

ATTENTION = "spag_packed"
UNSUPPORTED = (TypeError, ValueError, AttributeError, IndexError, RuntimeError)
"""Errors of a model's forward pass that does not know, or ignores, the arguments of packed rows."""
IN_FLOAT32 = ("cpu",)
"""Devices on which packed rows attend in float32: for spans as short as ours, bfloat16 kernels take three times as long
to compute the gradient.
"""
_LARGEST_HEAD = 256  # of flash attention's kernels
_MOST_SCORES, _LONGEST_CHAIN = 2**24, 512
"""Scores that plain products compute at once, 64 MiB, and the longest text without a fork that they attend to. Beyond,
torch's kernel takes less memory.
"""


def window_of(text: PreTrainedConfig, kinds: Set[str]) -> Any:
    """Return a text model's attention window as its config gives it, in tokens. ``None``: full attention, also if none
    of its ``kinds`` of layers slides, where a window in the config means nothing.
    """
    return getattr(text, "sliding_window", None) if not kinds or "sliding_attention" in kinds else None


def short_length(config: PreTrainedConfig) -> int | None:
    """Return the length beyond which a text changes the rotary frequencies of its whole batch (``longrope``)."""
    rope = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    return rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None


def attends_to_all(config: PreTrainedConfig, longest: int) -> bool:
    """Whether every layer attends to all previous tokens of ``longest``, as in packed rows: no window is shorter."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ())
    window = window_of(text, kinds)
    return kinds <= {"full_attention", "sliding_attention"} and (window is None or window >= longest)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_row: "PackedRow | None" = None,
    in_checkpoint: bool = False,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return (1, T, heads, head_dim) for ``query`` (1, heads, T, head_dim), ``key`` and ``value`` (1, kv_heads, T,
    head_dim).

    ``in_checkpoint``: the backward pass recomputes the whole layer, so attention must not be recomputed once more.

    Without ``packed_row``, rows are ordinary, in any number, possibly after cached keys and values: attention is
    plain causal. There is never an ``attention_mask`` (``_no_mask``), so rows must not be padded on the left.
    """
    for extra in ("s_aux", "softcap"):  # gpt-oss's sinks, Gemma 2's capped scores; neither kernel below has them
        if options.get(extra) is not None:
            raise ValueError(f"attention with {extra}")
    if packed_row is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, _causal_mask(query.shape[2], key.shape[2], query.device), **options
        )
        return plain
    # asked here: below, autocast is off; per-head norms may leave queries in float32
    computed = computing_dtype(query.device, query.dtype)
    dtype = torch.float32 if query.device.type in IN_FLOAT32 else computed
    in_one = not options.get("dropout") and supports_chains(query.device, dtype, query, value)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (states.to(dtype) for states in (query, key, value))
        if in_one:
            found = attend_by_chain(packed_row.chains, query, key, value, **options)
        else:
            found = _attend_by_span(module, packed_row.spans(dtype), query, key, value, **options)
        return found.to(computed)

    with torch.autocast(query.device.type, enabled=False):
        if in_checkpoint or not (torch.is_grad_enabled() and query.requires_grad):
            return attend(query, key, value), None
        # Autograd would keep each span's context: a prefix once per fork. So the backward pass recomputes attention.
        return checkpoint(attend, query, key, value, use_reentrant=False), None


def computing_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which matrix products of ``dtype`` are computed now: autocast may change it."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype


@dataclass(frozen=True, slots=True)
class Chains:
    """``keys``: for each chain, the indices in the row of its ancestors and of its own tokens, (K,) int64.
    ``query_ends`` and ``key_ends``: 0, then where each chain's queries and keys end, (N + 1,) int32. ``longest``: the
    most queries and the most keys of a chain.
    """

    keys: Tensor
    query_ends: Tensor
    key_ends: Tensor
    longest: tuple[int, int]


def supports_chains(device: torch.device, dtype: torch.dtype, query: Tensor, value: Tensor) -> bool:
    """Whether flash attention takes ``query`` (..., head_dim) and ``value`` (..., value_dim) in ``dtype``."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    width = query.shape[-1]
    return dtype in (torch.bfloat16, torch.float16) and width == value.shape[-1] <= _LARGEST_HEAD and width % 8 == 0


def attend_by_chain(
    chains: Chains, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None = None, **_: Any
) -> Tensor:
    """Return (1, T, heads, head_dim) for ``query`` (1, heads, T, head_dim), ``key`` and ``value`` (1, kv_heads, T,
    head_dim).
    """
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    own_keys, own_values = (
        _Gather.apply(states, chains.keys)  # type: ignore[no-untyped-call]
        for states in (keys, values)
    )
    ends = chains.query_ends, chains.key_ends, *chains.longest
    causal = (-1, 0)  # aligned with the last key, where a chain has more keys than queries
    found: Any = varlen_attn(
        queries.contiguous(), own_keys, own_values, *ends, scale=scaling, window_size=causal, enable_gqa=True
    )
    attended: Tensor = found[None]
    return attended


class _Gather(torch.autograd.Function):
    """``states[index]`` whose gradient is added up in float32: that of a prefix comes from all its chains."""

    @staticmethod
    def forward(context: Any, states: Tensor, index: Tensor) -> Tensor:
        context.save_for_backward(index)
        context.shape, context.dtype = states.shape, states.dtype
        return states.index_select(0, index)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = context.saved_tensors
        total = torch.zeros(context.shape, dtype=torch.float32, device=gradient.device)
        return total.index_add_(0, index, gradient.float()).to(context.dtype), None


class PackedRow:
    """How the tokens of a packed row attend on ``device``; each form is made when it is first used."""

    def __init__(self, depths: Sequence[int], device: torch.device) -> None:
        self.depths, self.device = depths, device
        self._spans: dict[torch.dtype, list[Span]] = {}

    @cached_property
    def chains(self) -> Chains:
        spans = chains_of(self.depths)
        stretches = [[*span.context, (span.start, span.stop)] for span in spans]
        sizes = [sum(stop - start for start, stop in one) for one in stretches]
        keys = torch.cat([torch.arange(start, stop) for one in stretches for start, stop in one])
        longest = max(span.stop - span.start for span in spans), max(sizes)
        ends = ([0, *(span.stop for span in spans)], [0, *accumulate(sizes)])
        query_ends, key_ends = (torch.tensor(one, dtype=torch.int32, device=self.device) for one in ends)
        return Chains(keys.to(self.device), query_ends, key_ends, longest)

    def spans(self, dtype: torch.dtype) -> list[Span]:
        """Return the spans with additive masks of ``dtype``, the fastest for the kernels."""
        if dtype not in self._spans:
            spans = spans_of(self.depths, on_gpu=self.device.type != "cpu")
            self._spans[dtype] = [replace(span, mask=self._added(span, dtype)) for span in spans]
        return self._spans[dtype]

    def _added(self, span: Span, dtype: torch.dtype) -> Tensor | None:
        mask, size = span.mask, span.stop - span.start
        if mask is None and self.device.type == "cpu" and size <= _LONGEST_CHAIN:
            mask = torch.ones(size, size, dtype=torch.bool).tril()
        return None if mask is None else torch.where(mask.to(self.device), 0.0, -torch.inf).to(dtype)[None, None]


def _attend_by_span(
    module: nn.Module, spans: Sequence[Span], query: Tensor, key: Tensor, value: Tensor, **options: Any
) -> Tensor:
    # Split, not sliced: the gradient of a slice is a tensor as long as the row, one for each pair of spans.
    sizes, starts = [span.stop - span.start for span in spans], [span.start for span in spans]
    queries, keys, values = (states.split_with_sizes(sizes, dim=2) for states in (query, key, value))
    parts = []
    for index, span in enumerate(spans):
        context = [range(bisect_left(starts, first), bisect_left(starts, last)) for first, last in span.context]
        seen = [*chain.from_iterable(context), index]  # each stretch of the context is one or more whole spans
        own_keys, own_values = (_gathered(pieces, seen) for pieces in (keys, values))
        if span.mask is not None and uses_products(query, span.mask) and not options.get("dropout"):
            found = attend_by_products(queries[index], own_keys, own_values, span.mask, options.get("scaling"))
            parts.append(found.transpose(1, 2))
        else:
            parts.append(sdpa_attention_forward(module, queries[index], own_keys, own_values, span.mask, **options)[0])
    return torch.cat(parts, dim=1)


def uses_products(query: Tensor, mask: Tensor) -> bool:
    """Whether plain products are the fastest attention: on a CPU in float32, for texts as short as ours.

    ``query`` (B, heads, Q, head_dim), ``mask`` (B or 1, 1, Q, K).
    """
    scores = query.shape[:2].numel() * mask.shape[-2:].numel()
    return query.device.type == "cpu" and query.dtype is torch.float32 and scores <= _MOST_SCORES


def attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Return (B, heads, Q, value_dim) for ``query`` (B, heads, Q, head_dim), ``key`` (B, kv_heads, K, head_dim),
    ``value`` (B, kv_heads, K, value_dim) and ``mask``, which is added to the scores, (B or 1, 1, Q, K).

    Heads that share keys become queries of one head, so that keys are not copied for each.
    """
    batch, heads, queries, size = query.shape
    folded = query.reshape(batch, key.shape[1], -1, size) * (size**-0.5 if scaling is None else scaling)
    scores = (folded @ key.transpose(-1, -2)).view(batch, heads, queries, -1).add_(mask)
    shares = scores.softmax(-1).view(batch, key.shape[1], -1, key.shape[2])
    return (shares @ value).view(batch, heads, queries, -1)


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
