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

from spag.core.errors import ModelError, first_line
from spag.models.baichuan import BaichuanConfig, BaichuanForCausalLM
from spag.models.finding import BAICHUAN, CONFIG, GENERATION_CONFIG
from spag.models.refusals import library_errors
from spag.models.roles import read_description
from spag.models.spm import fast_tokenizer
from spag.models.weights import refuse_unless_equal
from spag.storage.store import new_folder, sync_files, write_json

_SPECIAL_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": None}
"""Defaults of the published tokenizer's code."""
_FIX = "download the folder again"


def convert_model(source: Path, output: Path, note: Callable[[str], None] = lambda _: None) -> None:
    """Convert the folder ``source`` into the new folder ``output``, complete or absent; progress goes to ``note``.

    Raises ``ModelError`` for another model or missing files, ``RunError`` for an output in use, and ``StorageError``.
    """
    config = _read_config(source)
    with new_folder(output, "an import") as folder:
        write_json(folder / CONFIG, config)
        if (source / GENERATION_CONFIG).is_file():
            write_json(folder / GENERATION_CONFIG, read_description(source / GENERATION_CONFIG, dict, _FIX))
        note("converting the tokenizer")
        fault = f"{source}: its tokenizer is broken"
        with library_errors(lambda error: ModelError(f"{fault}: {first_line(error)}; {_FIX}")):
            _convert_tokenizer(source, folder)
        _convert_weights(source, folder, BaichuanConfig.from_dict(config), note)
        sync_files(folder)


def _read_config(source: Path) -> dict[str, Any]:
    """Return the model's config without its references to code. Raises ``ModelError`` for other models."""
    file = source / CONFIG
    if not file.is_file():
        raise ModelError(f"{source}: this folder has no config.json, so it is not a model")
    config = read_description(file, dict[str, Any], _FIX)
    if config.get("model_type") != BAICHUAN:
        known = "only Baichuan2-13B is converted; other models load as they are, or from a revision with safetensors"
        raise ModelError(f"{file}: model_type is {config.get('model_type')!r}; {known}")
    with library_errors(lambda error: ModelError(f"{file}: {first_line(error)}")):
        BaichuanConfig.from_dict(config)
    of_code = ("auto_map", "tokenizer_class", "_from_model_config")
    return {key: value for key, value in config.items() if key not in of_code}


def _convert_tokenizer(source: Path, folder: Path) -> None:
    files = [source / name for name in ("special_tokens_map.json", "tokenizer_config.json")]
    given: dict[str, Any] = {}
    for file in files:
        given |= read_description(file, dict[str, Any], _FIX) if file.is_file() else {}
    tokens = {role: given.get(role) or default for role, default in _SPECIAL_TOKENS.items()}
    options = {role: token["content"] if isinstance(token, dict) else token for role, token in tokens.items() if token}
    if "model_max_length" in given:
        options["model_max_length"] = given["model_max_length"]
    tokenizer = fast_tokenizer(source / "tokenizer.model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **options).save_pretrained(
        folder
    )


def _convert_weights(source: Path, folder: Path, config: BaichuanConfig, note: Callable[[str], None]) -> None:
    """Save the weights of ``source`` as safetensors. Memory-mapped files keep one at a time in memory."""
    files = sorted(source.glob("*.safetensors")) or sorted(source.glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(f"{source}: has no weights (*.safetensors or pytorch_model*.bin)")
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
        fix = "get the file from its publisher"
        raise ModelError(f"{file}: this pickle contains more than tensors, so it is not read; {fix}") from error
    except (RuntimeError, EOFError, ValueError, TypeError, SafetensorError) as error:
        raise ModelError(f"{file}: cannot be read as weights: {first_line(error)}; download it again") from error


def _check_weights(source: Path, weights: Mapping[str, Tensor], config: BaichuanConfig) -> None:
    """Raise ``ModelError`` unless ``weights`` are exactly those of ``config``."""
    with torch.device("meta"):
        expected = {name: weight.shape for name, weight in BaichuanForCausalLM(config).state_dict().items()}
    shapes = [(key, weights[key].shape, shape) for key, shape in expected.items() if key in weights]
    mismatched = [(key, found, wanted) for key, found, wanted in shapes if found != wanted]
    missing, unexpected = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    refuse_unless_equal(str(source), "a Baichuan2-13B", missing, unexpected, mismatched)
