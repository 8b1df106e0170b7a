"""One-time conversion of the published Baichuan2-13B into a loadable folder: safetensors, a fast tokenizer, no code.

The published folder cannot be loaded directly: its weights are pickles, and its tokenizer's code fails on transformers
from 4.34 on. Only this module reads pickles, on explicit request and with ``weights_only``: torch then builds tensors
and refuses anything else. No code of the folder runs. Weights keep names, values and dtype.
"""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from spag.core.errors import DataError, ModelError, RunError, first_line
from spag.models.baichuan import BaichuanConfig, BaichuanForCausalLM
from spag.models.finding import BAICHUAN
from spag.models.refusals import Refusals, described
from spag.models.spm import fast_tokenizer
from spag.storage.disk import storage_errors
from spag.storage.jsonfile import read_json
from spag.storage.store import folder_beside, write_json

_SPECIAL_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
"""Defaults of the published tokenizer's code."""


def convert_model(source: Path, output: Path, note: Callable[[str], None] = lambda _: None) -> None:
    """Convert the folder ``source`` into the new folder ``output``, which is complete or absent; progress goes to
    ``note``.

    Raises ``ModelError`` for a folder of another model or with missing files, ``RunError`` for an output in use, and
    ``StorageError``.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunError(
            f"{output}: is there already, and an import overwrites nothing; name another --output or remove it"
        )
    config = _read_config(source)
    with storage_errors(output), folder_beside(output) as beside:
        folder = beside / "model"
        folder.mkdir()
        write_json(folder / "config.json", config)
        if (source / "generation_config.json").is_file():
            write_json(folder / "generation_config.json", _read_json(source / "generation_config.json"))
        note("converting the tokenizer")
        _convert_tokenizer(source, folder)
        _convert_weights(source, folder, BaichuanConfig.from_dict(config), note)
        for file in folder.iterdir():
            file.chmod(0o644)  # safetensors makes files readable by the owner only
        if output.exists():
            output.rmdir()
        folder.rename(output)


def _read_config(source: Path) -> dict[str, Any]:
    """Return the model's config without its references to code. Raises ``ModelError`` for other models."""
    file = source / "config.json"
    if not file.is_file():
        raise ModelError(f"{source}: this folder holds no config.json, so it is not a model")
    config = _read_json(file)
    if config.get("model_type") != BAICHUAN:
        known = "only Baichuan2-13B is converted; other models load as they are, or from a revision with safetensors"
        raise ModelError(f"{file}: model_type is {config.get('model_type')!r}; {known}")
    with Refusals(lambda error: ModelError(f"{file}: {described(error)}")):
        BaichuanConfig.from_dict(config)
    return {
        key: value for key, value in config.items() if key not in ("auto_map", "tokenizer_class", "_from_model_config")
    }


def _convert_tokenizer(source: Path, folder: Path) -> None:
    described: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (source / name).is_file():
            described |= _read_json(source / name)
    tokens = {
        role: described.get(role) or _SPECIAL_TOKENS.get(role)
        for role in ("unk_token", "bos_token", "eos_token", "pad_token")
    }
    texts = {role: token["content"] if isinstance(token, dict) else token for role, token in tokens.items() if token}
    length = {"model_max_length": described["model_max_length"]} if "model_max_length" in described else {}
    PreTrainedTokenizerFast(
        tokenizer_object=fast_tokenizer(source / "tokenizer.model"),
        clean_up_tokenization_spaces=False,
        **texts,
        **length,
    ).save_pretrained(folder)


def _convert_weights(source: Path, folder: Path, config: BaichuanConfig, note: Callable[[str], None]) -> None:
    """Save the weights of ``source`` as safetensors. Files are memory-mapped, so that memory holds one file at a
    time.
    """
    files = sorted(source.glob("*.safetensors")) or sorted(source.glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(f"{source}: holds no weights (*.safetensors or pytorch_model*.bin)")
    weights: dict[str, Tensor] = {}
    for file in files:
        note(f"reading {file.name}")
        weights |= _read_weights(file)
    _check_weights(source, weights, config)
    note("writing safetensors")
    save_torch_state_dict(weights, folder)


def _read_weights(file: Path) -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        return dict(torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)))
    except UnpicklingError as error:
        raise ModelError(
            f"{file}: this pickle holds more than tensors, so it is not read; get the file from its publisher"
        ) from error
    except (RuntimeError, EOFError, ValueError, TypeError, SafetensorError) as error:
        raise ModelError(f"{file}: cannot be read as weights: {first_line(error)}; download it again") from error


def _check_weights(source: Path, weights: Mapping[str, Tensor], config: BaichuanConfig) -> None:
    """Raise ``ModelError`` unless ``weights`` are exactly those of ``config``."""
    with torch.device("meta"):
        expected = {name: weight.shape for name, weight in BaichuanForCausalLM(config).state_dict().items()}
    if missing := sorted(expected.keys() - weights.keys()):
        raise ModelError(
            f"{source}: {len(missing)} weights are missing ({missing[0]}, ...); a file is missing, "
            "download the folder again"
        )
    if unknown := sorted(weights.keys() - expected.keys()):
        raise ModelError(f"{source}: {len(unknown)} weights are not of a Baichuan2-13B ({unknown[0]}, ...)")
    for name, shape in expected.items():
        if weights[name].shape != shape:
            raise ModelError(
                f"{source}: {name} has shape {tuple(weights[name].shape)}, by config.json it should be {tuple(shape)}"
            )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return read_json(file, dict[str, Any])
    except DataError as error:
        raise ModelError(str(error)) from error
