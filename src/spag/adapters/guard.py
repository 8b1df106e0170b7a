"""Access control and limits for API servers, as plain ASGI middleware over any application, HTTP and WebSocket.

On a loopback address only loopback names are answered, so that a web page elsewhere cannot gain access by pointing its
name here (DNS rebinding), and pages of other sites are refused. On any other address a token is required (``Access``),
as ``Authorization: Bearer``. Requests are limited in size and time, open connections in idle time; uvicorn limits the
number of connections (``make_server``).
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spag.web.security import MOST_BYTES, Access, fault_of_length

REQUEST_S = 300.0
IDLE_S = 600.0


def refusal(status: int, text: str) -> Response:
    """Return the response to a refused request."""
    return JSONResponse({"detail": text}, status, {"cache-control": "no-store"})


def make_server(app: ASGIApp, connections: int, **options: Any) -> uvicorn.Server:
    """Return a server of ``app`` for at most ``connections`` at once; ``options`` are uvicorn's."""
    options |= {"log_level": "warning", "access_log": False, "server_header": False, "timeout_graceful_shutdown": 2}
    return uvicorn.Server(uvicorn.Config(app, limit_concurrency=connections, **options))


@dataclass(frozen=True)
class ApiGuard:
    """The middleware. Seconds: ``request_s`` for an HTTP request, ``idle_s`` to wait for a WebSocket's next message."""

    app: ASGIApp
    access: Access
    most_bytes: int = MOST_BYTES
    request_s: float = REQUEST_S
    idle_s: float = IDLE_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif (refused := self._refusal(scope)) is not None:
            await refused(scope, receive, send)
        elif scope["type"] == "websocket":
            await self.app(scope, self._receive_in_time(receive), send)
        else:
            await self._answer_in_time(scope, receive, send)

    async def _answer_in_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self.request_s):
                await self.app(scope, receive, noting)
        except TimeoutError:
            if not started:
                await refusal(408, f"This request took longer than {self.request_s:g} s.")(scope, receive, send)

    def _receive_in_time(self, receive: Receive) -> Receive:
        async def receive_in_time() -> Message:
            try:
                async with asyncio.timeout(self.idle_s):
                    return await receive()
            except TimeoutError:
                return {"type": "websocket.disconnect", "code": 1001, "reason": f"no message for {self.idle_s:g} s"}

        return receive_in_time

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is refused; ``None`` if it may pass."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.access.is_foreign(host):
            return refusal(421, "This server answers to localhost only, and not under the name that was asked for.")
        if origin is not None and origin.partition("://")[2] != host:
            return refusal(403, "This server does not answer pages of other sites.")
        if not self.access.admits(HTTPConnection(scope)):
            return refusal(401, "A token is required: Authorization: Bearer TOKEN.")
        if scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD"):
            return None
        fault = fault_of_length(headers, self.most_bytes)
        return refusal(*fault) if fault else None
