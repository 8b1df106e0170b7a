"""Baichuan2-13B as a transformers model: LLaMA's layers with ALiBi in place of rotary positions, and a head of unit
vectors.

The published code does not run on transformers 5, and its head rewrites its weights in evaluation mode. Here the
weights keep their published names and values (``convert.py`` makes the folder), and none of the published code runs.
The differences from LLaMA:

- queries, keys and values come from one matrix, ``W_pack``;
- a key's distance is subtracted from its score (arXiv 2108.12409), see ``Distances``;
- the head divides each token's vector by its length in every forward pass, in training and evaluation (arXiv
  2309.10305, section 2.2); the published code does so in training, and once, permanently, in evaluation.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, eager_attention_forward

from spag.models.finding import BAICHUAN

_RADIX = 256
"""Positions are split into digits of this base, which bfloat16 holds exactly."""
_TERMS = 8
"""Entries added to each query and key for distances."""
_SMALL_HIDDEN = 4096
_FIRST_VOCABULARY = 64_000


class BaichuanConfig(LlamaConfig):  # type: ignore[misc]
    """The ``config.json`` of Baichuan2-13B. Raises ``ValueError`` for other designs of the same model type."""

    model_type = BAICHUAN
    base_model_tp_plan = None
    vocab_size: int = 125_696  # transformers also makes a config of defaults only: those of Baichuan2-13B
    hidden_size: int = 5120
    intermediate_size: int = 13_696
    num_hidden_layers: int = 40
    num_attention_heads: int = 40
    max_position_embeddings: int = 4096

    def __post_init__(self, **kwargs: Any) -> None:
        if self.hidden_size == _SMALL_HIDDEN:
            raise ValueError("7B Baichuan models have rotary positions; only Baichuan2-13B is supported")
        if self.vocab_size == _FIRST_VOCABULARY:
            fault = "this is a first-generation Baichuan, without the normalised head"
            raise ValueError(f"{fault}; only Baichuan2-13B is supported")
        super().__post_init__(**kwargs)


class Distances(nn.Module):
    """ALiBi as part of the scalar product: ``slope * (key position - query position)`` for each head.

    A score is ``scaling * query . key``. Queries and keys get 8 extra entries each, whose product is the distance term.
    Any attention function and cache then works unchanged, also for packed rows, since each key carries its position.
    bfloat16 can hold neither positions above 256 nor slopes exactly; with two digits per position and two terms per
    slope, the sum is exact to 16 bits.
    """

    def __init__(self, heads: int, scaling: float) -> None:
        super().__init__()
        # The device is explicit, since transformers builds models on the meta device.
        slopes = torch.tensor(alibi_slopes(heads), device="cpu") / scaling
        coarse = slopes.bfloat16().float()
        fine = (slopes - coarse).bfloat16().float()
        # (H, 1, 4): a constant, not a buffer
        self._weights = torch.stack([_RADIX * coarse, coarse, _RADIX * fine, fine], dim=-1)[:, None]

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the additional entries of queries and of keys, each (B, H, T, 8), for ``position_ids`` (B, T); B may
        be 1 for all. ``hidden``, of any shape, determines the device.
        """
        digits = torch.stack([position_ids // _RADIX, position_ids % _RADIX], dim=-1)
        digits = digits.repeat(1, 1, 2).float()[:, None]  # (B, 1, T, 4)
        weights = self._weights.to(hidden.device)
        shape = (len(position_ids), len(weights), position_ids.shape[1], _TERMS // 2)
        digits, weights = digits.expand(shape), weights.expand(shape)
        return torch.cat([weights, digits], dim=-1), torch.cat([digits, -weights], dim=-1)


def alibi_slopes(heads: int) -> list[float]:
    """Return the decrease of each head's scores per token of distance (arXiv 2108.12409, section 3).

    They form the geometric sequence 2^(-8/n), 2^(-16/n), ... for the largest power of two n up to ``heads``; further
    heads take every other slope of the sequence for 2n.
    """
    power = 2 ** int(math.log2(heads))
    further = [2 ** (-8 * index / (2 * power)) for index in range(1, 2 * (heads - power), 2)]
    return [2 ** (-8 * index / power) for index in range(1, power + 1)] + further


class BaichuanAttention(nn.Module):
    """Multi-head attention with distances; takes the arguments of transformers' ``LlamaAttention``."""

    def __init__(self, config: BaichuanConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.num_key_value_groups, self.scaling, self.is_causal = 1, self.head_dim**-0.5, True
        self.W_pack = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (B, T, hidden) for ``hidden_states`` (B, T, hidden), and the attention weights if computed.

        ``position_embeddings``: what ``Distances`` returns. ``attention_mask``: transformers', (B, 1, T, keys).
        """
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.W_pack(hidden_states).chunk(3, dim=-1))
        query, key = (_extended(part, more) for part, more in zip((query, key), position_embeddings, strict=True))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        value = F.pad(value, (0, _TERMS))  # kernels want values as long as keys
        options |= {"dropout": 0.0, "scaling": self.scaling}
        attended, weights = attend(self, query, key, value, attention_mask, **options)
        return self.o_proj(attended[..., : self.head_dim].flatten(-2)), weights


def _extended(states: Tensor, more: Tensor) -> Tensor:
    """Append ``more``, (B or 1, H, T, 8), to ``states`` (B, H, T, head_dim)."""
    return torch.cat([states, more.to(states.dtype).expand(len(states), -1, -1, -1)], dim=-1)


class BaichuanModel(LlamaModel):  # type: ignore[misc]
    """Llama's decoder with Baichuan's attention: biases by distance (ALiBi) instead of rotations."""

    config: BaichuanConfig
    _can_record_outputs: ClassVar = {"hidden_states": LlamaDecoderLayer, "attentions": BaichuanAttention}

    def __init__(self, config: BaichuanConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.layers):
            layer.self_attn = BaichuanAttention(config, index)
        heads = config.num_attention_heads
        self.rotary_emb = Distances(heads, (config.hidden_size // heads) ** -0.5)
        self.post_init()


class NormHead(nn.Linear):
    """A linear map with rows normalised to length 1."""

    def forward(self, input: Tensor) -> Tensor:  # torch's argument name
        """Return (..., V) for ``input`` (..., hidden)."""
        lengths = torch.linalg.vector_norm(self.weight, dim=-1, dtype=torch.float32).clamp(min=1e-12)
        logits: Tensor = super().forward(input)
        return logits.div(lengths).to(logits.dtype)


class BaichuanForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """``AutoModelForCausalLM`` returns it for a ``config.json`` of model type baichuan."""

    config: BaichuanConfig
    config_class = BaichuanConfig

    def __init__(self, config: BaichuanConfig) -> None:
        super().__init__(config)
        self.model = BaichuanModel(config)
        self.lm_head = NormHead(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


AutoConfig.register(BAICHUAN, BaichuanConfig)
AutoModelForCausalLM.register(BaichuanConfig, BaichuanForCausalLM)
