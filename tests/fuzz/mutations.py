"""A mutator of files: bytes flipped, cut, doubled and put in; values exchanged, left out, nested; whole files replaced.

It knows bytes, and trees: JSON, JSON lines, YAML, and the JSON header of safetensors. The same seed gives the same
mutation.
"""

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import yaml

WHOLE: tuple[bytes, ...] = (
    b"", b" \n", b"{", b"[]", b"{}", b"[1]\n", b"null\n", b"3\n", b'"text"\n', b"\0" * 64,
    bytes(range(256)), b"\xff\xfe{\0}\0", b"\xef\xbb\xbf",
    b"[" * 100_000, b'{"a":' * 20_000, b"- " * 5000, b"9" * 5000, b'{"a": NaN}\n', b'{"a": 1e999}\n', b"2020-99-99\n",
    b"a: &a [*a]\n",
    b"version https://git-lfs.github.com/spec/v1\n", b"PK\x03\x04", b"\x80\x04.", b"<html>", b"x" * 300_000,
    b"\n" * 5000,
)  # fmt: skip
"""Whole files."""
PIECES: tuple[bytes, ...] = (
    b"\xff", b"\0", b"\xed\xa0\x80", b"\x1b[2J", "\u202e".encode(), b"\xef\xbb\xbf", b"\\ud800", b"\r", b"\n\n",
    b"NaN", b"1e999", b"-",
    b"9" * 400,
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"{}", b"{0}", b"%s", b"'", b"&a ", b"*a",
    b"!!python/name:os.system ", b"\t", b"#",
    "é😀".encode(),
)  # fmt: skip
"""What is put between other bytes."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3.5, 2**31, 2**63, 2**64, -(2**70), 10**400, 1e308, 1e-308, float("nan"),
    float("inf"), "", " ", "text",
    "-1",
    "0",
    "\ud800", "\0", "a\nb", "\x1b[31m", "\u202e", "x" * 50_000, "../" * 500, "/dev/null", "{0.__class__}", [], [[]],
    [1], [None],
    ["a", "a"],
    {}, {"a": 1}, {"": None}, [0] * 2000, "bot:nope", "2020-99-99", "1e5", {"type": "x"},
)  # fmt: skip
"""What takes the place of single values."""

Change = Callable[[Any, Any, random.Random], None]


def mutated(data: bytes, rng: random.Random) -> bytes | None:
    """Return ``data`` with one to three changes; ``None`` stands for a folder in the place of the file."""
    if rng.random() < 0.04:
        return None
    if rng.random() < 0.12:
        return rng.choice(
            (*WHOLE, *(data.decode("utf-8", "replace").encode(code) for code in ("utf-16", "utf-32", "utf-8-sig")))
        )
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = (_tree_changed(data, rng) if rng.random() < 0.65 else None) or _bytes_changed(data, rng)
    return data


def _bytes_changed(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    end = min(end, start + rng.choice((1, 8, 100, 10**9)))
    match rng.randrange(6):
        case 0:
            flipped = bytearray(data)
            for _ in range(min(len(data), rng.choice((1, 4, 30)))):
                flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 1:
            return data[:start]
        case 2:
            return data[:start] + data[end:]
        case 3:
            return data[:end] + data[start:end] + data[end:]
        case 4:
            lines = data.splitlines(keepends=True) or [b""]
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
            return b"".join(lines)
    return data[:start] + rng.choice(PIECES) + data[start:]


def _tree_changed(data: bytes, rng: random.Random) -> bytes | None:
    """Change a value of a tree; ``None`` for a file that holds none."""
    for parse in (_header, _whole, _row, _yaml):
        try:
            found = parse(data, rng)
        except (ValueError, RecursionError, struct.error, yaml.YAMLError):
            continue
        if found is None:
            continue
        value, wrapped = found
        places = list(_places(value))
        if places:
            holder, key = rng.choice(places)
            rng.choice(CHANGES)(holder, key, rng)
        return wrapped(_text(value, rng))
    return None


Parsed = tuple[Any, Callable[[bytes], bytes]] | None


def _header(data: bytes, _: random.Random) -> Parsed:
    """The header of a safetensors file: its length in 8 bytes, then JSON."""
    size = struct.unpack("<Q", data[:8])[0]
    if size > len(data):
        return None
    return json.loads(data[8 : 8 + size]), lambda text: struct.pack("<Q", len(text)) + text + data[8 + size :]


def _whole(data: bytes, _: random.Random) -> Parsed:
    return json.loads(data), lambda text: text


def _row(data: bytes, rng: random.Random) -> Parsed:
    rows = data.splitlines()
    if not rows:
        return None
    number = rng.randrange(len(rows))
    return json.loads(rows[number]), lambda text: b"\n".join((*rows[:number], text, *rows[number + 1 :])) + b"\n"


def _yaml(data: bytes, _: random.Random) -> Parsed:
    value = yaml.safe_load(data) if len(data) < 20_000 else None
    return (value, lambda text: text) if isinstance(value, dict | list) else None  # JSON is YAML


def _text(value: Any, rng: random.Random) -> bytes:
    return json.dumps(value, ensure_ascii=rng.random() < 0.5, default=str).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place inside ``value``: what holds it, and its key or index."""
    for key, inner in list(
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield value, key
        yield from _places(inner)


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = rng.choice(VALUES)


def _remove(holder: Any, key: Any, _: random.Random) -> None:
    del holder[key]


def _nest(holder: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 150))):
        holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}


def _repeat(holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    if isinstance(value, str | list):
        holder[key] = value * rng.choice((2, 50))
    elif isinstance(value, int | float):
        holder[key] = value * rng.choice((-1, 2, 1000, 10**12))


def _as_text(holder: Any, key: Any, _: random.Random) -> None:
    holder[key] = str(holder[key])


def _exchange(holder: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _rename(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("", "x", f"{key} ", "\ud800", "A" * 300))] = holder.pop(key)


CHANGES: tuple[Change, ...] = (_replace, _replace, _replace, _remove, _nest, _repeat, _as_text, _exchange, _rename)
