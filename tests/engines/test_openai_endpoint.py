"""Where requests go, with which key and through which proxy: from the environment to what arrives at a server."""

import logging
from base64 import b64encode
from pathlib import Path

import pytest
from openai_stub import Answer, Call, StubServer, completion

from spag.core.errors import ConfigError
from spag.core.options import SamplingConfig
from spag.engines.base import Request
from spag.engines.openai.client import open_client
from spag.engines.openai.engine import OpenAIEngine

KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def call_at(server: StubServer, base_url: str) -> Call:
    """The request that ``server`` gets when ``base_url`` is the endpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", base_url)
        engine = OpenAIEngine("tiny", max_retries=0)
    try:
        engine.submit(Request("a", "Say a word.", SamplingConfig(), 1))
        assert [done.text for done in engine.poll()] == ["yes"]
    finally:
        engine.close()
    return server.calls[-1]


def stub() -> StubServer:
    return StubServer(lambda call: Answer(completion("yes")))


def test_no_log_has_a_key_in_the_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)  # as with -v
    with stub() as server:
        call_at(server, f"{server.base_url}?api-key={KEY}")
    assert KEY not in caplog.text


def test_a_missing_key_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:pass@example.com/v1?token=x")
    for value in ("", "  "):
        monkeypatch.setenv("OPENAI_API_KEY", value)
        with pytest.raises(ConfigError, match=r"OPENAI_API_KEY is not set, and https://example\.com/v1 needs a key"):
            OpenAIEngine("tiny")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\nx")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY contains characters"):
        OpenAIEngine("tiny")


def address() -> str:
    return str(open_client(concurrency=1, max_retries=0, timeout_s=1).base_url)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "[::1]"])
def test_an_endpoint_on_this_machine_needs_no_key(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://{host}:8000/v1")
    assert address() == f"http://{host}:8000/v1/"


def test_where_the_address_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address() == "https://api.openai.com/v1/"
    monkeypatch.setenv("OPENAI_BASE_URL", "https://one.example/v1")
    assert address() == "https://one.example/v1/"
    for wrong in (
        "one.example/v1",
        "ftp://one.example",
        "http://",
        "http://one.example:x",
        "http://me:word@one.example:0",
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", wrong)
        with pytest.raises(ConfigError, match="OPENAI_BASE_URL") as caught:
            address()
        assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("", "/chat/completions"),
        ("/v1?version=2#top", "/v1/chat/completions?version=2"),
    ],
)
def test_the_path_of_requests(path: str, sent: str) -> None:
    with stub() as server:
        assert call_at(server, f"http://127.0.0.1:{server.port}{path}").path == sent


def test_a_password_in_the_address_takes_the_keys_place() -> None:
    with stub() as server:
        call = call_at(server, f"http://user:pass@127.0.0.1:{server.port}/v1")
    assert call.headers["authorization"] == f"Basic {b64encode(b'user:pass').decode()}"


def test_netrc_does_not_replace_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("default login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with stub() as server:
        monkeypatch.setenv("HTTP_PROXY", server.base_url)
        assert call_at(server, "http://far.invalid/v1").headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.filterwarnings(
    "ignore:.*(BasicAuth|proxy_auth).* is deprecated:DeprecationWarning"
)  # the openai package's own use of aiohttp
@pytest.mark.parametrize(("name", "scheme"), [("HTTP_PROXY", "http://"), ("http_proxy", ""), ("ALL_PROXY", "http://")])
def test_a_proxy_is_for_endpoints_elsewhere(monkeypatch: pytest.MonkeyPatch, name: str, scheme: str) -> None:
    with stub() as proxy, stub() as server:
        monkeypatch.setenv(name, f"{scheme}me:word@127.0.0.1:{proxy.port}")
        call = call_at(proxy, "http://far.invalid/v1")
        assert call.path == "http://far.invalid/v1/chat/completions"
        assert call.headers["proxy-authorization"] == f"Basic {b64encode(b'me:word').decode()}"
        assert call.headers["authorization"] == f"Bearer {KEY}"
        call_at(server, server.base_url)
        assert (len(proxy.calls), len(server.calls)) == (1, 1)


def test_a_proxy_that_does_not_speak_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:word@proxy.example:1080")
    with pytest.raises(
        ConfigError, match=r"the proxy for https://api\.openai\.com/v1 in the environment.*set HTTPS_PROXY"
    ) as caught:
        OpenAIEngine("tiny")
    assert "word" not in str(caught.value)
    monkeypatch.setenv("NO_PROXY", "api.openai.com")
    assert address() == "https://api.openai.com/v1/"
