"""Attention over packed rows by one flash attention call on a GPU.

A chain is a stretch of the row without a fork (``Packing.chains``). Its keys are those of its ancestors, then its own,
so the kernel needs no mask: each query sees the chain's keys up to its own. A masked call computes scores for tokens
that do not see each other; here there are none. The keys of a prefix are gathered once for each chain that continues
it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from spag.models.packing import Packing

varlen_attn: Any = None
if TorchVersion(torch.__version__) >= "2.13":  # what was measured; its first versions had no grouped heads
    from torch.nn.attention.varlen import varlen_attn

_LARGEST_HEAD = 256  # of flash attention's kernels


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


def chains_on(packing: Packing, device: torch.device) -> Chains:
    """Return the chains of ``packing`` on ``device``."""
    spans = list(packing.chains())
    stretches = [[*span.context, (span.start, span.stop)] for span in spans]
    sizes = [sum(stop - start for start, stop in one) for one in stretches]
    keys = torch.cat([torch.arange(start, stop) for one in stretches for start, stop in one])
    longest = max(span.stop - span.start for span in spans), max(sizes)
    return Chains(
        keys.to(device), _from_0([span.stop for span in spans], device), _from_0(accumulate(sizes), device), longest
    )


def supports_chains(device: torch.device, dtype: torch.dtype, query: Tensor, value: Tensor) -> bool:
    """Whether flash attention takes ``query`` (..., head_dim) and ``value`` (..., value_dim): in half precision, on a
    GPU of compute capability 8.0 or later.
    """
    if varlen_attn is None or device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
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
    found: Tensor = varlen_attn(
        queries.contiguous(), own_keys, own_values, *ends, scale=scaling, window_size=causal, enable_gqa=True
    )
    return found[None]


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


def _from_0(ends: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32, device=device)
