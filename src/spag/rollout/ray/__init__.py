"""Play and training on a Ray cluster: engines on many nodes, one writer. Nothing else of spag needs Ray."""

from spag.core.errors import require_package


def require_ray(address: str) -> None:
    """Raise ``ConfigError`` when Ray is not installed."""
    require_package("ray", f"cluster.address={address}", "pip install '.[cluster]'")
