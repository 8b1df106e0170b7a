"""No request ends in a server error: nasty queries, paths, forms and headers over every route, each answered in one
line or with a page.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.routing import Route
from starlette.testclient import TestClient
from test_pages import Reader
from web_fixtures import at_once, bot_games, make_run, site, visitor

from online_files import write_online
from spag.web import live_games, pages

ROUTES = [route for router in (pages.router, live_games.router) for route in router.routes if isinstance(route, Route)]
TEXTS = [
    "", " ", "0", "-1", "1", "2147483648", "9223372036854775807", "9223372036854775808", "1" * 5000, "1e9", "1.5",
    "0x10", "NaN", "inf",
    "１２", "²", "x" * 3000, "\0", "a\0b", "\ud800", "\udcff", "\U0010ffff", "\u202e", "ا" * 300, "\r\nSet-Cookie: a=b",
    "../../etc/passwd",
    "..%2f..", "%", "%zz", "{{7*7}}", "<script>", "'; DROP TABLE games; --", '"', '" OR "', "NEAR(", "*", "true",
    "null", "[]", "river",
    "spag-1", "online-step-00002", "bot:random", "attacker", "player_0", "base", "defender_wins", "nobody", "1 5 9",
]  # fmt: skip
NAMES = [
    "source", "phase", "step", "outcome", "first", "second", "task", "text", "page",
    "seen", "opponent", "role",
    "token", "number", "match_id", "nothing", "",
]  # fmt: skip
HEADERS = ["hx-request", "accept", "cookie", "content-type", "authorization", "hx-target", "range", "if-none-match"]

texts = st.sampled_from(TEXTS) | st.text(max_size=30)
two = st.lists(texts, min_size=2, max_size=2)
pairs = st.lists(st.tuples(st.sampled_from(NAMES), texts), max_size=6)


def encoded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


@pytest.fixture(scope="module", params=["run", "online", "file"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("requests")
    made = {
        "run": lambda: make_run(folder / "run", hostile=True),
        "online": lambda: write_online(folder / "run", finished=False),
        "file": lambda: bot_games("tic_tac_toe", folder / "games.jsonl"),
    }[request.param]()
    with visitor(site(made, at_once(lambda request: "Well."))) as opened:
        yield opened


def ask(client: TestClient, method: str, address: str, **more: object) -> None:
    """Send a request; its answer is a page, a piece of one, or one line that says what is wrong."""
    answer = client.request(method, address, follow_redirects=False, **more)  # type: ignore[arg-type]  # what requests take
    assert answer.status_code < 500, (method, address, answer.text)
    if answer.status_code >= 400 and "text/html" in answer.headers["content-type"]:
        [notice] = re.findall(r'<p class="(?:notice bad|empty)"[^>]*>.*?</p>', answer.text, re.DOTALL)
        assert len(Reader(notice).text.splitlines()) == 1


@pytest.mark.slow
@settings(max_examples=60, derandomize=True)
@given(route=st.sampled_from(ROUTES), places=two, query=pairs, form=pairs, header=st.sampled_from(HEADERS))
@example(ROUTES[0], ["", ""], [("page", "9223372036854775808")], [], "hx-request")
def test_no_request_ends_in_a_server_error(
    client: TestClient,
    route: Route,
    places: list[str],
    query: list[tuple[str, str]],
    form: list[tuple[str, str]],
    header: str,
) -> None:
    left = iter(places)
    path = re.sub(r"{[^}]*}", lambda _: encoded(next(left)), route.path)
    asked = "&".join(f"{name}={encoded(value)}" for name, value in query)
    body = "&".join(f"{name}={encoded(value)}" for name, value in form)
    method = "POST" if "POST" in (route.methods or ()) else "GET"
    more: dict[str, object] = {"content": body} if method == "POST" else {}
    if route.path == "/login":
        body = ""  # a wrong token costs a second
    ask(client, method, f"{path}?{asked}", headers={header: "true"}, **more)


@pytest.mark.parametrize(
    ("method", "address", "body", "status", "says"),
    [
        ("GET", "/games/spag-1/9223372036854775808", "", 422, "number: "),
        ("GET", "/games/spag-1/0", "", 422, "number: "),
        ("GET", f"/games/spag-1/{'9' * 5000}", "", 422, "number: "),
        ("GET", "/games?page=9223372036854775808", "", 422, "page: "),
        ("GET", "/games?step=9223372036854775808", "", 422, "step: "),
        ("GET", "/games?source=%00&text=%00%ff", "", 200, ""),
        ("POST", "/play", "&".join(f"f{number}=x" for number in range(21)), 422, "This form has more than 20 fields."),
        ("POST", "/play", "role=attacker&opponent=base&task=%00", 422, ""),
        ("POST", "/play", "%ff=%fe&role=\udcff", 422, "choose an opponent and a role"),
    ],
)
def test_nasty_numbers_and_forms_are_refused_in_one_line(
    client: TestClient, method: str, address: str, body: str, status: int, says: str
) -> None:
    answer = client.request(method, address, content=body.encode("utf-8", "surrogateescape"))
    assert (answer.status_code, says in answer.text) == (status, True)


@pytest.mark.parametrize("role", ["attacker", "player_0"])
def test_nasty_utterances_are_taken_or_refused(client: TestClient, role: str) -> None:
    started = client.post("/play", content=f"role={role}&opponent=bot:random")
    if started.status_code != 200 or "/play/" not in str(started.url):
        return  # this run has no such role or no such bot
    for text in TEXTS:
        ask(client, "POST", f"{started.url.path}/say", content=f"text={encoded(text)}")
        ask(client, "GET", f"{started.url.path}/reply?seen={encoded(text[:20])}")


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "²", ""])
def test_a_strange_length_is_refused(client: TestClient, length: str) -> None:
    answer = client.post("/play", content=b"", headers={b"content-length": length.encode("latin-1")})
    assert answer.status_code in (411, 413)
