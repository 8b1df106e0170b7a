"""Crash-safe files and folders: complete or absent.

``write_atomically`` writes a temporary file in the same folder and renames it. ``cut_torn_line`` makes a file that is
appended to (``episodes.py``) end with a complete row, whatever a crash has left.
"""

import codecs
import glob
import hashlib
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from spag.core.errors import DataError, RunError
from spag.storage.disk import is_file_there, locked_if_free, open_locked, real_output, storage_errors
from spag.storage.jsonfile import MAX_LINE, PADDING, decode, encode, encode_line, is_torn

_DIGEST_PART = 2**30
_DIGEST_BLOCK = 2**22
_UNFINISHED = ".spag-"
"""Follows the name of a folder that is being filled."""
_RANDOM = 8
"""Characters that ``tempfile`` adds to a name."""
_NEW_S = 60
"""A folder younger than this, in seconds, may not have been locked by its process yet."""
_HEAD = 64
"""How many bytes at the beginning of a file show whether it contains rows."""
_NOT_OURS = "{}: does not {} with a JSON Lines row, so nothing is added to it; choose another output"


def cut_torn_line(path: Path, start: bytes = b'{"') -> None:
    """Make a file of JSON lines ready for appending. A missing file is fine.

    An incomplete last row, as after a crash, is cut off; a complete one gets its missing line break. ``start``: the
    beginning of every row, checked if it would be the only row. A file that begins or ends with anything else is not
    ours and stays as it is: ``DataError``.
    """
    if not is_file_there(path):
        return
    with storage_errors(path), path.open("rb+") as stream:
        begin, tail = _unterminated(stream)
        stream.seek(0)
        if begin and stream.read(_HEAD).removeprefix(codecs.BOM_UTF8).lstrip(PADDING + b"\n")[:1] not in (b"", b"{"):
            raise DataError(_NOT_OURS.format(path, "begin"))
        if len(tail) <= MAX_LINE and is_torn(tail, b"" if begin else start):
            stream.truncate(begin)
        elif tail:
            row = tail.rstrip(PADDING)
            _check_object(row, path)
            stream.truncate(begin + len(row))
            stream.seek(begin + len(row))
            stream.write(b"\n")


def _unterminated(stream: BinaryIO) -> tuple[int, bytes]:
    """Return (position, text) of what follows the last line break."""
    size = stream.seek(0, os.SEEK_END)
    if not size:  # an empty file cannot be mapped
        return 0, b""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin = data.rfind(b"\n") + 1
        return begin, data[begin : begin + MAX_LINE + 1]


def _check_object(row: bytes, path: Path) -> None:
    try:
        found = decode(row, "") if len(row) <= MAX_LINE else None
    except DataError:
        found = None
    if not isinstance(found, dict):
        raise DataError(_NOT_OURS.format(path, "end"))


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file in the folder of ``path`` that replaces it if the block succeeds, and is removed if it fails.

    If ``path`` is a link, its target is replaced. Raises ``StorageError`` if it exists and is not a file.
    """
    path = real_output(path)
    beside = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if (descriptor := open_locked(beside)) is None:
            raise RunError(f"{path}: another process is writing this file; wait for it, or choose another output")
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - of a descriptor
            try:
                os.ftruncate(descriptor, 0)
                yield stream
                stream.flush()
                os.fsync(descriptor)
                beside.replace(path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise


def unfinished_pattern(place: str) -> str:
    """Return the pattern of folders that ``folder_beside`` fills for ``place``, itself a pattern."""
    parent, _, name = place.rpartition("/")
    return f"{parent}/.{name}{_UNFINISHED}{'?' * _RANDOM}".removeprefix("/")


@contextmanager
def folder_beside(folder: Path) -> Iterator[Path]:
    """Make an empty folder, to be filled and renamed to ``folder``, which is thus complete or absent.

    Those that killed processes left are removed: their locks are free.
    """
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(unfinished_pattern(glob.escape(folder.name))):
            with locked_if_free(left) as is_free, suppress(FileNotFoundError):
                if is_free and time.time() - left.stat().st_mtime > _NEW_S:
                    shutil.rmtree(left, ignore_errors=True)
        prefix = unfinished_pattern(folder.name).removesuffix("?" * _RANDOM)
        outer = tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True)
    with outer, locked_if_free(Path(outer.name)):
        made = Path(outer.name, folder.name)  # others may read it; they cannot enter ``outer``
        with storage_errors(folder):
            made.mkdir()
        yield made


@contextmanager
def new_folder(folder: Path, what: str) -> Iterator[Path]:
    """Make a folder that takes the place of ``folder``, which is new or empty, when the block succeeds.

    Raises ``RunError`` if it is in use, which says that ``what`` overwrites nothing, and ``StorageError``.
    """
    folder = folder.absolute()  # "." has no name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: exists, and {what} never overwrites; name another --output or remove it")
    with storage_errors(folder), folder_beside(folder) as beside:
        yield beside
        if folder.exists():
            folder.rmdir()
        beside.rename(folder)


def sync_files(folder: Path) -> None:
    """Sync all files in ``folder``, and let all read them who may read it: safetensors lets only their owner."""
    readable = folder.stat().st_mode & 0o444
    for file in folder.rglob("*"):
        if file.is_file():
            if readable & ~(mode := file.stat().st_mode):
                file.chmod(mode | readable)
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


def file_digest(path: Path) -> str:
    """Return a short hash of a file's contents: SHA-256 or, for files above 1 GiB, SHA-256 of its parts' hashes.

    The parts are hashed in parallel, so that the weights of a 7B model take seconds. Raises ``DataError`` when the file
    cannot be read.
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
    """Replace ``path`` by JSON lines of ``rows``, written as they come; if one fails, the old file stays."""
    with _replacing(path) as stream:
        for row in rows:
            stream.write(encode_line(row))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by indented JSON that a person can read. Raises ``DataError`` for a text that is not UTF-8."""
    write_atomically(path, msgspec.json.format(encode(value), indent=2) + b"\n")
