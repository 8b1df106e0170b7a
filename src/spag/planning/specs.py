"""Published numbers of models and machines: a model's shape from its config only, without weights, and datasheets.

Shapes cover the Llama family: grouped-query attention, a gated MLP, RMS norms. The shapes of the presets' models are
stored here, so that planning them needs neither torch nor the network.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from spag.algorithms.settings import LoraConfig
from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, ModelError, first_line
from spag.core.visible import counted
from spag.models.finding import adapter_base
from spag.models.refusals import check_reachable, library_errors
from spag.models.roles import models_of
from spag.storage.home import expanded
from spag.storage.machine import memory_bytes, usable_cores

GIB = 2**30
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "baichuan")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only model. ``heads``: those of queries. ``kv_size``: size of a token's keys, and of its values.
    ``positions``: its context length, if known. ``biases``: number in a layer's linear maps. ``head_norm``: size of the
    norm on each head's queries and keys (Qwen3); 0 without.
    """

    name: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    query_size: int
    kv_size: int
    positions: int | None
    tied: bool
    biases: int = 0
    head_norm: int = 0

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
    def layer(self) -> int:
        """Parameters of one layer's linear maps, without biases."""
        return sum(inputs * outputs for inputs, outputs in self.maps.values())

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts as the embedding."""
        layer = self.layer + self.biases + 2 * self.hidden + 2 * self.head_norm
        return self.layers * layer + self.hidden + self.embedding * (1 if self.tied else 2)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_size * self.heads // self.query_size

    def kv_bytes(self, number: int, gpus: int = 1) -> float:
        """Return the bytes of a token's keys and values in all layers, at ``number`` bytes per number, on each of
        ``gpus`` GPUs that share the heads: if these are fewer, each GPU has one.
        """
        return 2 * self.layers * self.kv_size * number / min(gpus, self.kv_heads)

    def adapter(self, lora: LoraConfig | None) -> int:
        """Return the parameters of a LoRA adapter: rank x (inputs + outputs) of each adapted map; 0 without."""
        if lora is None:
            return 0
        adapted = [sum(ends) for name, ends in self.maps.items() if name in lora.target_modules]
        return lora.rank * self.layers * sum(adapted or map(sum, self.maps.values()))


_PRESET_MODELS = (  # from each model's config.json on the Hugging Face hub
    ModelShape("meta-llama/Llama-2-7b-hf", 32_000, 4096, 11_008, 32, 32, 4096, 4096, 4096, tied=False),
    ModelShape("baichuan-inc/Baichuan2-13B-Base", 125_696, 5120, 13_696, 40, 40, 5120, 5120, 4096, tied=False),
    ModelShape("Qwen/Qwen3-1.7B", 151_936, 2048, 6144, 28, 16, 2048, 1024, 40_960, tied=True, head_norm=128),
    ModelShape("Qwen/Qwen3-4B", 151_936, 2560, 9728, 36, 32, 4096, 1024, 40_960, tied=True, head_norm=128),
    ModelShape("Qwen/Qwen3-4B-Base", 151_936, 2560, 9728, 36, 32, 4096, 1024, 32_768, tied=True, head_norm=128),
    ModelShape("smollm2-135m", 49_152, 576, 1536, 30, 9, 576, 192, 8192, tied=True),
)
KNOWN_SHAPES = {shape.name: shape for shape in _PRESET_MODELS}


def read_shape(name: str, *, trust_remote_code: bool = False) -> ModelShape:
    """Return the shape of a model: a preset's, a folder or a hub id; of adapters, their base model's. Raises
    ``ModelError``.
    """
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]
    if (base := adapter_base(expanded(models_of(name)[0]))) is not None:
        return replace(read_shape(base, trust_remote_code=trust_remote_code), name=name)
    from transformers import AutoConfig  # noqa: PLC0415 - slow to import, and presets' models need none

    import spag.models.baichuan  # noqa: F401, PLC0415 - registers its config

    fix = "give a folder that holds its config.json, which is all a plan needs (--set model.name=FOLDER)"
    with library_errors(lambda error: ModelError(f"{name}: its config cannot be read ({first_line(error)}); {fix}")):
        if not (place := expanded(name)).exists():
            check_reachable(name)
        config = AutoConfig.from_pretrained(str(place), trust_remote_code=trust_remote_code)
        return shape_of(config, name)


def shape_of(config: Any, name: str) -> ModelShape:
    """Return the shape of a transformers config. Raises ``ModelError`` outside the Llama family."""
    text = config.get_text_config(decoder=True)
    if (family := text.model_type) not in _FAMILIES:
        known = f"its shape is not known (known: {', '.join(_FAMILIES)})"
        raise ModelError(f"{name}: a plan of a {family} model cannot be made, {known}")
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_size = size * (getattr(text, "num_key_value_heads", None) or heads)
    biases = 2 * text.intermediate_size + text.hidden_size if getattr(text, "mlp_bias", False) else 0
    if getattr(text, "attention_bias", False) or family == "qwen2":  # its output map has none
        biases += heads * size + 2 * kv_size + (family != "qwen2") * text.hidden_size
    sizes = (text.vocab_size, text.hidden_size, text.intermediate_size, text.num_hidden_layers)
    positions = getattr(text, "max_position_embeddings", None)
    attention = (heads, heads * size, kv_size, positions)
    norm = size if family == "qwen3" else 0
    return ModelShape(name, *sizes, *attention, tied=bool(text.tie_word_embeddings), biases=biases, head_norm=norm)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU by its datasheet, or all of this machine's CPU cores. ``memory`` in bytes; ``flops``: bfloat16 operations
    per second, dense and accumulated in float32; ``bandwidth`` of its memory and of its ``link`` to other GPUs (NVLink,
    else PCIe; one direction), in bytes per second; ``full_flops``: float32 operations, 0 for half of ``flops``.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    link: float
    is_cpu: bool = False
    full_flops: float = 0.0


PCIE = 32e9
"""Bytes per second between a GPU and the machine's memory: PCIe 4.0 x16, one direction."""
HOST = 205e9
"""Bytes per second of the machine's memory: 8 channels of DDR4-3200, one socket of NVIDIA's DGX A100."""
_CORE = 78e9
"""float32 operations per second of one core with AVX2 (AMD EPYC), measured here, for machines without torch."""
GPUS = tuple(
    # datasheets write GB for about as many GiB; TFLOP/s with sparsity are halved; float32 is without TF32
    Device(name, gigabytes * GIB, half * 1e12, bandwidth * 1e9, link, full_flops=full * 1e12)
    for name, gigabytes, half, full, bandwidth, link in (
        ("A100-40", 40, 312, 19.5, 1555, 300e9),  # NVIDIA A100 datasheet, SXM4; NVLink 600 GB/s both ways
        ("A100-80", 80, 312, 19.5, 2039, 300e9),  # NVIDIA A100 datasheet, SXM4
        ("H100", 80, 989, 67, 3350, 450e9),  # NVIDIA H100 datasheet, SXM5; NVLink 900 GB/s both ways
        ("H200", 141, 989, 67, 4800, 450e9),  # NVIDIA H200 datasheet, SXM
        ("L40S", 48, 362, 91.6, 864, PCIE),  # NVIDIA L40S datasheet
        ("A10G", 24, 70, 35, 600, PCIE),  # NVIDIA A10G datasheet (as AWS quotes it)
        ("RTX-4090", 24, 165.2, 82.6, 1008, PCIE),  # NVIDIA Ada GPU architecture whitepaper, appendix A
        ("RTX-3090", 24, 71, 35.6, 936, PCIE),  # NVIDIA Ampere GA102 whitepaper, table 2
    )
)


def find_gpu(name: str) -> Device:
    """Return the GPU called ``name``, ignoring case, spaces and dashes. Raises ``ConfigError``."""
    for gpu in GPUS:
        if "".join(filter(str.isalnum, name.lower())) == gpu.name.lower().replace("-", ""):
            return gpu
    raise ConfigError(f"--gpu {name}: no such kind of GPU is known (known: {', '.join(gpu.name for gpu in GPUS)})")


def gpu_of(name: str, memory: float) -> Device:
    """Return the GPU that torch calls ``name``; an unknown one gets the speeds of the nearest in size."""
    words = set(re.split(r"[\W_]+", name.lower()))
    known = [gpu for gpu in GPUS if words.issuperset(re.sub(r"-\d0$", "", gpu.name.lower()).split("-"))]
    nearest = min(known or GPUS, key=lambda gpu: abs(gpu.memory - memory))
    return replace(nearest, name=name if known else f"{name} (speeds of {nearest.name})", memory=memory)


def at_hand(model: ModelConfig) -> tuple[Device, int]:
    """Return the device that this machine trains and plays on, and their number: its GPUs, else its CPU."""
    if found := gpus_at_hand(model):
        return found
    cores, (half, full) = usable_cores(), (_CORE, _CORE)
    with suppress(ImportError, OSError):  # torch may be missing; spag doctor reports why
        from spag.models.speed import core_speeds  # noqa: PLC0415 - slow to import

        half, full = core_speeds()
    sizes = float(memory_bytes()), half * cores, HOST, PCIE
    return Device(f"CPU, {counted(cores, 'core')}", *sizes, is_cpu=True, full_flops=full * cores), 1


def gpus_at_hand(model: ModelConfig) -> tuple[Device, int] | None:
    """Return the kind and number of this machine's GPUs; ``None`` if ``model`` has none."""
    found: list[Any] = []
    if model.device != "cpu":
        with suppress(ImportError, OSError):  # spag doctor reports why
            found = torch_gpus()
    count = 1 if model.names_one_device else len(found)
    return (gpu_of(found[0].name, float(found[0].total_memory)), count) if found else None


def torch_gpus() -> list[Any]:
    """Return torch's properties of each GPU; none if CUDA cannot start, as with a driver that does not match."""
    import torch  # noqa: PLC0415 - slow to import

    with suppress(RuntimeError):
        return [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())]
    return []
