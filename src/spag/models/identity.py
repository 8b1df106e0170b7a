"""What tells a model from every other: the contents of its files, wherever they lie and whenever they were written. Imports no torch."""

import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub

from spag.core.store import file_digest
from spag.models.finding import adapter_base, resolve_model

_NEVER_READ = frozenset({".bin", ".h5", ".md", ".msgpack", ".pt", ".pth"})  # pickled weights and texts about the model


def model_contents(name: str) -> list[Any]:
    """Return name and hash of each file of a model, those of an adapter's base too; a hub model's name and revision.

    Whole files are hashed: a retrained checkpoint differs wherever its weights do, and a copy does not. The same bytes are read again when
    the model is loaded, then from memory. Raises ``ModelError`` for a path that is no model.
    """
    folder = Path(resolve_model(name))
    if not folder.is_dir():
        return _revision(name)
    files = [[file.name, file_digest(file)] for file in _files(folder)]
    base = adapter_base(folder)
    return files + (model_contents(base) if base is not None else [])


def weights_digest(name: str) -> str:
    """Return a short hash of ``model_contents``."""
    return hashlib.sha256(json.dumps(model_contents(name)).encode()).hexdigest()[:16]


def checkpoint_record(folder: Path) -> list[list[Any]]:
    """Return name, size, time of change and hash of each file of a checkpoint, as JSON: what ``is_recorded`` compares.

    Raises ``DataError`` for a file that cannot be read.
    """
    return [[*_stamp(file), file_digest(file)] for file in _files(folder)]


def is_recorded(folder: Path, record: object) -> bool:
    """Return whether ``folder`` is the checkpoint that ``record`` is of. ``record`` may be any JSON; one of another shape is of no folder.

    Contents are read only of files whose size or time of change differs, as in a copy, so asking about a folder that nobody touched takes
    no time. Raises ``DataError`` for a file that cannot be read.
    """
    files = _files(folder) if folder.is_dir() else []
    rows = record if isinstance(record, list) else []
    if not files or len(files) != len(rows):
        return False
    return all(isinstance(row, list) and len(row) == 4 and _same(file, row) for file, row in zip(files, rows, strict=True))


def _same(file: Path, row: list[Any]) -> bool:
    name, size, changed = _stamp(file)
    if [name, size] != row[:2]:
        return False
    return bool(changed == row[2] or file_digest(file) == row[3])


def _stamp(file: Path) -> tuple[str, int, int]:
    stat = file.stat()
    return file.name, stat.st_size, stat.st_mtime_ns


def _files(folder: Path) -> list[Path]:
    """Return the files that decide what a model says, in order."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    return [file for file in files if file.suffix not in _NEVER_READ]


def _revision(name: str) -> list[Any]:
    try:  # its folder in the hub's cache is named after the commit
        return [name, Path(huggingface_hub.hf_hub_download(name, "config.json")).parent.name]
    except (OSError, ValueError):
        return [name]  # loading it says what is wrong
