"""The pages without a browser: what they show, and that no text is ever markup."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from web_fixtures import SCRIPT, bot_games, duel, make_run, site, visitor, won

from spag.core.episodes import Episode
from spag.core.types import Task, Utterance
from spag.evaluation.arena.standings import arena_report
from spag.games.registry import get, settings_of
from spag.storage.episodes import JsonlStore
from spag.storage.manifest import Manifest
from spag.storage.store import write_json, write_rows
from taboo_games import TABOO


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/", ["2-spag iteration-2</span>", "play: running", "no-such-model", "11 games", "step 5"]),
        ("/games", ["<b>14 games</b>", "garden"]),
        ("/games?task=river&outcome=defender_wins", ["<b>1 game</b>", "/games/spag-1/1"]),
        ("/games?text=nothing+like+that", ["No game matches"]),
        ("/games/spag-1/2", ["<mark>bread</mark>", "The defender said", "number 2", "/games?task=bread"]),
        ("/play", ["imitation", "spag-1", "base"]),
    ],
)
def test_pages_show_what_they_should(client: TestClient, address: str, shown: list[str]) -> None:
    page = client.get(address)
    assert page.status_code == 200
    for piece in shown:
        assert piece in page.text


def test_links_of_a_file_with_a_long_name_work(tmp_path: Path) -> None:
    write_rows(tmp_path / f"{'s' * 240}.jsonl", [won("river", name="m" * 500)])
    with visitor(site(next(tmp_path.glob("*.jsonl")))) as client:
        assert client.get(f"/games?first={'m' * 500}").status_code == 200
        for address in re.findall(r'href="(/games/[^"]+)"', client.get("/games").text):
            links = re.findall(r'href="(/games\?[^"]+)"', client.get(address).text)
            assert len(links) == 2 and all(client.get(html.unescape(link)).status_code == 200 for link in links)


def test_htmx_gets_the_piece_and_the_short_address(client: TestClient) -> None:
    answer = client.get("/games?text=&task=river&source=&step=&page=7", headers={"hx-request": "true"})
    assert answer.text.lstrip().startswith('<p class="count">')
    assert answer.headers["hx-replace-url"] == "/games?task=river"


def test_the_overview_is_left_alone_until_something_changes(run: Path, tmp_path: Path) -> None:
    games = tmp_path / "games.jsonl"
    games.write_bytes((run / "2-spag" / "iteration-1" / "episodes.jsonl").read_bytes())
    app = site(games)
    client = TestClient(app, base_url="http://localhost", headers={"hx-request": "true"})
    seen = re.findall(r'hx-get="(/\?seen=\w+)"', client.get("/").text)[0]
    assert client.get(seen).status_code == 204
    with JsonlStore(games) as store:
        store.append(won("planet"))
    app.state.site.index.sync()
    assert client.get(seen).text.startswith('<div id="overview"')


def test_the_overview_shows_the_arena(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_json(
        folder / "arena" / "results.json",
        arena_report([duel("river", "base", "imitation"), duel("river", "imitation", "base")], TABOO),
    )
    page = Reader(TestClient(site(folder), base_url="http://localhost").get("/").text).text
    page = " ".join(page.split())
    assert re.search(r"As attacker: .*?base ?\+1\.00 ?100 21–100", page)  # Wilson's interval of 1 in 1
    assert re.search(r"As defender: .*?base ?−1\.00 ?0 0–79", page)
    assert "The run does not record whether games on these tasks were trained on. Every pair" in page
    manifest = Manifest.open(folder)
    for name in ("1-imitation/train", "2-spag/iteration-1/train"):
        with manifest.running(name) as results:
            results["held_out"] = 0
    page = Reader(TestClient(site(folder), base_url="http://localhost").get("/").text).text
    assert "Held-out tasks, every pair in both roles." in page


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/games/spag-1/99", 404, "There is no game 99"),
        ("/games/elsewhere/1", 404, "There is no game 1"),
        ("/games?page=x", 422, "page:"),
        ("/games?outcome=draw", 422, "outcome:"),
        ("/games?step=-1", 422, "step:"),
        (f"/games?text={'x' * 300}", 422, "text:"),
        ("/nothing", 404, "Not found"),
        ("/docs", 404, "Not found"),
        ("/play/abcdef", 404, "no such game in your session"),
    ],
)
def test_faults_are_pages_too(client: TestClient, address: str, status: int, message: str) -> None:
    answer = client.get(address)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert message in answer.text


class Reader(HTMLParser):
    """Collects what a browser would act on, and the text that it would show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_inert(page: str) -> None:
    """Nothing in the page runs but the two scripts, nothing comes from elsewhere, and no character turns the text
    around.
    """
    reader = Reader(page)
    assert [attrs.get("src") for tag, attrs in reader.tags if tag == "script"] == [
        "/static/htmx.min.js",
        "/static/page.js",
    ]
    for tag, attrs in reader.tags:
        assert tag not in ("base", "embed", "iframe", "object", "style")
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
        assert all(
            (attrs.get(name) or "/").startswith(("/", "#")) for name in ("src", "href", "action", "hx-get", "hx-post")
        )
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b]", reader.text)
    assert len(page) < 200_000


def test_hostile_text_is_never_markup(client: TestClient) -> None:
    addresses = ["/", "/games", f"/games?task={SCRIPT}", f"/games?text={SCRIPT}"]
    addresses += [f"/games/spag-2/{number}" for number in range(3, 12)]
    for address in addresses:
        assert_inert(client.get(address).text)
    assert "{{ 7 * 7 }}" in client.get("/games/spag-2/8").text
    assert html.escape(SCRIPT, quote=False).replace("'", "&#39;") in client.get("/games/spag-2/3").text
    assert "70,000 more characters" in client.get("/games/spag-2/6").text


def test_titles_are_plain_text(client: TestClient) -> None:
    page = client.get("/games/spag-2/11").text  # its task is a script
    [title] = re.findall(r"<title>(.*?)</title>", page)
    assert title.startswith("&lt;script&gt;window.hacked") and "<" not in title


def test_only_games_are_neighbours(tmp_path: Path) -> None:
    games = tmp_path / "games.jsonl"
    write_rows(games, [won("river"), {"hello": 1}, won("bread"), {"hello": 2}])
    client = TestClient(site(games), base_url="http://localhost")
    pages = [client.get(f"/games/games/{number}").text for number in (1, 3)]
    links = [re.findall(r'<a rel="(\w+)" href="/games/games/(\d+)"', page) for page in pages]
    assert links == [[("next", "3")], [("prev", "1")]]


@pytest.mark.slow
def test_a_damaged_file_is_named_and_its_part_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_json(folder / "arena" / "results.json", {"game": "adversarial_taboo", "roles": []})
    page = Reader(TestClient(site(folder), base_url="http://localhost").get("/").text).text
    assert "arena/results.json: " in page and str(folder) not in page
    assert "2-spag iteration-2" in page and "2 games" in page
    write_json(folder / "manifest.json", {"schema_version": 1, "measured": {}, "stages": {"arena": {"status": "done"}}})
    page = Reader(TestClient(site(folder), base_url="http://localhost").get("/").text).text
    assert "manifest.json: arena: object missing" in page and "3 games" in page


def test_a_file_of_episodes_can_be_browsed_and_its_bots_played(run: Path) -> None:
    with visitor(site(run / "2-spag" / "iteration-1" / "episodes.jsonl")) as client:
        assert "<b>3 games</b>" in client.get("/games").text
        assert re.findall(r'<option value="([^"]+)">', client.get("/play").text) == ["bot:constant"]
        answer = client.post("/play", data={"role": "attacker", "opponent": "base"})
        assert (answer.status_code, "choose an opponent" in answer.text) == (422, True)


def test_a_game_is_explained_by_the_rules_that_it_was_played_by(tmp_path: Path) -> None:
    """A phase may play the run's game with a setting of its own."""
    games = []
    for take in (3, 5):
        nim = get("nim", take=take)
        task, said = Task(f"heap-{take}", {"stones": take}), (Utterance("player_0", f"[{take}]"),)
        end = nim.replay(task, said)
        played = Episode(task=task, history=said, game=nim.name, id=task.id, settings=settings_of(nim))
        games.append(replace(played, outcome=end.outcome, reason=end.reason))
    write_rows(tmp_path / "games.jsonl", games)
    with visitor(site(tmp_path / "games.jsonl")) as client:
        pages = [client.get(f"/games/games/{number}").text for number in (1, 2)]
    for page in pages:
        assert "Player_0 took the last stone." in page and "Played under other rules" not in page


def test_another_game_brings_its_own_labels_and_board(tmp_path: Path) -> None:
    with visitor(site(bot_games("tic_tac_toe", tmp_path / "games.jsonl"))) as client:
        pages = {
            address: client.get(address).text for address in ("/", "/games", "/games/games/1", "/play", "/game.css")
        }
    assert '<option value="player_0_wins">player_0 (X) wins</option>' in pages["/games"]
    assert ".o-player_0_wins { --fill: #0072b2;" in pages["/game.css"]
    assert re.search(r'<span class="board">.*\n.*\n', pages["/games/games/1"])
    assert '<option value="bot:perfect">' in pages["/play"]
    for page in pages.values():
        assert not re.search(r"attacker|defender|taboo", page, re.IGNORECASE)
