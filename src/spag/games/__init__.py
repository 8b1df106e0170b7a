"""Games: ``get`` one by name, list their ``names``."""

from spag.games.registry import get, names

__all__ = ["get", "names"]
