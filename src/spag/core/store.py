"""Crash-safe files: JSON lines that are appended, files that are replaced, and a lock on a folder.

``JsonlStore`` appends: one ``write`` and one ``fsync`` a call, so a row is on disk before it counts; a torn last line (a crash in
mid-write) is cut off when the file is opened again. ``write_atomically`` writes a file beside the old one and renames it. ``FolderLock``
keeps a second process out of a run folder; the kernel frees it however the process dies.
"""

import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from spag.core.errors import DataError, RunError, StorageError

_DIGEST_PART = 2**30
_DIGEST_BLOCK = 2**22


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` of writing ``path`` into a ``StorageError`` of one line."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}; free space or fix rights, then run again to resume") from error


def cut_torn_line(path: Path) -> int:
    """Cut an unfinished last line off ``path``; return how many bytes were cut. A missing file is fine. Raises ``StorageError``."""
    with storage_errors(path):
        size = path.stat().st_size if path.exists() else 0
        if not size:  # an empty file cannot be mapped
            return 0
        with path.open("rb+") as stream:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                end = data.rfind(b"\n") + 1
            if end < size:
                stream.truncate(end)
        return size - end


class JsonlStore(AbstractContextManager["JsonlStore"]):
    """An append-only JSON-lines file of one kind of row. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self.torn_bytes = cut_torn_line(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def append(self, *rows: Any) -> None:
        """Write ``rows`` and wait until the disk has them. Raises ``StorageError``; the file then still ends with a whole row."""
        data = b"".join(_line(row) for row in rows)
        size = os.fstat(self._descriptor).st_size
        with storage_errors(self.path):
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
                os.fsync(self._descriptor)
            except OSError:
                with suppress(OSError):  # the next opening cuts it off otherwise
                    os.ftruncate(self._descriptor, size)
                raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(row: Any) -> bytes:
    """Return ``row`` as a line of JSON without the fields that are ``None``."""
    data = msgspec.json.encode(row)
    if b":null" in data:  # a field, or a text that holds these characters and comes out the same
        data = msgspec.json.encode(_without_none(msgspec.to_builtins(row)))
    return data + b"\n"


def _without_none(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _without_none(value) for key, value in plain.items() if value is not None}
    return [_without_none(value) for value in plain] if isinstance(plain, list | tuple) and plain and isinstance(plain[0], dict) else plain


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` that takes its place when the block ends well, and is removed when it does not."""
    beside = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


@contextmanager
def folder_beside(folder: Path) -> Iterator[Path]:
    """Make an empty folder beside ``folder``, to be filled and renamed to it, so that ``folder`` is complete or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def folder_identity(folder: Path) -> list[list[Any]]:
    """Return the names, sizes and times of change of a folder's files, which identify it wherever it is moved."""
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(folder.iterdir()) if file.is_file()]


def file_digest(path: Path) -> str:
    """Return a short hash of a file's contents: SHA-256, and of a file above 1 GiB that of its parts' hashes.

    The parts are hashed side by side, so that the weights of a 7B model take seconds. Raises ``DataError`` when the file cannot be read.
    """
    try:
        with path.open("rb") as stream, ThreadPoolExecutor() as pool:
            starts = range(0, max(1, os.fstat(stream.fileno()).st_size), _DIGEST_PART)
            parts = list(pool.map(partial(_part_digest, stream.fileno()), starts))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    whole = parts[0] if len(parts) == 1 else hashlib.sha256(b"".join(parts)).digest()
    return whole.hex()[:16]


def _part_digest(descriptor: int, start: int) -> bytes:
    digest, end = hashlib.sha256(), start + _DIGEST_PART
    while start < end and (block := os.pread(descriptor, min(_DIGEST_BLOCK, end - start), start)):
        digest.update(block)  # lets other threads run
        start += len(block)
    return digest.digest()


def write_atomically(path: Path, data: str | bytes) -> None:
    """Replace ``path`` by ``data``: a reader sees the old file or the new one, never a part."""
    with _replacing(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Replace ``path`` by JSON lines of ``rows``, written as they come; the old file stays when a row cannot be made."""
    with _replacing(path) as stream:
        for row in rows:
            stream.write(_line(row))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by indented JSON that a person can read."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


class FolderLock:
    """Keep other processes out of ``folder`` while the context is open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"

    def __enter__(self) -> Self:
        with storage_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("a+")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.seek(0)
            holder = self._stream.read().strip() or "unknown"
            self._stream.close()
            raise RunError(f"{self._path.parent}: another process (pid {holder}) is working in this run folder") from None
        self._stream.truncate(0)
        self._stream.write(str(os.getpid()))
        self._stream.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
