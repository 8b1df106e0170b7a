"""The socket that the page is served on, opened before anything else so that a taken port is one clear line."""

import socket

from spag.core.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises ``ConfigError`` when the address cannot be used."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError(f"{host}:{port}: cannot be served on: {error.strerror or error}; choose another --host or --port") from error
