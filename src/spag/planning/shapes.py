"""The shape of a decoder-only model, and how many parameters that makes: arithmetic on the numbers of its ``config.json``.

Covers the Llama family: attention with grouped keys, a gated MLP of three matrices, RMS norms. The shapes of the presets' models are kept
here, so that a plan of them needs no network.
"""

from dataclasses import dataclass

from spag.config.schema import LoraConfig


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model's config says.

    ``head_norms``: queries and keys are normalised per head (Qwen3); ``own_code``: the model brings code of its own, so training
    packs no rows and computes all logits (``spag.training.policy``); ``positions``: the longest text it takes.
    """

    name: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    positions: int | None = None
    own_code: bool = False

    @property
    def query_size(self) -> int:
        """Numbers that all heads' queries of a token have."""
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Numbers that the keys of a token have, and again its values."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the head."""
        return self.vocab * self.hidden

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer's linear maps, without biases."""
        attention = 2 * self.hidden * self.query_size + 2 * self.hidden * self.kv_size
        return attention + 3 * self.hidden * self.intermediate

    @property
    def layer(self) -> int:
        """All parameters of one layer."""
        biases = self.qkv_bias * (self.query_size + 2 * self.kv_size) + self.output_bias * self.hidden
        biases += self.mlp_bias * (2 * self.intermediate + self.hidden)
        return self.layer_matrices + biases + 2 * self.hidden + self.head_norms * 2 * self.head_size

    @property
    def matrices(self) -> int:
        """Parameters of the linear maps of all layers, which every token passes through."""
        return self.layers * self.layer_matrices

    @property
    def parameters(self) -> int:
        """All parameters; the head counts only where it is not the embedding itself."""
        return self.layers * self.layer + self.hidden + self.embedding * (1 if self.tied else 2)

    def kv_bytes(self, number: int) -> int:
        """Bytes that a token's keys and values take in all layers, with ``number`` bytes a number."""
        return 2 * self.layers * self.kv_size * number

    def adapter(self, lora: LoraConfig) -> int:
        """Parameters of a LoRA adapter: rank x (inputs + outputs) of each adapted linear map; all of them unless names are given."""
        h, q, kv, f = self.hidden, self.query_size, self.kv_size, self.intermediate
        ends = {
            "q_proj": h + q,
            "k_proj": h + kv,
            "v_proj": h + kv,
            "o_proj": q + h,
            "gate_proj": h + f,
            "up_proj": h + f,
            "down_proj": f + h,
        }
        named = lora.target_modules
        chosen = ends if isinstance(named, str) else {name: size for name, size in ends.items() if name in named}
        return lora.rank * self.layers * sum((chosen or ends).values())


KNOWN = (
    # each model's config.json on the Hugging Face hub
    ModelShape("meta-llama/Llama-2-7b-hf", 32_000, 4096, 11_008, 32, 32, 32, 128, tied=False, positions=4096),
    ModelShape("baichuan-inc/Baichuan2-13B-Base", 125_696, 5120, 13_696, 40, 40, 40, 128, tied=False, positions=4096, own_code=True),
    ModelShape("Qwen/Qwen3-1.7B", 151_936, 2048, 6144, 28, 16, 8, 128, tied=True, head_norms=True, positions=40_960),
    ModelShape("smollm2-135m", 49_152, 576, 1536, 30, 9, 3, 64, tied=True, positions=8192),
)
"""The presets' models."""


def known_shape(name: str) -> ModelShape | None:
    """Return the shape of a preset's model."""
    return next((shape for shape in KNOWN if shape.name == name), None)
