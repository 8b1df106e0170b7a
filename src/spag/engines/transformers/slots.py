"""A key/value cache of fixed slots, one sequence per slot: sequences of different lengths decode together and share
prefixes.

Slot index equals token position (sequences are left-aligned), so attention masks, including sliding windows, are exact
and nothing is moved for padding. A finished sequence stays in its slot until another takes it: the next turn of the
same game finds its prefix there, and a new game copies the rules' prefix from any slot. Memory: ``2 * layers * slots *
kv_heads * capacity * head_dim`` numbers, allocated as sequences grow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from spag.core.errors import ModelError
from spag.models.packed_attention import attend_by_products, uses_products, window_of
from spag.models.tokens import shared_length

GROWTH = 128
ATTENTION = "spag_slots"
ALL_LAYERS = "all"


@dataclass(slots=True)
class Plan:
    """The slots and positions that a forward pass reads and writes. Shared by all layers.

    rows: (B,) slots; positions: (B, Q) where each query's key is written; width: how many positions are read; capacity:
    positions per slot, the last one for writes of padding; slots: how many there are.
    """

    slots: int
    capacity: int = GROWTH
    rows: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    positions: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    width: int = 0
    leading: bool = False  # rows are 0..B-1, so a view is enough


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, each (slots, kv_heads, capacity, head_dim)."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.is_initialized: bool = False
        self.keys: torch.Tensor
        self.values: torch.Tensor
        self._plan = plan

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write ``key_states`` and ``value_states``, (B, kv_heads, Q, head_dim), at the plan's positions; return its
        rows, (B, kv_heads, width, head_dim).
        """
        plan = self._plan
        if not self.is_initialized or self.keys.shape[2] != plan.capacity:
            self._allocate(key_states, value_states)
        rows = plan.rows[:, None]
        self.keys[rows, :, plan.positions] = key_states.transpose(1, 2)
        self.values[rows, :, plan.positions] = value_states.transpose(1, 2)
        if plan.leading:
            return self.keys[: len(plan.rows), :, : plan.width], self.values[: len(plan.rows), :, : plan.width]
        return self.keys[plan.rows, :, : plan.width], self.values[plan.rows, :, : plan.width]

    def _allocate(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        old = (self.keys, self.values) if self.is_initialized else None
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        shape = (self._plan.slots, keys.shape[1], self._plan.capacity)
        self.keys, self.values = keys.new_zeros((*shape, keys.shape[-1])), values.new_zeros((*shape, values.shape[-1]))
        if old is not None:
            kept = old[0].shape[2] - 1  # the position for padding stays behind
            self.keys[:, :, :kept], self.values[:, :, :kept] = old[0][:, :, :kept], old[1][:, :, :kept]


class SlotCache:
    """The cache passed to the model. ``tokens``: the ids whose keys and values each slot holds."""

    def __init__(self, slots: int, layers: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(slots)]
        self.plan = Plan(slots)
        self.cache = Cache(layers=[SlotLayer(self.plan) for _ in range(layers)])

    def plan_forward(
        self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int], device: torch.device
    ) -> torch.Tensor:
        """Plan a forward pass that feeds ``counts[i]`` tokens, left-padded to the longest, into slot ``rows[i]`` from
        position ``starts[i]``. Returns the position ids, (B, Q); padding has -1.
        """
        count, start = torch.tensor(counts), torch.tensor(starts)
        longest = int(count.max())
        self.plan.width = int((count + start).max())
        while self.plan.capacity < self.plan.width + 1:
            self.plan.capacity += GROWTH
        column = torch.arange(longest) - (longest - count)[:, None]
        positions = torch.where(column >= 0, start[:, None] + column, -1).to(device)
        self.plan.rows = torch.tensor(rows, device=device)
        self.plan.positions = positions.where(positions >= 0, self.plan.capacity - 1)
        self.plan.leading = list(rows) == list(range(len(rows)))
        return positions

    def assign(self, wanted: Sequence[Sequence[int]], free: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return for each of the texts ``wanted`` the slot of ``free`` with the longest shared prefix, and how many of
        its tokens the slot holds after copying from others: never all, since the last is fed for its logits.
        """
        texts = list(enumerate(wanted))
        pairs = [(shared_length(self.tokens[slot], ids), index, slot) for index, ids in texts for slot in free]
        slots, held, left = dict[int, int](), dict[int, int](), set(free)
        for length, index, slot in sorted(pairs, key=lambda pair: -pair[0]):
            if index not in slots and slot in left:
                slots[index], held[index] = slot, length
                left.remove(slot)
        for index, ids in texts:
            lengths = [shared_length(kept, ids) for kept in self.tokens]  # recomputed for each: a copy changes a slot
            donor = max(range(len(lengths)), key=lengths.__getitem__)
            if lengths[donor] > held[index]:
                self.copy(donor, slots[index], lengths[donor])
                held[index] = lengths[donor]
        return [slots[index] for index, _ in texts], [min(held[index], len(ids) - 1) for index, ids in texts]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` into slot ``target``."""
        for states in self._states:
            states[target, :, :length] = states[source, :, :length]
        self.tokens[target] = self.tokens[source][:length]

    def swap(self, one: int, other: int) -> None:
        """Exchange two slots."""
        for states in self._states:
            states[[one, other]] = states[[other, one]]
        self.tokens[one], self.tokens[other] = self.tokens[other], self.tokens[one]

    @property
    def _states(self) -> list[torch.Tensor]:
        """Keys and values of all layers but those that reuse an earlier layer's."""
        return [states for layer in self.cache.layers if layer.is_initialized for states in (layer.keys, layer.values)]


def grouped_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return (B, Q, heads, value_dim) for ``query`` (B, heads, Q, head_dim), ``key`` (B, kv_heads, W, head_dim),
    ``value`` (B, kv_heads, W, value_dim) and ``attention_mask`` (B, 1, Q, W), True = may be seen.

    Heads that share keys become queries of one head; the stock function copies the whole cache once per head.
    """
    if attention_mask is None:  # called from outside the engine: plain causal attention
        attended, _ = sdpa_attention_forward(module, query, key, value, None, scaling=scaling, **options)
        return attended, None
    if uses_products(query, attention_mask):
        added = torch.where(attention_mask, 0.0, -torch.inf)
        return attend_by_products(query, key, value, added, scaling).transpose(1, 2), None
    batch, heads, queries, size = query.shape
    shared = heads // key.shape[1]
    folded = query.reshape(batch, key.shape[1], shared * queries, size)
    mask = attention_mask.repeat(1, 1, shared, 1)
    attended = functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(batch, heads, queries, value.shape[-1]).transpose(1, 2), None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def attention_mask(positions: torch.Tensor, width: int, window: int | None = None) -> torch.Tensor:
    """Return the mask (B, 1, Q, width), True = may be seen, of queries at ``positions`` (B, Q): every slot position up
    to the query's, within ``window`` if given.

    Padding (position -1) sees position 0, so that its softmax is defined; its results are never used.
    """
    slot = torch.arange(width, device=positions.device)
    query = positions.clamp(min=0)[:, :, None]
    seen = slot <= query
    if window is not None:
        seen &= slot > query - window
    return seen[:, None]


def attention_windows(model: PreTrainedModel) -> dict[str, int | None]:
    """Return the attention window of each kind of layer (``None``: full attention), or of ``ALL_LAYERS`` if all are
    alike.

    Raises ``ValueError`` for architectures that a slot cache cannot hold, ``ModelError`` for a broken config.
    """
    config = model.config.get_text_config(decoder=True)
    # GPT-Neo has a name of its own for the kinds; its local layers take their window from a row's length
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ())
    unknown = kinds - {"full_attention", "sliding_attention", "global"}
    if unknown or type(model).__module__.startswith("transformers_modules"):
        raise ValueError(", ".join(sorted(unknown)) or "code of its own")
    window = window_of(config, kinds)
    if window is not None and (not isinstance(window, int) or window < 1):
        fix = "it must be a number of tokens, or null"
        raise ModelError(f"{config._name_or_path}: sliding_window is {window!r} in config.json; {fix}")
    if "sliding_attention" in kinds:
        return {kind: window if kind == "sliding_attention" else None for kind in kinds}
    return {ALL_LAYERS: window}
