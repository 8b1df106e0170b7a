"""Whom the page answers, and the command that serves it."""

import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from http.cookiejar import CookieJar
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient
from web_fixtures import site, visitor

from spag.core.errors import ConfigError
from spag.web.security import MOST_BYTES, Access
from spag.web.server import listen

TOKEN = "correct-horse-battery"


@pytest.mark.slow
def test_every_answer_carries_the_policy(client: TestClient) -> None:
    for address in ("/", "/static/style.css", "/static/theme.css", "/game.css", "/nothing", "/login"):
        headers = client.get(address).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert client.get("/").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"])
def test_only_loopback_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_loopback_names_are(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://localhost:81"},
        {"origin": "http://[::1"},
        {"origin": "http://localhost", "sec-fetch-site": "cross-site"},
        {"origin": "http://localhost", "sec-fetch-site": "same-site"},
    ],
)
def test_a_post_must_come_from_here(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/play", data={"role": "attacker"}, headers=headers).status_code == 403
    assert "set-cookie" not in client.post("/play", data={"role": "attacker"}, headers=headers).headers


def test_a_post_without_origin_is_refused(run: Path) -> None:
    with visitor(site(run), origin=False) as client:
        assert client.post("/play", data={"role": "attacker"}).status_code == 403


def test_a_huge_or_unmeasured_body_is_refused(client: TestClient) -> None:
    assert client.post("/play", content=b"x" * (MOST_BYTES + 1)).status_code == 413
    assert client.post("/play", content=iter([b"x"])).status_code == 411
    both = {"content-length": "1", "transfer-encoding": "chunked"}  # servers read chunks, whatever length is declared
    assert client.post("/play", content=iter([b"x" * (MOST_BYTES + 1)]), headers=both).status_code == 411


@pytest.mark.slow
def test_the_token_is_required_and_remembered(run: Path) -> None:
    with visitor(site(run, token=TOKEN)) as client:
        page = {"accept": "text/html"}
        assert client.get("/").status_code == 401
        assert client.get("/games", headers=page, follow_redirects=False).headers["location"] == "/login"
        assert client.get("/", headers={"hx-request": "true"}).headers["hx-redirect"] == "/login"
        assert client.get("/play/x/reply").status_code == 401
        assert client.get("/game.css").status_code == 401
        assert "/game.css" not in client.get("/login").text
        assert client.post("/play", data={"role": "attacker"}).status_code == 401
        assert client.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/", headers={"cookie": "spag_token=wrong"}).status_code == 401
        assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        for address in ("/login", "/static/nothing"):
            assert re.findall(r'<bdi class="run">(.*?)</bdi>', client.get(address, headers=page).text) == [""]
        wrong = client.post("/login", data={"token": "wrong"}, follow_redirects=False)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
        right = client.post("/login", data={"token": TOKEN}, follow_redirects=False)
        assert TOKEN not in right.headers["set-cookie"]
        assert "HttpOnly" in right.headers["set-cookie"]
        assert "SameSite=strict" in right.headers["set-cookie"]
        assert client.get("/").status_code == 200
        assert '<bdi class="run">run</bdi>' in client.get("/static/nothing").text


@pytest.mark.slow
def test_servers_on_two_ports_keep_their_visitors_apart(run: Path) -> None:
    """A browser sends the cookies of a host to all of its ports."""
    jar, begun = CookieJar(), {"role": "attacker", "opponent": "bot:constant"}
    with ExitStack() as stack:
        clients, games = [], []
        for port in (8080, 8081):
            base = f"http://localhost:{port}"
            app = site(run, token=f"{TOKEN}-{port}")
            client = stack.enter_context(TestClient(app, base_url=base, headers={"origin": base}, cookies=jar))
            client.post("/login", data={"token": f"{TOKEN}-{port}"})
            games.append(client.post("/play", data=begun, follow_redirects=False).headers["location"])
            clients.append(client)
        assert [client.get(game).status_code for client, game in zip(clients, games, strict=True)] == [200, 200]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="a token is required"):
        Access(host)
    assert TOKEN not in repr(Access(host, TOKEN))


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        Access("0.0.0.0", "secret")
    with pytest.raises(ConfigError, match="the token has 6 characters"):
        Access("0.0.0.0", "secret" + " " * 20)


@pytest.mark.slow
def test_a_token_is_one_that_a_header_can_carry(run: Path) -> None:
    for token in ("schlüssel-schlüssel", "correct\rhorse-battery", "correct-horse\x7fbattery"):
        with pytest.raises(ConfigError, match=r"^the token has characters that headers cannot contain; use ASCII"):
            Access("0.0.0.0", token)
    for token in (f"{TOKEN}\r\n", f" {TOKEN}"):  # as a file from Windows may hold it
        with visitor(site(run, token=token)) as client:
            assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
            assert client.post("/login", data={"token": token}, follow_redirects=False).status_code == 303


@pytest.mark.slow
def test_the_command_serves_and_stops(run: Path) -> None:
    code = "from spag.cli.serve import web_command; web_command()"
    command = [sys.executable, "-c", code, str(run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = process.stderr.readline().split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        assert httpx.get(f"{address}/games", timeout=120).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert process.stderr.read() == ""


def test_a_taken_port_is_one_line() -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(ConfigError, match="cannot be served on"):
        listen("127.0.0.1", listener.getsockname()[1])
