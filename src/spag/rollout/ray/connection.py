"""The connection to a Ray cluster, and its nodes."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from spag.core.errors import ConfigError, first_line

LOCAL = "local"


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the cluster at ``address`` (``local`` starts one on this machine); an open connection is reused and
    left open.

    Raises ``ConfigError`` when there is none.
    """
    if ray.is_initialized():
        yield
        return
    _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        dashboard = False if address == LOCAL else None
        ray.init(address=address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.WARNING)
    except Exception as error:
        if type(error) is not Exception and not isinstance(error, ConnectionError | ValueError | RuntimeError):
            raise  # a bare one is Ray's own, for a node that takes more than 30 s to start
        raise _nobody(address, error) from error
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray replaces the handler by one without a message
            signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Check the address first, because Ray retries a dead one for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise _nobody(address, error) from error


def _nobody(address: str, error: Exception) -> ConfigError:
    hint = "start one with 'ray start --head', or use local"
    return ConfigError(f"cluster.address={address}: no Ray cluster answers there ({first_line(error, 150)}); {hint}")


def nodes() -> list[dict[str, float]]:
    """Return the resources of every living node that can compute: CPU, GPU."""
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in known if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


def gpu_count() -> int:
    """Return how many GPUs these nodes have together."""
    return int(sum(node.get("GPU", 0) for node in nodes()))
