"""New weights as files, which is how vLLM's processes take them: a checkpoint for the base model, a folder for each
adapter.

The files lie in shared memory where that has room, else in the temporary folder. The newest of each model stay there
until the next ones or the end: an update that names some weights takes the others from them.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from spag.core.errors import EngineError, first_line
from spag.models.adapters import ADAPTER_WEIGHTS
from spag.models.finding import ADAPTER_CONFIG
from spag.models.loading import load_model, no_progress_bars

SHARED_MEMORY = Path("/dev/shm")
SHARED_SHARE = 0.25
"""Share of the free shared memory that one update's files take, at most."""


class WeightFiles:
    """The weights that a pool serves: of ``arguments["model"]`` (0) and of ``adapters`` (from 1 on)."""

    def __init__(self, arguments: Mapping[str, Any], adapters: tuple[str, ...]) -> None:
        self._current: list[Path | str] = [arguments["model"], *adapters]
        self._dtype: str = arguments["dtype"]
        self._trust_remote_code: bool = arguments["trust_remote_code"]
        self._model: PreTrainedModel | None = None
        self._folders: dict[int, tempfile.TemporaryDirectory[str]] = {}

    def write(self, weights: Mapping[str, torch.Tensor], adapter: int) -> Path:
        """Return a folder with all weights, ``weights`` among them. Raises ``EngineError`` for a misfit."""
        dtype: torch.dtype = getattr(torch, self._dtype)
        given = {name: value.detach().to("cpu", dtype).contiguous() for name, value in weights.items()}
        folder = self._write_adapter(given, adapter) if adapter else self._write_model(given)
        self._current[adapter] = Path(folder.name)
        if old := self._folders.pop(adapter, None):
            old.cleanup()
        self._folders[adapter] = folder
        return Path(folder.name)

    def close(self) -> None:
        """Remove all files."""
        for folder in self._folders.values():
            folder.cleanup()
        self._folders.clear()

    @no_progress_bars()
    def _write_model(self, weights: dict[str, torch.Tensor]) -> "tempfile.TemporaryDirectory[str]":
        model = self._model = self._model or self._empty_model()
        own = dict(model.named_parameters())
        _check(weights, {name: value.shape for name, value in own.items()})
        if len(weights) < len(own):
            rest = load_model(
                str(self._current[0]), dtype=self._dtype, device="cpu", trust_remote_code=self._trust_remote_code
            )
            weights = dict(rest.named_parameters()) | weights
        folder = _new_folder(weights)
        model.save_pretrained(folder.name, state_dict=weights)
        return folder

    def _empty_model(self) -> PreTrainedModel:
        """Return the model without memory for its weights: it knows their names here and in files."""
        config = AutoConfig.from_pretrained(self._current[0], trust_remote_code=self._trust_remote_code)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=self._trust_remote_code)
        return model

    def _write_adapter(self, weights: dict[str, torch.Tensor], adapter: int) -> "tempfile.TemporaryDirectory[str]":
        current = Path(self._current[adapter])
        try:
            own = load_file(current / ADAPTER_WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"{current / ADAPTER_WEIGHTS}: cannot be read: {first_line(error)}") from error
        names = {name: name.replace(".default", "") for name in weights}  # peft's files leave the adapter's name out
        _check(weights, {name: own[in_file].shape for name, in_file in names.items() if in_file in own})
        own |= {names[name]: value for name, value in weights.items()}
        folder = _new_folder(own)
        shutil.copy(current / ADAPTER_CONFIG, folder.name)
        save_file(own, Path(folder.name) / ADAPTER_WEIGHTS)
        return folder


def _check(weights: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size]) -> None:
    for name, value in weights.items():
        if shapes.get(name) != value.shape:
            raise EngineError(f"{name}: no such weight of that shape")


def _new_folder(weights: Mapping[str, torch.Tensor]) -> "tempfile.TemporaryDirectory[str]":
    size = sum(value.nbytes for value in weights.values())
    roomy = SHARED_MEMORY.is_dir() and size < SHARED_SHARE * shutil.disk_usage(SHARED_MEMORY).free
    return tempfile.TemporaryDirectory(prefix="spag-weights-", dir=SHARED_MEMORY if roomy else None)
