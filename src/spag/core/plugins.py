"""Classes by name: built-in ones, and those that other packages register as entry points of a group."""

import difflib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from spag.core.errors import ConfigError


def plugin_names(group: str, shipped: Mapping[str, str]) -> list[str]:
    """Return the names of ``shipped``, then those that installed packages add."""
    return [*shipped, *sorted(entry_points(group=group).names - shipped.keys())]


def load_plugin(what: str, name: str, group: str, shipped: Mapping[str, str]) -> Any:
    """Return the object called ``name``; ``shipped`` gives ``MODULE:ATTRIBUTE`` by name. Raises ``ConfigError`` if it
    is unknown or cannot be imported.
    """
    own = [EntryPoint(name, shipped[name], group)] if name in shipped else []
    entry = next(iter(own or entry_points(group=group, name=name)), None)
    if entry is None:
        known = plugin_names(group, shipped)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"installed: {', '.join(known)}"
        raise ConfigError(f"there is no {what} {name!r}; {hint}")
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name}: {entry.value} cannot be loaded: {error}") from error
