"""Reading hand-written YAML into plain values: text, numbers, true and false, null, lists, and mappings with text keys.

Values that cannot be a setting are refused here, once for all options: files that are not text, numbers that are not
finite or do not fit into 64 bits, control characters, names that no file system accepts, excessive nesting and aliases.
Dates stay text.
"""

import math
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from spag.core.errors import ConfigError, DataError
from spag.core.options import shown
from spag.storage.jsonfile import read_text

LARGEST_FILE = 2**18
"""Bytes of a config file. The longest that is shipped has 2 KB; PyYAML reads some 100 KB a second."""
_MOST_VALUES = 20_000
_DEEPEST = 20
_LONGEST_TEXT = 4096  # the longest path on Linux
_LARGEST_NUMBER = 2**63
_FAULTS = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What PyYAML raises: constructors trust tags, and a number of 5,000 digits is Python's ``ValueError``."""


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without dates, which no option accepts, duplicate keys, and exponential growth by merging."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):  # merged ones come in later
            if key.value in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: {key.value} is given twice")
            seen.add(key.value)
        return node

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - PyYAML's own name
        if self.flow_level > _DEEPEST:  # a thousand would take seconds to scan
            raise yaml.YAMLError(f"nested deeper than {_DEEPEST} levels")
        super().fetch_flow_collection_start(TokenClass)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_VALUES:
            raise yaml.YAMLError("merged mappings have too many values")


def read_config_text(path: Path) -> str:
    """Return the text of a config file. Raises ``ConfigError`` naming the fault."""
    try:
        return read_text(path, longest=LARGEST_FILE)
    except DataError as error:
        raise ConfigError(f"{error}; a config is a YAML file or a preset") from error


def parse_yaml(text: str, label: str, key: str = "") -> Any:
    """Return the value of ``text``, called ``label`` in errors: all options, or ``key``. Raises ``ConfigError``."""
    try:
        value = yaml.load(text, _PlainLoader)
    except _FAULTS as error:
        raise ConfigError(f"{_place(label, key)}: not YAML: {_told(error)}") from error
    _check_plain(value, label, key)
    return value


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"nested deeper than {_DEEPEST} levels"
    if not isinstance(error, yaml.YAMLError):
        return "a number of thousands of digits, or a value that does not match its tag"
    return " ".join(str(error).split())[:200]


def _check_plain(value: Any, label: str, key: str) -> None:
    """Refuse values that no option accepts. An aliased object counts each time it occurs."""
    seen = 0
    left = [(key, value, 0)]
    while left:
        key, one, depth = left.pop()
        seen += 1
        if depth > _DEEPEST or seen > _MOST_VALUES:
            what = f"nested deeper than {_DEEPEST} levels" if depth > _DEEPEST else f"more than {_MOST_VALUES:,} values"
            raise ConfigError(f"{label}: {what}, so it is not a config")
        if fault := _fault(one):
            raise ConfigError(f"{_place(label, key)}: {fault}")
        for name in one if isinstance(one, dict) else ():
            if not isinstance(name, str) or _fault(name):
                raise ConfigError(f"{_place(label, key)}: {shown(name)} is not an option name; write names as text")
        named = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list | tuple | set) else ()
        left += [(f"{key}.{name}".removeprefix("."), inner, depth + 1) for name, inner in named]


def _place(label: str, key: str) -> str:
    return f"{label}: {key}" if key else label


def _fault(value: Any) -> str | None:
    """Return what is wrong with a single value; ``None`` if an option may have it."""
    match value:
        case str() if any(unicodedata.category(one) in {"Cc", "Cs"} for one in value if one not in "\n\t"):
            return f"{shown(value)} contains a control character"
        case str() if len(value) > _LONGEST_TEXT:
            return f"a text of {len(value):,} characters; the longest may have {_LONGEST_TEXT:,}"
        case float() if not math.isfinite(value):
            return f"input should be a finite number, got {value}"
        case int() if abs(value) >= _LARGEST_NUMBER:
            return "the number does not fit into 64 bits"
        case None | str() | int() | float() | list() | tuple() | dict() | set():
            return None
    return f"{shown(value)} is not a plain value"
