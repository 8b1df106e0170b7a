"""Classes by name: built-in ones, and those that other packages register as entry points of a group."""

import difflib
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from spag.core.errors import ConfigError, first_line

PLUGIN_FAULTS = (  # of another package's code; SystemExit and the like are no faults
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError),
    *(SyntaxError, TypeError, ValueError),
)


def plugin_names(group: str, shipped: Mapping[str, str]) -> list[str]:
    """Return the names of ``shipped``, then those that installed packages add."""
    return [*shipped, *sorted(_installed(group, tuple(sys.path)) - shipped.keys())]


@lru_cache(maxsize=16)
def _installed(group: str, path: tuple[str, ...]) -> frozenset[str]:
    """Return the names that packages on Python's ``path`` add: a search of 0.1 s, and every option asks."""
    return frozenset(entry_points(group=group).names)


def load_plugin(what: str, name: str, group: str, shipped: Mapping[str, str]) -> Any:
    """Return the object ``name``; ``shipped``: ``MODULE:ATTRIBUTE`` by name. Raises ``ConfigError`` if it has none."""
    own = [EntryPoint(name, shipped[name], group)] if name in shipped else []
    entry = next(iter(own or entry_points(group=group, name=name)), None)
    if entry is None:
        known = plugin_names(group, shipped)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"installed: {', '.join(known)}"
        raise ConfigError(f"there is no {what} {name!r}; {hint}")
    try:
        return entry.load()
    except PLUGIN_FAULTS as error:
        package = f"fix or uninstall the package {entry.dist.name}" if entry.dist else "reinstall spag"
        fault = f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(f"{name}: {entry.value} cannot be loaded: {fault}; {package}") from error
