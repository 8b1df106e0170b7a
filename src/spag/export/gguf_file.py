"""One GGUF file from a transformers folder, for llama.cpp, Ollama, LM Studio, and ``spag play``.

Llama and Qwen3 are written, of which llama.cpp asks nothing beyond names and, for Llama, another order of the rows of queries and keys.
Tensors are read, converted and written one by one, so that memory holds one tensor, not the model.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_VERSION,
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    TensorNameMap,
    get_tensor_name_map,
)
from gguf.quants import quant_shape_to_byte_shape, quantize
from numpy.typing import NDArray
from safetensors import safe_open

from spag.core.errors import ModelError
from spag.core.store import storage_errors
from spag.export.vocabulary import Vocabulary, add_vocabulary, read_vocabulary

Json = Mapping[str, Any]


class GgufType(StrEnum):
    """How matrices are stored; vectors (norms) stay in float32. Q8_0: 8 bits, with a scale for every 32 weights."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"


_FILE_TYPES = {
    GgufType.F32: LlamaFileType.ALL_F32,
    GgufType.F16: LlamaFileType.MOSTLY_F16,
    GgufType.BF16: LlamaFileType.MOSTLY_BF16,
    GgufType.Q8_0: LlamaFileType.MOSTLY_Q8_0,
}
_ARCHITECTURES = {"LlamaForCausalLM": MODEL_ARCH.LLAMA, "Qwen3ForCausalLM": MODEL_ARCH.QWEN3}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor: where it is read, and how it is written. heads: how many heads its rows are reordered for; 0 keeps the order."""

    file: Path
    source: str
    name: str
    shape: tuple[int, ...]
    stored: GGMLQuantizationType
    heads: int


def write_gguf(folder: Path, target: Path, kind: GgufType, name: str) -> None:
    """Write the model of the transformers ``folder`` as the GGUF file ``target``; ``name`` is the title it carries.

    Raises ``ModelError`` for an architecture, tokenizer or weight that does not fit, ``StorageError`` when the disk is full.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = _architecture(folder, config)
    vocabulary = read_vocabulary(folder, config["vocab_size"])
    tensors = list(_tensors(folder, config, architecture, kind))
    writer = GGUFWriter(None, MODEL_ARCH_NAMES[architecture])
    _add_fields(writer, config, vocabulary, kind, name)
    for tensor in tensors:
        shape = quant_shape_to_byte_shape(tensor.shape, tensor.stored) if tensor.stored is not GGMLQuantizationType.F32 else tensor.shape
        dtype = np.dtype(np.float32 if tensor.stored is GGMLQuantizationType.F32 else np.uint8)
        size = int(np.prod(shape)) * dtype.itemsize
        writer.add_tensor_info(tensor.name, shape, dtype, size, raw_dtype=tensor.stored)
    beside = target.with_name(f".{target.name}.new")
    with storage_errors(target):
        try:
            writer.write_header_to_file(beside)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in tensors:
                writer.write_tensor_data(_data(tensor))
            writer.close()
            beside.replace(target)
        finally:
            writer.close()
            beside.unlink(missing_ok=True)


def _architecture(folder: Path, config: Json) -> MODEL_ARCH:
    """Return GGUF's architecture. Raises ``ModelError`` for what would need more than names and order."""
    named = (config.get("architectures") or ["a model without a name"])[0]
    known = _ARCHITECTURES.get(named)
    if known is None:
        raise ModelError(f"{named}: --gguf writes {' and '.join(_ARCHITECTURES)} only; for others use llama.cpp's convert_hf_to_gguf.py")
    strange = [
        f"{option}={config[option]}"
        for option, usual in {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "use_sliding_window": False}.items()
        if config.get(option, usual) != usual
    ]
    rope = (config.get("rope_parameters") or {}).get("rope_type", "default")
    if rope != "default":
        strange.append(f"rope_type={rope}")
    if strange:
        raise ModelError(f"{named} with {', '.join(strange)}: not what --gguf writes; use llama.cpp's convert_hf_to_gguf.py on the folder")
    return known


def _add_fields(writer: GGUFWriter, config: Json, vocabulary: Vocabulary, kind: GgufType, name: str) -> None:
    head_size = _head_size(config)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(_FILE_TYPES[kind])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_vocabulary(writer, vocabulary)


def _head_size(config: Json) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _tensors(folder: Path, config: Json, architecture: MODEL_ARCH, kind: GgufType) -> Iterator[_Tensor]:
    names = get_tensor_name_map(architecture, config["num_hidden_layers"])
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for source in weights.keys():  # noqa: SIM118 - an open file, not a dict
                if source == "lm_head.weight" and config.get("tie_word_embeddings"):
                    continue
                shape = tuple(weights.get_slice(source).get_shape())
                yield _Tensor(file, source, _name(names, source), shape, _stored(shape, kind), _heads(source, config, architecture))


def _name(names: TensorNameMap, source: str) -> str:
    name = names.get_name(source, try_suffixes=(".weight", ".bias"))
    if name is None:
        raise ModelError(f"{source}: GGUF has no name for this tensor; use llama.cpp's convert_hf_to_gguf.py on the folder")
    return str(name)


def _stored(shape: Sequence[int], kind: GgufType) -> GGMLQuantizationType:
    """Return the type of one tensor: vectors in float32, and rows that are no multiple of 32 long in float16, as in llama.cpp."""
    if len(shape) == 1:
        return GGMLQuantizationType.F32
    fits = kind is not GgufType.Q8_0 or shape[-1] % 32 == 0
    return GGMLQuantizationType[kind if fits else GgufType.F16]


def _heads(source: str, config: Json, architecture: MODEL_ARCH) -> int:
    if architecture is MODEL_ARCH.LLAMA and source.endswith("q_proj.weight"):
        return int(config["num_attention_heads"])
    if architecture is MODEL_ARCH.LLAMA and source.endswith("k_proj.weight"):
        return int(config["num_key_value_heads"])
    return 0


def _data(tensor: _Tensor) -> NDArray[Any]:
    """Read one tensor and return it as it is written."""
    with safe_open(tensor.file, framework="pt") as weights:
        values: NDArray[np.float32] = weights.get_tensor(tensor.source).float().numpy()
    if tensor.heads:
        values = interleave_halves(values, tensor.heads)
    if tensor.stored is GGMLQuantizationType.F16 and np.abs(values).max(initial=0.0) > np.finfo(np.float16).max:
        raise ModelError(f"{tensor.source}: holds weights too large for float16; use --gguf BF16")
    stored: NDArray[Any] = quantize(values, tensor.stored)
    return stored


def interleave_halves(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of a query or key matrix, (heads * head_size, hidden), from transformers' rotary order to llama.cpp's.

    A rotation turns pairs of rows of a head: transformers pairs row i with row i + head_size / 2, llama.cpp 2 i with 2 i + 1.
    """
    rows, hidden = values.shape
    return values.reshape(heads, 2, rows // heads // 2, hidden).swapaxes(1, 2).reshape(rows, hidden)
