"""Access control of vLLM's own server, as ASGI middleware. Imports no vLLM.

vLLM asks for its key only on paths under ``/v1`` and a few others, not on ``/invocations``, ``/tokenize`` and more that
run the model. Without a key it answers pages of any site, even under other names for this machine (DNS rebinding).
"""

import hmac
import os

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from spag.web.security import NO_TOKEN, Access, fault_of_site, refusal

TOKEN_VARIABLE = "VLLM_API_KEY"
"""vLLM's own variable."""


class TokenGuard:
    """Refuses requests without the token of ``TOKEN_VARIABLE``, if it is set, but for ``/health`` and, as vLLM itself,
    ``OPTIONS``: browsers ask without it what they may send. Without a token it refuses what ``ApiGuard`` refuses on
    loopback, the only address that needs none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app, self._token, self._loopback = app, os.environ.get(TOKEN_VARIABLE, ""), Access()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = None if scope["type"] == "lifespan" else self._fault(scope)
        answer: ASGIApp = refusal(*fault) if fault else self.app
        await answer(scope, receive, send)

    def _fault(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and text of a refusal; ``None`` if the request may pass."""
        headers = Headers(scope=scope)
        if not self._token:
            return fault_of_site(self._loopback, headers)
        is_open = scope["path"] == "/health" or scope.get("method") == "OPTIONS"
        return None if is_open or self._admits(headers) else NO_TOKEN

    def _admits(self, headers: Headers) -> bool:
        scheme, _, offered = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(offered.strip().encode(), self._token.encode())
