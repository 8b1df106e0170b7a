"""A run whose files are damaged while it is served: no page fails, the overview names the file, and all is well once it
is back.
"""

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from test_pages import Reader
from web_fixtures import at_once, duel, index_all, make_run, site, visitor, won

from online_files import write_online
from spag.config.files import dump_config, parse_config
from spag.evaluation.arena.standings import arena_report
from spag.evaluation.health import health
from spag.storage.episodes import JsonlStore
from spag.storage.store import write_json
from taboo_games import TABOO

OTHERS: list[Any] = [None, True, -1, 0, 10**30, 1e308, "text", "", "\ud800", [], [1], {}, {"a": 1}, [[[]]]]
"""What stands in the place of a part of a file."""
ADDRESSES = ["/", "/games", "/games?task=river", "/play", "/game.css", "/nothing"]
ADDRESSES += ["/games/spag-2/1", "/games/online-step-00001/1"]


NAMES = ["manifest.json", "config.yaml", "results.json", "health.json", "metrics.jsonl", "episodes.jsonl"]
NAMES += ["evaluations.jsonl", "opponents.jsonl", "warnings.jsonl", "step-00001.jsonl"]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


WHOLE: Mapping[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": cut,
    "torn at the end": lambda data: data[:-2],
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "nested": lambda data: b"[" * 3000 + b"]" * 3000 + b"\n",
    "nested inside": lambda data: data.rstrip()[:-1] + b',"a":' + b"[" * 3000 + b"]" * 3000 + b"}\n",
    "NaN": lambda data: re.sub(rb"\b[0-9.]+\b", b"NaN", data),
    "infinite": lambda data: re.sub(rb"\b[0-9]+\.[0-9]+\b", b"1e999", data),
    "huge numbers": lambda data: re.sub(rb"\b[0-9.]+\b", b"9" * 400, data),
    "numbers as text": lambda data: re.sub(rb": ?([0-9.e-]+)", rb': "\1"', data),
    "another game": lambda data: data.replace(b"kuhn_poker", b"tic_tac_toe").replace(
        b"adversarial_taboo", b"kuhn_poker"
    ),
    "no such game": lambda data: data.replace(b"kuhn_poker", b"no_game").replace(b"adversarial_taboo", b"no_game"),
    "a list": lambda data: b"[1, 2]\n",
}


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_instead(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


PLACES: Mapping[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "a folder": folder_instead,
    "a link to itself": link_instead,
}


def parts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every part of a JSON value; of a list those in its first element."""
    yield place
    for key, part in (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    ):
        yield from parts(part, (*place, key))


def exchanged(data: bytes, chosen: random.Random) -> bytes:
    """Return a JSON or JSON-lines file in which one part is of another kind, or gone."""
    is_lines = data.count(b"\n{") > 0
    rows = [json.loads(line) for line in data.splitlines()] if is_lines else [json.loads(data)]
    row = chosen.choice([0, -1])
    *above, last = chosen.choice([place for place in parts(rows[row]) if place])
    at = rows[row]
    for key in above:
        at = at[key]
    if chosen.random() < 0.15:
        del at[last]
    else:
        at[last] = chosen.choice(OTHERS)
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows)


class Served:
    """A served run, its files as they were, and a visitor."""

    def __init__(self, folder: Path, client: TestClient) -> None:
        self.folder, self.client = folder, client
        self.files = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.name in NAMES}

    def check(self) -> None:
        """Every page answers."""
        self.sync()
        for address in ADDRESSES:
            answer = self.client.get(address)
            assert answer.status_code < 500, (address, answer.text)
        assert self.client.get("/").status_code == 200
        assert self.client.post("/play", content="role=attacker&opponent=nobody").status_code < 500

    def notices(self) -> list[str]:
        """Return what the overview says that it cannot read."""
        boxes = re.findall(r'<div class="notice bad faults">.*?</div>', self.client.get("/").text, re.DOTALL)
        return [Reader(fault).text for box in boxes for fault in re.findall(r"<li>.*?</li>", box, re.DOTALL)]

    def sync(self) -> None:
        index_all(self.client.app.state.site.index)  # type: ignore[attr-defined]  # of FastAPI

    def restore(self, path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.write_bytes(self.files[path])
        self.sync()


def full_run(folder: Path) -> Path:
    """A run with every file that the page reads."""
    make_run(folder)
    games = [duel("river", "base", "imitation"), duel("river", "imitation", "base")]
    write_json(folder / "arena" / "results.json", arena_report(games, TABOO))
    write_json(folder / "iteration-1" / "health.json", health(games, TABOO))
    return folder


@pytest.fixture(scope="module", params=[full_run, write_online], ids=["offline", "online"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = request.param(tmp_path_factory.mktemp("damaged") / "run")
    with visitor(site(folder, at_once(lambda request: "Well."))) as client:
        yield Served(folder, client)


def damage(served: Served, path: Path, kind: str) -> None:
    """Damage a file, ask for every page, and put it back."""
    try:
        if kind in PLACES:
            PLACES[kind](path)
        else:
            path.write_bytes(
                WHOLE[kind](served.files[path]) if kind in WHOLE else exchanged(served.files[path], random.Random(kind))
            )
        served.check()
    finally:
        served.restore(path)
    assert served.notices() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*WHOLE, *PLACES])
def test_a_damaged_file_fails_no_page(served: Served, kind: str) -> None:
    chosen = random.Random(kind)
    for path in {chosen.choice([*served.files]) for _ in range(2)}:
        damage(served, path, kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_part_of_another_kind_fails_no_page(served: Served, seed: int) -> None:
    path = random.Random(seed).choice([path for path in served.files if path.suffix != ".yaml"])
    damage(served, path, f"another kind of part, {seed}")


def test_a_file_that_cannot_be_read_for_a_moment_is_named_and_followed_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with visitor(site(folder)) as client:
        served = Served(folder, client)
        games = folder / "2-spag" / "iteration-2" / "episodes.jsonl"
        config = folder / "config.yaml"
        more = ["phases=[{algorithm: spag}, {algorithm: reinforce, game: {name: nim}}]"]
        config.write_text(dump_config(parse_config(config.read_text(), "test", more)))
        served.sync()
        assert served.notices() == []
        served.restore(config)
        assert served.notices() == []  # a game that was never played is not missed
        for path, text in ((config, b"\xff\xfe binary"), (config, b"game: {name: kuhn_poker}\n")):
            path.write_bytes(text)
            served.sync()
            [notice] = served.notices()
            assert notice.startswith(
                ("config.yaml: not UTF-8 at byte 0", f"{folder}: another game than before, kuhn_poker")
            )
            assert ">2 games<" in client.get("/").text and client.get("/games/spag-2/1").status_code == 200
            served.restore(path)
        games.rename(folder / "kept")
        games.symlink_to("/proc/self/mem")  # opens, and fails when it is read: what a dying disk does
        served.sync()
        assert served.notices() == ["2-spag/iteration-2/episodes.jsonl: cannot be read: Input/output error"]
        games.unlink()
        (folder / "kept").rename(games)
        with JsonlStore(games) as store:
            store.append(won("planet", ident="new"))
        served.sync()
        assert served.notices() == []
        assert ">3 games<" in client.get("/").text and "planet" in client.get("/").text


@pytest.mark.slow
def test_bots_can_be_played_while_the_models_cannot_be_found(tmp_path: Path) -> None:
    folder = write_online(tmp_path / "run")
    with visitor(site(folder)) as client:
        (folder / "manifest.json").write_text("{")
        page = client.get("/play")
        assert (page.status_code, "bot:random" in page.text, "The run&#39;s models cannot be found: " in page.text) == (
            200,
            True,
            True,
        )
        assert client.post("/play", content="role=player_0&opponent=bot:random").status_code == 200


def test_a_loop_that_ends_by_itself_says_so_on_the_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = site(make_run(tmp_path / "run"))
    index = app.state.site.index

    def fail() -> bool:
        raise AssertionError("a fault of ours")

    index.sync = fail
    with visitor(app) as client:
        notice = "The run is no longer followed (AssertionError); restart spag web"
        while notice not in client.get("/").text:
            pass
    assert "a fault of ours" in caplog.text


def test_metrics_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with visitor(site(folder)) as client:
        (folder / "1-imitation" / "metrics.jsonl").write_text("nonsense\n")
        [notice] = Served(folder, client).notices()
        assert notice.startswith("1-imitation/metrics.jsonl:1: not JSON")
