"""The outputs of a finished stage, and the files of the model that it began with: size, time and hash of each, to
detect files that were lost or replaced since.

A file with unchanged size and time counts as the same; if only the time changed, it is hashed again, since copying a
run folder changes all times.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

from spag.storage.store import file_digest


class FileRecord(TypedDict):
    """A file. ``size`` in bytes, ``mtime_ns`` its modification time, ``digest`` its contents' hash."""

    size: int
    mtime_ns: int
    digest: str


Outputs = dict[str, FileRecord]
"""Records by path in the run folder, or by the name of a file outside."""


def record_outputs(folder: Path, names: Iterable[str]) -> Outputs:
    """Return the record of the existing files and folders ``names`` in ``folder``. Raises ``DataError``."""
    found = (path for name in names for path in _files(folder / name))
    return {path.relative_to(folder).as_posix(): _record(path) for path in found}


def record_files(files: Mapping[str, Path]) -> Outputs:
    """Return the record of files outside the run folder, by the names given to them. Raises ``DataError``."""
    return {name: _record(path) for name, path in files.items()}


def changed_files(files: Mapping[str, Path], known: Mapping[str, FileRecord]) -> list[str]:
    """Return the names (``MODEL/FILE``) of files that came, went or changed since they were recorded.

    A model that was not recorded, or of which no file is there, as on another machine, has not changed.
    """
    models = _folders(files) & _folders(known)
    names = sorted(name for name in {*files, *known} if _folder(name) in models)
    return [name for name in names if name not in files or name not in known or not _is_same(files[name], known[name])]


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _folders(names: Iterable[str]) -> set[str]:
    return set(map(_folder, names))


def lost_outputs(folder: Path, outputs: Mapping[str, FileRecord]) -> list[str]:
    """Return the recorded files that no longer exist."""
    return [name for name in outputs if not (folder / name).is_file()]


def replaced_outputs(folder: Path, outputs: Mapping[str, FileRecord]) -> list[str]:
    """Return the recorded files whose contents changed. Raises ``DataError`` for one that cannot be read."""
    there = ((name, folder / name, known) for name, known in outputs.items())
    return [name for name, path, known in there if path.is_file() and not _is_same(path, known)]


def outputs_digest(outputs: Mapping[str, FileRecord]) -> str:
    """Return a hash of the contents of all recorded files."""
    return hashlib.sha256(
        repr(sorted((name, known["digest"]) for name, known in outputs.items())).encode()
    ).hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _record(path: Path) -> FileRecord:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "digest": file_digest(path)}


def _is_same(path: Path, known: FileRecord) -> bool:
    stat = path.stat()
    if stat.st_size != known["size"]:
        return False
    return stat.st_mtime_ns == known["mtime_ns"] or file_digest(path) == known["digest"]
