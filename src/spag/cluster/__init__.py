"""Play on a Ray cluster: engines on many nodes, one writer. Nothing else of spag needs Ray."""

import importlib.util

from spag.errors import ConfigError


def require_ray(address: str) -> None:
    """Raise ``ConfigError`` when Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"cluster.address={address}: Ray is not installed; pip install 'spag[cluster]'")
