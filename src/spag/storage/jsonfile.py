"""The one reader of untrusted JSON and text: documents and JSON Lines, from files and pipes.

Its results are safe to traverse recursively, compare and write again: at most ``MAX_DEPTH`` levels, 64-bit integers,
finite numbers, text without lone surrogates. Everything else is a ``DataError`` of one line, ``FILE:LINE: what; fix``.
A byte-order mark is dropped. msgspec decodes and rejects most of this by itself; nesting and integers are checked here.
``encode`` and ``encode_line`` write nothing that could not be read again.
"""

import codecs
import dataclasses
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from spag.core.errors import DataError

MAX_DEPTH = 100
"""Levels of lists and objects: far more than any format has, far below Python's recursion limit."""
MAX_LINE = 2**25
"""Bytes of one row. A game that fills a context of 128,000 tokens has some 6 million with ids and log-probabilities."""
MAX_DOCUMENT = 2**26
"""Bytes of a file that is one JSON value, unless the caller expects more."""
PADDING = b"\0 \t\r"
"""What may follow the last row: null bytes are left if a machine lost power before it wrote."""

Value = TypeVar("Value")
_PLAIN = msgspec.json.Decoder()
_NO_OPENING = bytes(set(range(256)) - set(b"[{"))
_DIGITS_ALIKE = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_TRUNCATED = "Input data was truncated"
_AT_BYTE = re.compile(r" \(byte (\d+)\)$")


def read_json(path: Path, kind: type[Value], *, longest: int = MAX_DOCUMENT) -> Value:
    """Return the JSON value of a file as a ``kind``, a type that ``msgspec.convert`` knows.

    Raises ``DataError`` naming file and line if it cannot be read, is longer than ``longest`` bytes, or is not JSON;
    naming file and field if the value is not a ``kind``.
    """
    return convert(decode(_read_bytes(path, longest), str(path), many_lines=True), kind, str(path))


def read_text(path: Path, *, longest: int = MAX_DOCUMENT) -> str:
    """Return a UTF-8 text file's content, a byte-order mark dropped. Raises ``DataError``."""
    try:
        return _read_bytes(path, longest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error


def _read_bytes(path: Path, longest: int) -> bytes:
    with reading(path) as stream:
        data = stream.read(longest + 1)
    if len(data) > longest:
        raise DataError(f"{path}: longer than {longest:,} bytes; give a smaller file")
    return data


def lines_of(
    stream: BinaryIO, path: Path, decoder: "msgspec.json.Decoder[Any]", *, torn: bytes | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of the lines of an open file that are not empty. Raises ``DataError`` naming file and line.

    With ``torn``, the beginning of every row, a last line that ends in the middle of a row is skipped.
    """
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DataError(f"{path}:{number}: the line is longer than {MAX_LINE:,} bytes; no valid row is: remove it")
        if torn is not None and not line.endswith(b"\n"):
            if is_torn(line, torn if number == 1 else b""):
                return
            line = line.rstrip(PADDING)
        if line.strip():
            place = f"{path}:{number}"
            yield place, decode(line, place, decoder)


@contextmanager
def reading(path: Path) -> Iterator[BufferedReader]:
    """Open a file, or a pipe, to read bytes. An ``OSError`` within the block becomes a one-line ``DataError``."""
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a null byte in the name
        raise DataError(f"{str(path)!r}: cannot be read: {error}") from error


def begins_list(start: bytes) -> bool:
    """Whether a file with these first bytes is one JSON list, and not a value a line."""
    return start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def decode(data: bytes, place: str, decoder: "msgspec.json.Decoder[Any]" = _PLAIN, *, many_lines: bool = False) -> Any:
    """Return the JSON value of ``data`` as ``decoder`` reads it, or as lists and dicts if it is of another type.

    Raises ``DataError`` naming ``place`` and, with ``many_lines``, the line of the fault.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        try:
            value = decoder.decode(data)
        except msgspec.ValidationError:
            value = _PLAIN.decode(data)
        if _is_suspect(data):
            _check_plain(_PLAIN.decode(data), place)
    except RecursionError as error:
        raise _too_deep(place) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal(data, place, error, many_lines) from error
    return value


def is_torn(line: bytes, start: bytes = b"") -> bool:
    """Whether ``line`` is a truncated JSON object, or only the null bytes that a crash left.

    ``start``: the beginning of such an object, given if no other row shows that the file holds JSON lines.
    """
    row, start = line.rstrip(PADDING), start or b"{"
    if not row:
        return bool(line) and start == b"{"
    if not (row.startswith(start) or start.startswith(row)):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(row)  # a character may be cut, too
        _PLAIN.decode(row)
    except (UnicodeDecodeError, RecursionError):
        return False
    except msgspec.DecodeError as error:
        at_byte = _AT_BYTE.search(str(error))
        return str(error) == _TRUNCATED or (at_byte is not None and int(at_byte[1]) == len(row))
    return False


def convert(value: Any, kind: type[Value], place: str, fix: str = "") -> Value:
    """Convert a plain value to ``kind``. Raises ``DataError`` naming ``place``, the field, and ``fix``."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, inside = str(error).partition(" - at ")
        field = inside.strip("`").removeprefix("$").removeprefix(".")
        where, then = f"{place}: {field}" if field else place, f"; {fix}" if fix else ""
        raise DataError(f"{where}: {what[:1].lower()}{what[1:]}{then}") from error


def _is_suspect(data: bytes) -> bool:
    """Whether JSON may be nested too deep or hold integers of more than 64 bits, by a fast scan of its bytes."""
    if len(data.translate(None, _NO_OPENING)) > MAX_DEPTH:
        return True
    digits_alike = data.translate(_DIGITS_ALIKE)
    return b"0" * 20 in digits_alike or b"-" + b"0" * 19 in digits_alike


def _check_plain(value: Any, place: str) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep(place)
        for one in level:
            if type(one) is int and not -(2**63) <= one < 2**64:
                fault = f"the number {str(one)[:20]}... does not fit into 64 bits"
                raise DataError(f"{place}: {fault}; give a smaller one, or text")
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = list(chain.from_iterable(inside))


def _too_deep(place: str) -> DataError:
    return DataError(f"{place}: nested deeper than {MAX_DEPTH} levels; no valid file needs that")


def _refusal(data: bytes, place: str, error: Exception, many_lines: bool) -> DataError:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as encoding:
        return DataError(f"{place}: not UTF-8 at byte {encoding.start}; save the file as UTF-8")
    what, at_byte = str(error).removeprefix("JSON is malformed: "), _AT_BYTE.search(str(error))
    if what == _TRUNCATED:
        what, at_byte = "it ends in the middle of a value" if data.strip() else "it is empty", None
    if many_lines:
        before = data[: int(at_byte[1])] if at_byte else data.rstrip()
        lines = before.count(b"\n") + 1
        place = f"{place}:{lines}"
    return DataError(f"{place}: not JSON: {what}")


def encode(value: Any) -> bytes:
    """Return ``value`` as JSON. Raises ``DataError`` for text that is not UTF-8, such as a file name."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        fault = f"{error.object[:80]!a} cannot be written as JSON: it is not UTF-8; choose another name"
        raise DataError(fault) from error


def encode_line(row: Any) -> bytes:
    """Return ``row`` as a line of JSON without ``None`` fields. Raises ``DataError``, also for one too long."""
    data = encode(row)
    if b":null" in data:  # a field, or a text that holds these characters and comes out the same
        fields = {key: value for key, value in row.items() if value is not None} if isinstance(row, dict) else row
        data = encode(_without_none(fields))
    if len(data) > MAX_LINE:
        fault = f"a row of {len(data):,} bytes cannot be written: the longest that can be read has {MAX_LINE:,}"
        raise DataError(f"{fault}; play shorter games")
    return data + b"\n"


def _without_none(value: Any) -> Any:
    """Drop fields that are ``None``; the plain JSON within, such as a task's data, keeps its own."""
    if dataclasses.is_dataclass(value):
        named = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {name: _without_none(found) for name, found in named if found is not None}
    if isinstance(value, Mapping):
        return {key: _without_none(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [_without_none(found) for found in value] if value and not isinstance(value[0], int | float) else value
    return value
