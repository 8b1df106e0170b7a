"""The identity of a model: its files, and a hash of their contents alone. Imports no torch."""

import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub

from spag.core.errors import ModelError
from spag.models.finding import EMBEDDED_NAME, adapter_base, resolve_model
from spag.models.refusals import check_reachable
from spag.models.roles import read_roles
from spag.storage.home import expanded
from spag.storage.store import file_digest

_NEVER_READ = frozenset({".bin", ".h5", ".md", ".msgpack", ".pt", ".pth"})  # pickled weights and texts about the model


def weights_digest(name: str) -> str:
    """Return a short hash of a model's files, an adapter's base included, or of a hub model's name and revision.

    Whole files are hashed, so a retrained checkpoint differs and a copy does not. Loading the model reads the same
    bytes again, then from the page cache. Raises ``ModelError`` for a path that is no model.
    """
    return hashlib.sha256(json.dumps(_contents(name)).encode()).hexdigest()[:16]


def _contents(name: str) -> list[Any]:
    if roles := read_roles(name):
        return [[role, _contents(adapter)] for role, adapter in roles.items()]
    folder = Path(resolve_model(name))
    if not folder.is_dir():
        return _revision(name)
    files = [[file.name, file_digest(file)] for file in _folder_files(folder)]
    base = adapter_base(folder)
    return files + (_contents(base) if base is not None else [])


def _revision(name: str) -> list[Any]:
    try:  # its folder in the hub's cache is named after the commit
        check_reachable(name)
        return [name, Path(huggingface_hub.hf_hub_download(name, "config.json")).parent.name]
    except (OSError, ValueError, ModelError):
        return [name]  # loading it reports what is wrong


def _folder_files(folder: Path) -> list[Path]:
    """Return the files in the folder of a model that determine its output, in order."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    return [file for file in files if file.suffix not in _NEVER_READ]


def model_files(name: str) -> dict[str, Path]:
    """Return the files of a local model and of its adapter's base, by ``MODEL/FILE``; none for a hub id and for the
    embedded model. Nothing is converted or downloaded. Raises ``ModelError`` for a broken adapter.
    """
    if name == EMBEDDED_NAME:
        return {}
    if roles := read_roles(name):
        return {known: file for adapter in roles.values() for known, file in model_files(adapter).items()}
    place = expanded(name)
    if not place.is_dir():
        return {name: place} if place.is_file() else {}
    base = adapter_base(place)
    return {f"{name}/{file.name}": file for file in _folder_files(place)} | (model_files(base) if base else {})
