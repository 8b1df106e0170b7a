"""Servers of the web UI, the adapters and ``spag serve``: the socket, and uvicorn's settings."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from spag.core.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises ``ConfigError`` if the address cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:  # the second: of a host that cannot be a name
        fault = f"cannot be served on: {getattr(error, 'strerror', None) or error}; choose another --host or --port"
        raise ConfigError(f"{host}:{port}: {fault}") from error


def make_server(app: ASGIApp, **options: Any) -> uvicorn.Server:
    """Return a server of ``app`` without a log of requests; ``options`` are uvicorn's."""
    options |= {"log_level": "warning", "access_log": False, "server_header": False, "timeout_graceful_shutdown": 2}
    return uvicorn.Server(uvicorn.Config(app, **options))


def serve(app: ASGIApp, host: str, port: int, announce: Callable[[str], object] | None = None, **options: Any) -> None:
    """Serve ``app`` until interrupted; ``announce`` gets the address. Raises ``ConfigError`` for a bad address."""
    with listen(host, port) as listener, suppress(KeyboardInterrupt):
        if announce is not None:
            announce(f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}")
        make_server(app, **options).run(sockets=[listener])
