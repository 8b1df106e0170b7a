"""The ``openai`` package's client for the endpoint in the environment: address, key, proxy, timeouts."""

import asyncio
import logging
import os
import time
from base64 import b64encode
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
import openai

from spag.core.errors import ConfigError
from spag.storage.machine import is_loopback

logger = logging.getLogger(__name__)
# It would log each request's whole address, and the query may hold a key.
logging.getLogger("httpx2").setLevel(logging.WARNING)

DEFAULT_BASE_URL = "https://api.openai.com/v1"
CONNECT_TIMEOUT_S = 10.0
NOTE_INTERVAL_S = 5.0
"""Seconds between two log lines about failed attempts: retries take up to a minute."""


def open_client(*, concurrency: int, max_retries: int, timeout_s: float) -> openai.AsyncOpenAI:
    """Open a client for ``OPENAI_BASE_URL``, with the key in ``OPENAI_API_KEY``.

    An endpoint on this machine needs no key and no proxy. The client's ``base_url`` is safe to show: the address's
    password and query, which may be secret, go into headers and query arguments. Raises ``ConfigError``.
    """
    url = _endpoint()
    shown = _without_secrets(url)
    is_local = is_loopback(url.host)
    key = os.environ.get("OPENAI_API_KEY", "").strip() or ("none" if is_local else "")
    if not key:
        raise ConfigError(f"OPENAI_API_KEY is not set, and {shown} needs a key: export OPENAI_API_KEY=...")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("OPENAI_API_KEY contains characters that no key has: copy it again")
    proxies = getproxies()
    proxy = None if is_local or proxy_bypass(url.host) else proxies.get(url.scheme) or proxies.get("all")
    if proxy and not proxy.startswith(("http://", "https://")) and "://" in proxy:
        variable = f"{url.scheme.upper()}_PROXY"
        raise ConfigError(
            f"the proxy for {shown} in the environment does not speak HTTP; set {variable} to one that does"
        )
    login = f"{url.username}:{url.password}".encode()
    return openai.AsyncOpenAI(
        api_key=key,
        base_url=shown,
        default_headers={"Authorization": f"Basic {b64encode(login).decode()}"} if url.userinfo else None,
        default_query=dict(url.params),
        max_retries=max_retries,
        timeout=attempt_limits(timeout_s),
        http_client=_HTTPClient(
            str(shown).rstrip("/"),
            max_retries,
            trust_env=not is_local,
            limits=httpx2.Limits(max_connections=concurrency),
        ),
    )


def attempt_limits(seconds: float) -> httpx2.Timeout:
    """Return the limits of an attempt that may take ``seconds``."""
    return httpx2.Timeout(seconds, connect=CONNECT_TIMEOUT_S)


def shown_address() -> str:
    """Return the endpoint's address without password and query. Raises ``ConfigError``."""
    return str(_without_secrets(_endpoint())).rstrip("/")


def _endpoint() -> httpx2.URL:
    try:
        url = httpx2.URL(os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL)
    except httpx2.InvalidURL:
        url = httpx2.URL()
    if url.scheme not in ("http", "https") or not url.host or url.port == 0:  # it may contain a password: not shown
        raise ConfigError("OPENAI_BASE_URL is not an address like http://localhost:8000/v1")
    return url


def _without_secrets(url: httpx2.URL) -> httpx2.URL:
    return url.copy_with(username=None, password=None, query=None, fragment=None)


class _HTTPClient(openai.DefaultAioHttpClient):
    """The package's aiohttp client with stricter limits: a request's timeout covers a whole attempt, whereas the
    package's restarts with every byte, and an endpoint that was never reached is not retried. A ``TransportError`` says
    what happened without the address. Retries are logged with the address as ``shown``.
    """

    def __init__(self, shown: str, max_retries: int, **options: Any) -> None:
        super().__init__(**options)
        self._shown, self._max_retries = shown, max_retries
        self._reached = False
        self._last_note = float("-inf")

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            async with asyncio.timeout(request.extensions["timeout"]["read"]):
                response = await super().send(request, **options)
        except (TimeoutError, aiohttp.ClientError, httpx2.TransportError) as error:
            cause = error.__cause__ if isinstance(error, httpx2.TransportError) else error
            if isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError) and not self._reached:
                raise openai.APIConnectionError(message=_explain(cause), request=request) from None  # not retried
            self._note(_explain(cause), request)
            raise httpx2.TransportError(_explain(cause), request=request) from None
        self._reached = True
        if response.status_code == 429 and "insufficient_quota" in response.text:
            response.headers["x-should-retry"] = "false"
        elif response.status_code in (408, 409, 429) or response.status_code >= 500:
            asked = response.headers.get("retry-after")
            self._note(f"HTTP {response.status_code}" + (f", Retry-After: {asked}" if asked else ""), request)
        return response

    def _note(self, what: str, request: httpx2.Request) -> None:
        """Log a failed attempt unless it was the last, ended by us, or a line was logged recently."""
        attempt, now = int(request.headers.get("x-stainless-retry-count", 0)) + 1, time.monotonic()
        if not self.is_closed and attempt <= self._max_retries and now - self._last_note >= NOTE_INTERVAL_S:
            self._last_note = now
            logger.warning("%s: %s (attempt %d of %d)", self._shown, what, attempt, self._max_retries + 1)


def _explain(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return "no reply in time"
    # str of a reply would contain the whole address
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return f"no connection: {text or type(error).__name__}"
