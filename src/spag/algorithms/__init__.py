"""Algorithms by name: built-in ones, and those that other packages register as entry points ``spag.algorithms``."""

from functools import cache

from spag.algorithms.base import Algorithm
from spag.core.plugins import load_plugin, plugin_names

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
    return plugin_names(GROUP, SHIPPED)


@cache
def get(name: str) -> type[Algorithm]:
    """Return the algorithm called ``name``. Raises ``ConfigError`` if it is unknown or cannot be loaded."""
    found: type[Algorithm] = load_plugin("algorithm", name, GROUP, SHIPPED)
    return found
