"""vLLM's server asks for the token on every path, and without one answers to this machine alone."""

import subprocess
import sys

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

from spag.serve.guard import TOKEN_VARIABLE, TokenGuard

TOKEN = "a token of the server"
PATHS = ("/v1/completions", "/invocations", "/tokenize", "/generative_scoring", "/metrics", "/health/../tokenize")


def client() -> TestClient:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("reached")

    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    app = Starlette(
        routes=[WebSocketRoute("/{path:path}", talk), Route("/{path:path}", answer, methods=["GET", "POST"])]
    )
    app.add_middleware(TokenGuard)  # as vLLM does
    return TestClient(app, base_url="http://localhost")


@pytest.mark.parametrize("path", PATHS)
def test_requests_without_the_token_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    for header in ({}, *({"authorization": value} for value in ("", TOKEN, "Bearer x", f"Basic {TOKEN}", "Bearer é"))):
        headers = {name.encode(): value.encode() for name, value in header.items()}
        assert client().post(path, headers=headers).status_code == 401
    for scheme in ("Bearer", "bearer"):
        assert client().post(path, headers={"authorization": f"{scheme} {TOKEN}"}).text == "reached"


def test_health_and_start_need_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with client() as started:
        assert started.get("/health").text == "reached"
        assert started.options("/v1/completions").status_code == 405  # by the routes here, not 401
        with pytest.raises(WebSocketDenialResponse) as denied, started.websocket_connect("/v1/realtime"):
            pass
    assert denied.value.status_code == 401


def test_on_loopback_there_may_be_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert client().get("/tokenize").text == "reached"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8000"}, 421),
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, 421),  # a name that points here
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, 200),
    ],
)
def test_without_a_token_other_names_and_sites_are_refused(
    headers: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    for path in ("/v1/models", "/health"):
        assert client().get(path, headers=headers).status_code == status
    assert client().options("/v1/models", headers=headers).status_code == (405 if status == 200 else status)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert client().get("/v1/models", headers={**headers, "authorization": f"Bearer {TOKEN}"}).text == "reached"


def test_the_guard_imports_neither_vllm_nor_torch() -> None:
    code = "import sys, spag.serve.guard; sys.exit(bool({'vllm', 'torch'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
