"""What changed since a stage ran: its settings, its outputs, and the files of the model that it began with.

Of files, size, time and hash are recorded. A file with unchanged size and time counts as the same; if only the time
changed, it is hashed again, since copying a run folder changes all times.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from spag.storage.store import file_digest


class FileRecord(TypedDict):
    """A file. ``size`` in bytes, ``mtime_ns`` its modification time, ``digest`` its contents' hash, maybe alone."""

    size: int
    mtime_ns: int
    digest: str


Outputs = dict[str, FileRecord]
"""Records by path in the run folder, or by the name of a file outside."""


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted settings that differ, with both values: ``arena.tasks was 2, is 3``."""
    changed = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed += changes(before, after, f"{prefix}{key}.")
        elif before != after:
            changed.append(f"{prefix}{key} was {before!r}, is {after!r}")
    return changed


def record_outputs(folder: Path, names: Iterable[str]) -> Outputs:
    """Return the record of the existing files and folders ``names`` in ``folder``. Raises ``DataError``."""
    found = (path for name in names for path in _files(folder / name))
    return record_files({path.relative_to(folder).as_posix(): path for path in found})


def record_files(files: Mapping[str, Path | str]) -> Outputs:
    """Return the record of files outside the run folder, or of digests, by the names given. Raises ``DataError``."""
    return {name: _record(path) for name, path in files.items()}


def changed_files(files: Mapping[str, Path | str], known: Mapping[str, FileRecord]) -> list[str]:
    """Return the names (``MODEL/FILE``) of files that appeared, disappeared or changed since they were recorded.

    A model that was not recorded, or has no files here, as on another machine, counts as unchanged.
    """
    models = set(map(_model_of, files)) & set(map(_model_of, known))
    names = sorted(name for name in {*files, *known} if _model_of(name) in models)
    return [name for name in names if name not in files or name not in known or not _is_same(files[name], known[name])]


def _model_of(name: str) -> str:
    """Return the model that a file belongs to: its folder, or a GGUF file itself (a folder may contain several)."""
    return name if name.endswith(".gguf") else name.rpartition("/")[0]


def lost_outputs(folder: Path, outputs: Mapping[str, FileRecord]) -> list[str]:
    """Return the recorded files that no longer exist."""
    return [name for name in outputs if not (folder / name).is_file()]


def replaced_outputs(folder: Path, outputs: Mapping[str, FileRecord]) -> list[str]:
    """Return the recorded files whose contents changed. Raises ``DataError`` for one that cannot be read."""
    there = {name: path for name in outputs if (path := folder / name).is_file()}
    return [name for name, path in there.items() if not _is_same(path, outputs[name])]


def outputs_digest(outputs: Mapping[str, FileRecord]) -> str:
    """Return a hash of the contents of all recorded files."""
    digests = sorted((name, known["digest"]) for name, known in outputs.items())
    return hashlib.sha256(repr(digests).encode()).hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _record(path: Path | str) -> FileRecord:
    if isinstance(path, str):
        return {"size": 0, "mtime_ns": 0, "digest": path}
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "digest": file_digest(path)}


def _is_same(path: Path | str, known: FileRecord) -> bool:
    if isinstance(path, str):
        return path == known["digest"]
    stat = path.stat()
    if stat.st_size != known["size"]:
        return False
    return stat.st_mtime_ns == known["mtime_ns"] or file_digest(path) == known["digest"]
