"""Access control of vLLM's own server, as ASGI middleware. Imports no vLLM.

vLLM asks for its key only on paths under ``/v1`` and a few others, not on ``/invocations``, ``/tokenize`` and more that
run the model.
"""

import hmac
import os

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from spag.web.security import refusal

TOKEN_VARIABLE = "VLLM_API_KEY"
"""vLLM's own variable."""


class TokenGuard:
    """Refuses requests without the token of ``TOKEN_VARIABLE``, if it is set, but for ``/health`` and, as vLLM itself,
    ``OPTIONS``: browsers ask without it what they may send.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app, self._token = app, os.environ.get(TOKEN_VARIABLE, "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = not self._token or scope["type"] == "lifespan" or scope["path"] == "/health"
        if is_open or scope.get("method") == "OPTIONS" or self._admits(Headers(scope=scope)):
            await self.app(scope, receive, send)
        else:
            await refusal(401, "A token is required: Authorization: Bearer TOKEN.")(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, offered = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(offered.strip().encode(), self._token.encode())
