"""The reader of foreign JSON: what it returns, and the one line that everything else becomes."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spag.core.errors import DataError
from spag.storage.jsonfile import MAX_DEPTH, MAX_LINE, lines_of, read_json, reading


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with reading(path) as stream:
        yield from lines_of(stream, path, msgspec.json.Decoder())


FAULTS = {
    "empty": (b"", "{path}:1: not JSON: it is empty"),
    "blank": (b" \n", "{path}:1: not JSON: it is empty"),
    "torn": (b'{"a":\n{"b": 1', "{path}:2: not JSON: it ends in the middle of a value"),
    "comma": (b'{"a": 1,\n"b": 2,}', "{path}:2: not JSON: trailing comma in object (byte 16)"),
    "two values": (b"{}\n{}", "{path}:2: not JSON: trailing characters (byte 4)"),
    "NaN": (b'{"a": NaN}', "{path}:1: not JSON: invalid character (byte 6)"),
    "infinite": (b'{"a": -Infinity}', "{path}:1: not JSON: invalid character (byte 7)"),
    "infinite by its exponent": (b'{"a": 1e999}', "{path}:1: not JSON: Number out of range"),
    "5,000 digits": (b"1" * 5000, "{path}:1: not JSON: Integer value out of range"),
    "100 digits": (
        b"[[1" + b"0" * 99 + b"]]",
        "{path}: the number 10000000000000000000... does not fit into 64 bits; give a smaller one, or text",
    ),
    "2**64": (
        b"18446744073709551616",
        "{path}: the number 18446744073709551616... does not fit into 64 bits; give a smaller one, or text",
    ),
    "below -2**63": (
        b"-9223372036854775809",
        "{path}: the number -9223372036854775809... does not fit into 64 bits; give a smaller one, or text",
    ),
    "101 levels": (
        b"[" * 101 + b"]" * 101,
        "{path}: nested deeper than 100 levels; no valid file needs that",
    ),
    "100,000 levels": (
        b'{"a":' * 100_000,
        "{path}: nested deeper than 100 levels; no valid file needs that",
    ),
    "lone surrogate": (
        b'["\\ud800 and some more text"]',
        "{path}:1: not JSON: unexpected end of escaped utf-16 surrogate pair (byte 8)",
    ),
    "surrogate in UTF-8": (b'"\xed\xa0\x80"', "{path}: not UTF-8 at byte 1; save the file as UTF-8"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "{path}: not UTF-8 at byte 0; save the file as UTF-8"),
    "UTF-16 without a mark": ('{"a": 1}'.encode("utf-16-le"), "{path}:1: not JSON: "),
    "binary": (bytes(range(256)), "{path}: not UTF-8 at byte 128; save the file as UTF-8"),
}


@pytest.mark.parametrize(("data", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_line_with_file_and_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_json(path, object)
    assert str(caught.value).startswith(message.format(path=path)) and "\n" not in str(caught.value)
    row = data.replace(b"\n", b" ")
    path.write_bytes(b"{}\n\n" + row + b"\n")
    if row.strip():
        with pytest.raises(DataError, match=f"^{path}:3: "):
            list(json_lines(path))


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -(2**63), 2**64 - 1, 1.5, "é\u2028😀", None, True]},
        "12345678901234567890123 in a text",
        0.12345678901234567890123,
        json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH),
        [[]] * 1000,
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_what_is_sound_comes_back_equal(tmp_path: Path, value: object, mark: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(mark + json.dumps(value).encode())
    assert read_json(path, object) == value
    path.write_bytes(mark + json.dumps(value).encode() + b"\r\n\r\n" + json.dumps(value).encode())
    assert list(json_lines(path)) == [(f"{path}:1", value), (f"{path}:3", value)]


@pytest.mark.parametrize(
    ("data", "message"),
    [(b'{"a": "x"}', "a: expected `int`, got `str`"), (b"[]", "expected `object`, got `array`")],
)
def test_a_value_of_another_type_names_the_field(tmp_path: Path, data: bytes, message: str) -> None:
    class Kind(msgspec.Struct):
        a: int

    path = tmp_path / "file.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"^{path}: {message}$"):
        read_json(path, Kind)
    path.write_bytes(b'{"a": 3, "b": 4}')
    assert read_json(path, Kind).a == 3


def test_what_is_too_long_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b'"' + b"x" * 99 + b'"')
    with pytest.raises(DataError, match=f"^{path}: longer than 100 bytes"):
        read_json(path, object, longest=100)
    assert read_json(path, object, longest=101) == "x" * 99
    path.write_bytes(b"{}\n" + b" " * MAX_LINE + b"{}")
    with pytest.raises(DataError, match=f"^{path}:2: the line is longer than"):
        list(json_lines(path))


@pytest.mark.parametrize(
    ("name", "message"), [("", "Is a directory"), ("none", "No such file"), ("nul\0byte", "null byte")]
)
def test_what_is_no_file_is_one_line(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_json(tmp_path / name, object)
    with pytest.raises(DataError, match=message):
        list(json_lines(tmp_path / name))


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b'\xef\xbb\xbf{"a":1}\n{"a":2}\n',))
    writer.start()
    assert [row for _, row in json_lines(pipe)] == [{"a": 1}, {"a": 2}]
    writer.join()
