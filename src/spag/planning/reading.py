"""A model's shape from its config alone: a preset's model, a folder, a GGUF file, or a hub id. No weights are read."""

from pathlib import Path
from typing import Any

from spag.core.errors import ModelError, first_line
from spag.planning.shapes import ModelShape, known_shape

_KINDS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "baichuan")


def read_shape(name: str, *, trust_remote_code: bool = False) -> ModelShape:
    """Return the shape of the model called ``name``, of an adapter folder that of its base.

    Raises ``ModelError`` when its config cannot be found, and for designs that ``ModelShape`` does not cover.
    """
    known = known_shape(name)
    if known is not None:
        return known
    from spag.models.loading import adapter_base  # noqa: PLC0415 - imports torch, and presets' models need none

    base = adapter_base(Path(name).expanduser())
    if base is not None:
        return read_shape(base, trust_remote_code=trust_remote_code)
    return shape_of(_config(name, trust_remote_code), name)


def _config(name: str, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig  # noqa: PLC0415 - slow to import, and presets' models need none

    path = Path(name).expanduser()
    source = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    try:
        return AutoConfig.from_pretrained(str(path.parent) if source else str(path), trust_remote_code=trust_remote_code, **source)
    except (OSError, ValueError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise ModelError(f"{name}: this model brings its own code; review it, then set model.trust_remote_code=true") from error
        fix = "give a folder that holds its config.json, which is all a plan needs (--set model.name=FOLDER)"
        raise ModelError(f"{name}: its config cannot be read ({first_line(error, 120)}); {fix}") from error


def shape_of(config: Any, name: str) -> ModelShape:
    """Return the shape that a transformers config describes. Raises ``ModelError`` for designs that ``ModelShape`` does not cover."""
    text = config.get_text_config(decoder=True)
    kind = text.model_type
    if kind not in _KINDS:
        raise ModelError(f"{name}: a plan of a {kind} model cannot be made, its parameters are not known (known: {', '.join(_KINDS)})")
    heads = text.num_attention_heads
    bias = bool(getattr(text, "attention_bias", False))
    return ModelShape(
        name=name,
        vocab=text.vocab_size,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
        tied=bool(text.tie_word_embeddings),
        qkv_bias=bias or kind == "qwen2",
        output_bias=bias,
        mlp_bias=bool(getattr(text, "mlp_bias", False)),
        head_norms=kind == "qwen3",
        positions=getattr(text, "max_position_embeddings", None) or getattr(text, "model_max_length", None),
        own_code=kind == "baichuan",
    )
