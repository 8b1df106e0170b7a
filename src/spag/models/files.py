"""The files that determine what a local model says. Imports no torch."""

from pathlib import Path

from spag.models.finding import EMBEDDED_NAME, adapter_base
from spag.models.roles import read_roles
from spag.storage.home import expanded

_NEVER_READ = frozenset({".bin", ".h5", ".md", ".msgpack", ".pt", ".pth"})  # pickled weights and texts about the model


def folder_files(folder: Path) -> list[Path]:
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
    return {f"{name}/{file.name}": file for file in folder_files(place)} | (model_files(base) if base else {})
