"""The differences between two sets of settings, in words."""

from collections.abc import Mapping
from typing import Any


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
