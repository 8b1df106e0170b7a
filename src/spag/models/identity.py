"""The identity of a model: a hash of its files' contents, independent of paths and times. Imports no torch."""

import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub

from spag.core.errors import ModelError
from spag.models.files import folder_files
from spag.models.finding import adapter_base, resolve_model
from spag.models.hub import check_reachable
from spag.models.roles import read_roles
from spag.storage.store import file_digest


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
    files = [[file.name, file_digest(file)] for file in folder_files(folder)]
    base = adapter_base(folder)
    return files + (_contents(base) if base is not None else [])


def _revision(name: str) -> list[Any]:
    try:  # its folder in the hub's cache is named after the commit
        check_reachable(name)
        return [name, Path(huggingface_hub.hf_hub_download(name, "config.json")).parent.name]
    except (OSError, ValueError, ModelError):
        return [name]  # loading it reports what is wrong
