"""Algorithms by name: built-in ones, and those that other packages register as entry points ``spag.algorithms``."""

import difflib
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from spag.algorithms.base import Algorithm
from spag.core.errors import ConfigError

GROUP = "spag.algorithms"
SHIPPED = {
    "imitation": "spag.algorithms.imitation:Imitation",
    "spag": "spag.algorithms.spag:Spag",
    "reinforce": "spag.algorithms.reinforce:Reinforce",
    "group": "spag.algorithms.group:Group",
    "turnwise": "spag.algorithms.turnwise:Turnwise",
}


def names() -> list[str]:
    """Return the names of all installed algorithms, built-in ones first."""
    return [*SHIPPED, *sorted({entry.name for entry in entry_points(group=GROUP)} - SHIPPED.keys())]


@cache
def get(name: str) -> type[Algorithm]:
    """Return the algorithm called ``name``. Raises ``ConfigError`` if it is unknown or cannot be loaded."""
    if name in SHIPPED:
        module, _, attribute = SHIPPED[name].partition(":")
        found: type[Algorithm] = getattr(import_module(module), attribute)
        return found
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            try:
                found = entry.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(f"algorithm {name}: {entry.value} cannot be loaded: {error}") from error
            return found
    near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names())}"
    raise ConfigError(f"there is no algorithm {name!r}; {hint}")
