"""Access control and limits, as ASGI middleware: ``Guard`` for the web UI, ``ApiGuard`` for API servers.

- A loopback address answers only to loopback names, so that a web page elsewhere cannot gain access by pointing its
  name here (DNS rebinding); any other address requires a token, in ``Authorization: Bearer`` or the web UI's cookie.
- The web UI accepts changes from its own pages alone (``Origin``, ``Sec-Fetch-Site``); an API refuses pages of other
  sites. A request with a body must declare its length.
- Every page has a strict Content-Security-Policy: scripts, styles and pictures only from here, none inline, no framing.

The token is compared in constant time; the cookie holds a random text that expires with the process.
"""

import asyncio
import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spag.core.errors import ConfigError
from spag.storage.machine import is_loopback

TOKEN_VARIABLE = "SPAG_WEB_TOKEN"
TOKEN_COOKIE = "spag_token"
SESSION_COOKIE = "spag_session"
LOGIN = "/login"
MOST_BYTES = 64 * 1024  # of a request's body
REQUEST_S = 300.0
IDLE_S = 600.0
NO_TOKEN = 401, "A token is required: Authorization: Bearer TOKEN."
_SHORTEST_TOKEN = 16
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers omit Origin in forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def cookie_of(request: HTTPConnection, kind: str) -> str:
    """Return the value of a visitor's cookie, or an empty text."""
    return str(request.cookies.get(_cookie_name(request, kind), ""))


def set_cookie(answer: Response, request: HTTPConnection, kind: str, value: str) -> None:
    """Let a visitor's browser send a cookie back, to this site and never to scripts."""
    is_secure = request.url.scheme == "https"
    answer.set_cookie(_cookie_name(request, kind), value, httponly=True, samesite="strict", secure=is_secure)


def _cookie_name(request: HTTPConnection, kind: str) -> str:
    """Return a cookie's name at the port that was asked: a browser sends the cookies of a host to all of its ports."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{kind}_{port}" if port.isdecimal() else kind


@dataclass(frozen=True, slots=True)
class Access:
    """The address of the page, and its token, if any. Raises ``ConfigError`` if that is not safe.

    ``cookie``: its value for a visitor who gave the token.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    cookie: str = field(default_factory=secrets.token_urlsafe, repr=False)

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            needs = f"a token is required beyond loopback; give --token or set {TOKEN_VARIABLE}"
            raise ConfigError(f"--host {self.host}: {needs}")
        if self.token is None:
            return
        token = self.token.strip()  # headers lose such white space; a file from Windows ends in \r
        if len(token) < _SHORTEST_TOKEN:
            fix = f"use at least {_SHORTEST_TOKEN}: openssl rand -hex 16"
            raise ConfigError(f"the token has {len(token)} characters; {fix}")
        if not (token.isascii() and token.isprintable()):
            raise ConfigError("the token has characters that headers cannot contain; use ASCII: openssl rand -hex 16")
        object.__setattr__(self, "token", token)

    def is_foreign(self, host: str) -> bool:
        """Tell whether a request to a loopback address has another name in ``Host``."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            name = ""
        return is_loopback(self.host) and not is_loopback(name)

    def is_token(self, offered: str) -> bool:
        """Compare in constant time."""
        return self.token is not None and hmac.compare_digest(offered.strip().encode(), self.token.encode())

    def admits(self, request: HTTPConnection) -> bool:
        """Tell whether a request has the token, in ``Authorization: Bearer`` or the cookie."""
        if self.token is None:
            return True
        scheme, _, offered = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(offered):
            return True
        return hmac.compare_digest(cookie_of(request, TOKEN_COOKIE).encode(), self.cookie.encode())


@dataclass(frozen=True)
class Guard:
    """The web UI's middleware."""

    app: ASGIApp
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if not scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        answer: ASGIApp = self._refusal(scope) or self.app
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is refused; ``None`` if it may pass."""
        request, path = HTTPConnection(scope), scope["path"]
        headers = request.headers
        if self.access.is_foreign(headers.get("host", "")):
            return PlainTextResponse("This page answers only to localhost, not to another host name.", 421)
        if scope["method"] not in _SAFE_METHODS and (fault := _fault_of_change(headers)):
            return fault
        if path == LOGIN or path.startswith("/static/") or self.access.admits(request):
            return None
        if "hx-request" in headers:
            return Response(status_code=401, headers={"hx-redirect": LOGIN})
        is_page = "text/html" in headers.get("accept", "")
        return RedirectResponse(LOGIN, 303) if is_page else PlainTextResponse("A token is required.", 401)


def fault_of_site(access: Access, headers: Headers) -> tuple[int, str] | None:
    """Return status and text that refuse a request under another name, or from a page of another site."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if access.is_foreign(host):
        return 421, "This server answers only to localhost, not to the requested host name."
    if origin is not None and origin.partition("://")[2] != host:
        return 403, "This server does not answer requests from other sites' pages."
    return None


def fault_of_length(headers: Headers, most_bytes: int) -> tuple[int, str] | None:
    """Return status and text that refuse a request of unknown length, or longer than ``most_bytes``."""
    length = headers.get("content-length", "")
    if not length.isdecimal() or "transfer-encoding" in headers:  # a chunked body may exceed the length it declares
        return 411, "A request must state its length."
    return (413, f"At most {most_bytes:,} bytes are accepted.") if len(length) > 9 or int(length) > most_bytes else None


def _fault_of_change(headers: Headers) -> Response | None:
    """Return why a request that changes state is refused."""
    origin = headers.get("origin", "").partition("://")[2]
    if not origin or origin != headers.get("host") or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return PlainTextResponse("This request did not come from a page of this site.", 403)
    fault = fault_of_length(headers, MOST_BYTES)
    return PlainTextResponse(fault[1], fault[0]) if fault else None


def refusal(status: int, text: str) -> Response:
    """Return the response to a refused request."""
    return JSONResponse({"detail": text}, status, {"cache-control": "no-store"})


@dataclass(frozen=True)
class ApiGuard:
    """The middleware of API servers, HTTP and WebSocket. Seconds: ``request_s`` for an HTTP request, ``idle_s`` to wait
    for a WebSocket's next message.
    """

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
        fault = fault_of_site(self.access, headers)
        if fault is None and not self.access.admits(HTTPConnection(scope)):
            fault = NO_TOKEN
        if fault is None and scope["type"] != "websocket" and scope["method"] not in _SAFE_METHODS:
            fault = fault_of_length(headers, self.most_bytes)
        return refusal(*fault) if fault else None
