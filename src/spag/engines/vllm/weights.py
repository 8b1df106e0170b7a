"""New weights of adapters as folders, the form that vLLM's processes accept.

They are in shared memory if it has room, else in the temporary folder. The newest weights of each adapter stay until
replaced: an update that names only some weights takes the others from them. ``transfer.py`` handles the base model's.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from spag.core.errors import EngineError, first_line
from spag.models.adapters import ADAPTER_WEIGHTS
from spag.models.finding import ADAPTER_CONFIG

SHARED_MEMORY = Path("/dev/shm")
SHARED_SHARE = 0.25
"""Share of the free shared memory that one update takes, at most."""


class AdapterFolders:
    """The weights of a pool's ``adapters``, numbered from 1; ``dtype`` is the engine's."""

    def __init__(self, adapters: tuple[str, ...], dtype: str) -> None:
        self._current: list[Path] = [Path(), *map(Path, adapters)]
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._folders: dict[int, tempfile.TemporaryDirectory[str]] = {}

    def write(self, weights: Mapping[str, torch.Tensor], adapter: int) -> Path:
        """Return a folder with all weights, updated with ``weights``. Raises ``EngineError`` for a mismatch."""
        current = self._current[adapter]
        try:
            own = load_file(current / ADAPTER_WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"{current / ADAPTER_WEIGHTS}: cannot be read: {first_line(error)}") from error
        names = {name: name.replace(".default", "") for name in weights}  # peft's files leave the adapter's name out
        check_shapes(weights, {name: own[in_file].shape for name, in_file in names.items() if in_file in own})
        own |= {names[name]: value.detach().to("cpu", self._dtype).contiguous() for name, value in weights.items()}
        size = sum(value.nbytes for value in own.values())
        folder = tempfile.TemporaryDirectory(prefix="spag-weights-", dir=place_for(size))
        shutil.copy(current / ADAPTER_CONFIG, folder.name)
        save_file(own, Path(folder.name) / ADAPTER_WEIGHTS)
        self._current[adapter] = Path(folder.name)
        if old := self._folders.pop(adapter, None):
            old.cleanup()
        self._folders[adapter] = folder
        return Path(folder.name)

    def close(self) -> None:
        """Remove all folders."""
        for folder in self._folders.values():
            folder.cleanup()
        self._folders.clear()


def check_shapes(weights: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Raise ``EngineError`` for a weight whose name or shape is not in ``shapes``."""
    for name, value in weights.items():
        if shapes.get(name) != value.shape:
            raise EngineError(f"{name}: no such weight of that shape")


def place_for(size: int) -> Path | None:
    """Return the best place for this many bytes: shared memory if it has room, else ``None``, the temporary folder."""
    roomy = SHARED_MEMORY.is_dir() and size < SHARED_SHARE * shutil.disk_usage(SHARED_MEMORY).free
    return SHARED_MEMORY if roomy else None
