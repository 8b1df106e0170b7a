"""Published numbers of models and GPUs: a model's shape from its config alone, without its weights, and datasheets.

Shapes cover the Llama family: grouped-query attention, a gated MLP, RMS norms. Those of the presets' models are kept here, so that planning
them needs neither torch nor the network.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spag.config.schema import LoraConfig
from spag.core.errors import ConfigError, ModelError
from spag.models.refusals import Refusals, told

GIB = 2**30
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "baichuan")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only model. ``biases`` of a layer's linear maps; ``head_norms``: queries and keys are normalised per head (Qwen3)."""

    name: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    tied: bool
    biases: int = 0
    head_norms: bool = False

    @property
    def query_size(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Size of a token's keys, and of its values."""
        return self.kv_heads * self.head_size

    @property
    def maps(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each linear map in a layer."""
        h, q, kv, f = self.hidden, self.query_size, self.kv_size, self.intermediate
        attention = {"q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h)}
        return attention | {"gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h)}

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the head."""
        return self.vocab * self.hidden

    @property
    def layer_matrices(self) -> int:
        """Parameters of one layer's linear maps, without biases."""
        return sum(inputs * outputs for inputs, outputs in self.maps.values())

    @property
    def layer(self) -> int:
        """All parameters of one layer."""
        return self.layer_matrices + self.biases + 2 * self.hidden + 2 * self.head_norms * self.head_size

    @property
    def matrices(self) -> int:
        """Parameters of all layers' linear maps, which every token passes through."""
        return self.layers * self.layer_matrices

    @property
    def parameters(self) -> int:
        """All parameters; a tied head is the embedding itself."""
        return self.layers * self.layer + self.hidden + self.embedding * (1 if self.tied else 2)

    def kv_bytes(self, number: int) -> int:
        """Return the bytes of a token's keys and values in all layers, at ``number`` bytes a number."""
        return 2 * self.layers * self.kv_size * number

    def adapter(self, lora: LoraConfig | None) -> int:
        """Return the parameters of a LoRA adapter: rank x (inputs + outputs) of each adapted map. Without ``lora``, 0."""
        if lora is None:
            return 0
        adapted = [sum(ends) for name, ends in self.maps.items() if name in lora.target_modules]
        return lora.rank * self.layers * sum(adapted or map(sum, self.maps.values()))


_PRESET_MODELS = (
    # each model's config.json on the Hugging Face hub
    ModelShape("meta-llama/Llama-2-7b-hf", 32_000, 4096, 11_008, 32, 32, 32, 128, tied=False),
    ModelShape("baichuan-inc/Baichuan2-13B-Base", 125_696, 5120, 13_696, 40, 40, 40, 128, tied=False),
    ModelShape("Qwen/Qwen3-1.7B", 151_936, 2048, 6144, 28, 16, 8, 128, tied=True, head_norms=True),
    ModelShape("smollm2-135m", 49_152, 576, 1536, 30, 9, 3, 64, tied=True),
)
KNOWN_SHAPES = {shape.name: shape for shape in _PRESET_MODELS}


def read_shape(name: str, *, trust_remote_code: bool = False) -> ModelShape:
    """Return the shape of a model: a preset's, a folder or a hub id. Raises ``ModelError``."""
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]
    from transformers import AutoConfig  # noqa: PLC0415 - slow to import, and presets' models need none

    import spag.models.baichuan  # noqa: F401, PLC0415 - registers its config

    fix = "give a folder that holds its config.json, which is all a plan needs (--set model.name=FOLDER)"
    with Refusals(lambda error: ModelError(f"{name}: its config cannot be read ({told(error, 120)}); {fix}")):
        config = AutoConfig.from_pretrained(str(Path(name).expanduser()), trust_remote_code=trust_remote_code)
        return shape_of(config, name)


def shape_of(config: Any, name: str) -> ModelShape:
    """Return the shape that a transformers config describes. Raises ``ModelError`` outside the Llama family."""
    text = config.get_text_config(decoder=True)
    family, heads = text.model_type, text.num_attention_heads
    if family not in _FAMILIES:
        raise ModelError(f"{name}: a plan of a {family} model cannot be made, its shape is not known (known: {', '.join(_FAMILIES)})")
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    biases = 2 * text.intermediate_size + text.hidden_size if getattr(text, "mlp_bias", False) else 0
    if getattr(text, "attention_bias", False) or family == "qwen2":
        biases += (heads + 2 * kv_heads) * head_size + (family != "qwen2") * text.hidden_size
    return ModelShape(
        name=name,
        vocab=text.vocab_size,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        tied=bool(text.tie_word_embeddings),
        biases=biases,
        head_norms=family == "qwen3",
    )


@dataclass(frozen=True, slots=True)
class GPU:
    """A kind of GPU. ``memory`` in bytes; ``flops``: dense bfloat16 operations a second, accumulated in float32, without sparsity.

    ``bandwidth`` of its memory and of its ``link`` in a machine (NVLink, else PCIe; one direction) in bytes a second.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    link: float


GPUS = tuple(
    GPU(name, gigabytes * GIB, teraflops * 1e12, bandwidth * 1e9, link * 1e9)  # datasheets write GB for about as many GiB
    for name, gigabytes, teraflops, bandwidth, link in (
        ("A100-40", 40, 312, 1555, 300),  # NVIDIA A100 datasheet, SXM4; NVLink 600 GB/s both ways
        ("A100-80", 80, 312, 2039, 300),  # NVIDIA A100 datasheet, SXM4
        ("H100", 80, 989, 3350, 450),  # NVIDIA H100 datasheet, SXM5; TFLOP/s with sparsity, halved; NVLink 900 GB/s both ways
        ("H200", 141, 989, 4800, 450),  # NVIDIA H200 datasheet, SXM; TFLOP/s with sparsity, halved
        ("L40S", 48, 362, 864, 32),  # NVIDIA L40S datasheet; TFLOP/s with sparsity, halved; PCIe 4.0 x16
        ("A10G", 24, 70, 600, 32),  # NVIDIA A10G datasheet (as AWS quotes it); PCIe 4.0 x16
        ("RTX-4090", 24, 165.2, 1008, 32),  # NVIDIA Ada GPU architecture whitepaper, appendix A
        ("RTX-3090", 24, 71, 936, 32),  # NVIDIA Ampere GA102 whitepaper, table 2
    )
)


def find_gpu(name: str) -> GPU:
    """Return the GPU called ``name``, whatever its case, spaces and dashes. Raises ``ConfigError``."""
    for gpu in GPUS:
        if "".join(filter(str.isalnum, name.lower())) == gpu.name.lower().replace("-", ""):
            return gpu
    raise ConfigError(f"--gpu {name}: no such kind of GPU is known (known: {', '.join(gpu.name for gpu in GPUS)})")
