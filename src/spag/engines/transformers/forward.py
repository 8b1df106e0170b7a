"""A model's forward pass over a slot cache, tried on a few tokens when it is opened.

Most architectures follow the masks and positions that we pass; others build masks of their own from a row's length, or
keep a state instead of keys and values. Their replies would come from another distribution without any error, so each
model is compared with its own plain forward pass, and refused if the two differ.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from spag.core.errors import EngineError, ModelError, first_line, is_out_of_memory
from spag.engines.transformers.slots import ALL_LAYERS, ATTENTION, SlotCache, attention_mask, attention_windows
from spag.models.adapters import use_adapter
from spag.models.packed_attention import UNSUPPORTED, short_length
from spag.storage.machine import trim_heap

_LONG, _SHORT = 9, 4
"""Tokens of the two rows that are tried: of unequal length, so that one of them is padded."""
_TOLERANCE, _HALF_TOLERANCE = 1e-2, 0.3
"""Largest difference relative to the spread of the logits; in half precision, that of rounding is a few percent."""


def positions_of(config: PreTrainedConfig) -> int | None:
    """Return the longest prompt and reply together, in tokens, that slots hold; ``None``: any length."""
    text = config.get_text_config(decoder=True)
    return short_length(config) or getattr(text, "max_position_embeddings", None)


class SlotModel:
    """``model`` with the LoRA adapter ``adapter``, if it has several. Raises ``ModelError`` for a model that computes
    something else over slots than in a plain forward pass.
    """

    def __init__(self, model: PreTrainedModel, adapter: str | None = None) -> None:
        self._model, self._adapter = model, adapter
        text = model.config.get_text_config(decoder=True)
        self.layers: int = text.num_hidden_layers
        self.positions = positions_of(model.config)
        # Functions other than torch's add the mask to the scores.
        self._adds_mask = model.config._attn_implementation not in ("sdpa", ATTENTION)
        if reason := self._why_not():
            what = f"the transformers engine cannot cache this model ({reason})"
            raise ModelError(f"{text._name_or_path}: {what}; play it with vLLM")

    @torch.inference_mode()
    def _why_not(self) -> str | None:
        """Try the model; return why it does not work over slots, ``None`` if it does."""
        model = self._model
        vocabulary = len(model.get_input_embeddings().weight)
        ids = [at * vocabulary // _LONG for at in range(_LONG)]
        try:
            self._windows = attention_windows(model)
            self._use_adapter()
            plain = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0]
            expected = plain[[_LONG - 1, _SHORT - 1]].float()
            if not self._adds_mask:
                model.set_attn_implementation(ATTENTION)
            cache, rows = SlotCache(2, self.layers), (ids, ids[:_SHORT])
            self.logits(cache, [0, 1], [0, 0], [row[:-1] for row in rows])
            found = self.logits(cache, [0, 1], [len(row) - 1 for row in rows], [row[-1:] for row in rows]).float()
        except UNSUPPORTED as error:
            if is_out_of_memory(error):
                what = "out of memory at a model's first tokens; use a smaller model or another dtype"
                raise EngineError(what) from error
            return first_line(error, 120)
        spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
        tolerance = _TOLERANCE if plain.dtype is model.dtype is torch.float32 else _HALF_TOLERANCE
        differs = (found - expected).norm(dim=-1) > tolerance * spread  # false for NaN: ``poll`` reports broken weights
        return "it does not follow the masks of slots" if differs.any() else None

    def logits(
        self, cache: SlotCache, slots: list[int], starts: Sequence[int], fed: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Feed each slot its tokens from its start on; return the last position's logits, (B, V)."""
        model, device, capacity = self._model, self._model.device, cache.plan.capacity
        positions = cache.plan_forward(slots, starts, [len(tokens) for tokens in fed], device)
        longest = positions.shape[1]
        ids = torch.tensor([[0] * (longest - len(tokens)) + [*tokens] for tokens in fed], device=device)
        masks = {kind: self._mask(positions, cache.plan.width, window) for kind, window in self._windows.items()}
        self._use_adapter()
        output = model(
            input_ids=ids,
            attention_mask=masks.get(ALL_LAYERS, masks),
            position_ids=positions.clamp(min=0),
            past_key_values=cache.cache,
            use_cache=True,
            # an index copies the last states; given a view, torch copies a frozen head's weights for each row
            logits_to_keep=torch.tensor([longest - 1], device=device),
        )
        if device.type == "cpu" and cache.plan.capacity > capacity:
            trim_heap()  # the smaller keys and values that were replaced leave gaps
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _mask(self, positions: torch.Tensor, width: int, window: int | None) -> torch.Tensor:
        seen = attention_mask(positions, width, window)
        if not self._adds_mask:
            return seen
        dtype = self._model.dtype
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)

    def _use_adapter(self) -> None:
        if self._adapter is not None:
            use_adapter(self._model, self._adapter)
