"""Code as a model's repository brings it: Baichuan2-13B's design written out, with a head that rewrites its weights in
evaluation mode.
"""

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_own import OwnConfig


class Attention(nn.Module):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.heads, size = config.num_attention_heads, config.hidden_size
        self.W_pack = nn.Linear(size, 3 * size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        length, size = hidden.shape[1], hidden.shape[2] // self.heads
        query, key, value = self.W_pack(hidden).unflatten(-1, (3, self.heads, size)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / size**0.5
        # six heads: the four slopes of four heads, then the first and third of eight
        slopes = torch.tensor([2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0, 2**-1.0, 2**-3.0])
        place = torch.arange(length)
        scores = scores + slopes[:, None, None] * (place[None, :] - place[:, None])
        scores = scores.masked_fill(place[None, :] > place[:, None], -torch.inf)
        return self.o_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Layers(nn.Module):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class RewritingHead(nn.Linear):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.weight.data = functional.normalize(self.weight)
        return functional.linear(hidden, functional.normalize(self.weight))


class OwnForCausalLM(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config: OwnConfig) -> None:
        super().__init__(config)
        self.model = Layers(config)
        self.lm_head = RewritingHead(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: object) -> CausalLMOutputWithPast:
        hidden = self.model.embed_tokens(input_ids)
        for layer in self.model.layers:
            hidden = layer(hidden)
        return CausalLMOutputWithPast(logits=self.lm_head(self.model.norm(hidden)))
