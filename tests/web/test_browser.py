"""The page in a real Chromium: whole games in both roles, live filters, a growing run, and hostile text that does
nothing.

Needs Playwright and Debian's ``chromium`` package; without them these tests are skipped.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI
from web_fixtures import OVERRIDE, SCRIPT, TypingEngine, make_run, serve, site, won

from online_files import write_online
from spag.core.errors import EngineError
from spag.engines.base import Request
from spag.storage.episodes import JsonlStore

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no /usr/bin/chromium: apt-get install chromium"),
]

Serve = Callable[[FastAPI], str]
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def faults() -> list[str]:
    """What a page must not do: open dialogs, report errors, ask other hosts."""
    return []


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def served() -> Iterator[Serve]:
    """Serves applications, each until the page is closed: it asks for more to the end."""
    with ExitStack() as servers:
        yield lambda app: servers.enter_context(serve(app))


@pytest.fixture
def page(browser: "sync_api.Browser", served: Serve, faults: list[str]) -> Iterator["sync_api.Page"]:
    """A page of a fresh profile, without faults to the end."""
    context = browser.new_context()
    context.set_default_timeout(120_000)
    opened = context.new_page()
    opened.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("request", lambda request: faults.append(request.url) if "//127.0.0.1:" not in request.url else None)
    yield opened
    assert opened.evaluate("window.hacked") is None
    context.close()
    assert [fault for fault in faults if "the server responded with a status of" not in fault] == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", hostile=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a run is served that nobody changes."""
    with serve(site(make_run(tmp_path_factory.mktemp("browser") / "run", hostile=True))) as served:
        yield served


def talk(*lines: str) -> TypingEngine:
    """Return an engine that says ``lines`` in turn, as the test lets it."""
    left = iter(lines)
    return TypingEngine(lambda request: next(left))


def begin_game(page: "sync_api.Page") -> None:
    """Begin a game, and wait until its page has its scripts: before that, Enter is a line break."""
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/play/*")


def test_a_whole_game_as_attacker(page: "sync_api.Page", served: Serve, run: Path) -> None:
    engine = talk("I like long walks in the hills.", "You mean a river, surely.")
    address = served(site(run, lambda name: engine))
    page.goto(f"{address}/play")
    page.get_by_role("radio", name="Attacker").check()
    page.get_by_label("Your own task, as attacker").fill("river")
    page.get_by_label("Play against").select_option("imitation")
    begin_game(page)
    page.get_by_label("Your utterance").fill("Where do you swim in summer?")
    page.keyboard.press("Enter")
    engine.say(2)
    page.locator("#reply .text", has_text=re.compile("^I like$")).wait_for()
    engine.say()
    page.locator("#u2", has_text="I like long walks in the hills.").wait_for()
    assert page.locator("#utterance").evaluate("field => field === document.activeElement")
    page.get_by_label("Your utterance").fill("And what runs through the valley?")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("heading", name="You win").wait_for()
    assert page.locator("mark").inner_text() == "river"
    assert page.locator(".decisive").get_attribute("id") == "u4"
    assert 'The defender said "river".' in page.locator(".verdict").inner_text()


def test_a_whole_game_as_defender(page: "sync_api.Page", served: Serve, run: Path) -> None:
    engine = talk("Have you been outside today?", "What flows past your house?")
    engine.say()
    address = served(site(run, lambda name: engine))
    page.goto(f"{address}/play")
    page.get_by_role("radio", name="Defender").check()
    begin_game(page)
    page.get_by_label("Your utterance").fill("Only in the garden.")
    assert page.locator("h1").inner_text() == "Adversarial Taboo"
    assert "river" not in page.content()
    page.keyboard.press("Enter")
    page.locator("#u3", has_text="What flows").wait_for()
    assert "river" not in page.content()
    page.get_by_label("Your utterance").fill("I know the word! It is a River!")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="You win").wait_for()
    assert page.locator("mark").inner_text() == "River"
    assert page.locator("h1").inner_text() == "river"
    page.get_by_role("link", name="Play again").click()
    page.wait_for_url("**/play")
    assert "defender wins" in page.locator(".games").inner_text()


def test_filters_answer_while_typing_and_make_links(page: "sync_api.Page", address: str, faults: list[str]) -> None:
    page.goto(f"{address}/games")
    assert page.locator(".games > li").count() == 14
    page.get_by_label("Outcome").select_option("defender_wins")
    page.wait_for_url("**/games?outcome=defender_wins")
    page.locator(".count", has_text="1 game").wait_for()
    page.get_by_label("Outcome").select_option("")
    page.get_by_label("Search what was said").press_sequentially("good evening")
    page.locator(".count", has_text=re.compile("^1 game$")).wait_for()
    page.wait_for_url("**/games?text=good+evening")
    page.reload()
    assert page.get_by_label("Search what was said").input_value() == "good evening"
    assert page.locator(".games .task").inner_text() == "garden"
    page.get_by_label("Search what was said").fill(SCRIPT)
    page.wait_for_url("**/games?text=*script*")
    page.locator(".games .task").first.click()
    page.get_by_role("link", name="All games on this task").click()
    page.wait_for_url("**/games?task=**")
    assert page.locator(".games > li").count() == 1
    ended, aborted = (f"htmx:{event}, [object HTMLDivElement]" for event in ("afterRequest", "sendAbort"))
    assert faults.count(ended) == faults.count(aborted)
    faults[:] = [fault for fault in faults if fault not in (ended, aborted)]  # on a slow machine typing aborts requests


def test_hostile_text_is_shown_as_written_and_does_nothing(page: "sync_api.Page", address: str) -> None:
    for path in ("/", "/games"):
        page.goto(address + path)
        assert page.locator("main script, main img, main iframe").count() == 0
    page.goto(f"{address}/games/spag-2/3")
    assert page.locator("#u1 .text").inner_text() == SCRIPT
    page.goto(f"{address}/games/spag-2/4")
    assert page.locator("#u1 .text").inner_text() == OVERRIDE.replace("\u202e", "U+202E").replace("\u200b", "U+200B")
    page.goto(f"{address}/games/spag-2/6")  # 90,000 letters without a space
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.goto(f"{address}/games/spag-2/10")
    assert page.locator("#u1 .text").inner_text() == "مرحبا بكم"
    assert page.locator("#u1 .text").evaluate("box => getComputedStyle(box).direction") == "rtl"
    assert page.locator("#u1 .who").evaluate("box => getComputedStyle(box).direction") == "ltr"


def test_a_running_run_is_followed(page: "sync_api.Page", served: Serve, run: Path) -> None:
    address = served(site(run))
    with JsonlStore(run / "2-spag" / "iteration-2" / "episodes.jsonl") as store:
        page.goto(address)
        assert "running" in page.locator(".stage.started").inner_text()
        page.locator(".share-count", has_text="11 games").wait_for()
        store.append(won("planet", ident="new"))
        page.locator(".share-count", has_text="12 games").wait_for()
        assert page.locator(".games .task").first.inner_text() == "planet"


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("document.querySelector('.share-name').focus()", "document.activeElement.blur()"),
        (
            "getSelection().selectAllChildren(document.querySelector('#overview h1'))",
            "getSelection().removeAllRanges()",
        ),
    ],
    ids=["focus", "selection"],
)
def test_the_overview_waits_for_its_reader(
    page: "sync_api.Page", served: Serve, run: Path, begin: str, end: str
) -> None:
    address = served(site(run))
    with JsonlStore(run / "2-spag" / "iteration-2" / "episodes.jsonl") as store:
        page.goto(address)
        page.locator(".share-count", has_text="11 games").wait_for()
        page.evaluate(begin)
        store.append(won("planet", ident="new"))
        while "12 games" not in page.request.get(address).text():  # until the index has followed
            page.wait_for_timeout(100)
        for _ in range(2):  # polls, of which the second is asked after that
            with page.expect_response(lambda answer: "seen=" in answer.url):
                pass
        assert page.locator(".share-count").last.inner_text() == "11 games"
        page.evaluate(end)
        page.locator(".share-count", has_text="12 games").wait_for()


def test_a_dead_engine_says_so_and_the_game_goes_on(page: "sync_api.Page", served: Serve, run: Path) -> None:
    tries: list[Request] = []

    def answer(request: Request) -> str:
        tries.append(request)
        if len(tries) == 1:
            raise EngineError("the endpoint at localhost:1 does not answer; start it")
        return "Nice weather, is it not?"

    engine = TypingEngine(answer)
    engine.say()
    address = served(site(run, lambda name: engine))
    page.goto(f"{address}/play")
    page.get_by_role("radio", name="Defender").check()
    begin_game(page)
    assert "the endpoint at localhost:1 does not answer" in page.get_by_role("alert").inner_text()
    page.get_by_role("button", name="Try again").click()
    page.locator("#u1", has_text="Nice weather").wait_for()
    page.get_by_label("Your utterance").wait_for()


def test_the_links_to_all_pages_are_whole_on_a_phone(page: "sync_api.Page", served: Serve, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 375, "height": 700})
    page.goto(served(site(write_online(tmp_path / "run"))))
    boxes = [link.bounding_box() for link in page.locator(".top nav a").all()]
    assert len(boxes) == 3 and len({(box["y"], box["height"]) for box in boxes if box}) == 1
    assert all(box and box["height"] < 40 for box in boxes)  # one line


def test_a_server_that_is_gone_is_named(page: "sync_api.Page", run: Path, faults: list[str]) -> None:
    with serve(site(run)) as address:
        page.goto(address)
        assert not page.locator("#offline").is_visible()
        page.evaluate("scrollTo(0, 500)")
    page.locator("#offline").wait_for()
    box = page.locator("#offline").bounding_box()
    assert box is not None and box["y"] > 0  # in view
    page.goto("about:blank")
    assert faults
    assert all(
        "ERR_CONNECTION_REFUSED" in fault or fault.startswith(("htmx:sendError", "htmx:afterRequest"))
        for fault in faults
    )
    faults.clear()


def test_the_token_opens_the_door(page: "sync_api.Page", served: Serve, run: Path) -> None:
    address = served(site(run, token="correct-horse-battery"))
    page.goto(f"{address}/games")
    page.get_by_label("The token").fill("wrong")
    page.get_by_role("button", name="Continue").click()
    assert page.get_by_role("alert").inner_text() == "That is not the token."
    page.get_by_label("The token").fill("correct-horse-battery")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("heading", name="run").wait_for()
    assert all(cookie["httpOnly"] and cookie["sameSite"] == "Strict" for cookie in page.context.cookies())
