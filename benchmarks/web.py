"""How fast ``spag web`` answers over 50,000 games: whole HTTP requests on loopback, one visitor, by kind of request.

    python -m benchmarks.web [--games N] [--repeats N]

The games are made up: five iterations, six utterances of twenty common words each, with token ids and log-probabilities
as self-play writes them. Every repeat asks with other words and pages, so nothing is answered from a cache.
"""

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI

from spag.core.episodes import Episode, PlayerInfo
from spag.core.types import Utterance
from spag.games.taboo.taboo import AdversarialTaboo
from spag.games.taboo.words import shipped_words
from spag.storage.store import write_json, write_rows
from spag.web.app import create_app
from spag.web.security import Access
from spag.web.server import listen

ITERATIONS = 5
TARGET_MS = 300.0
TABOO = AdversarialTaboo()


def make_games(count: int, iteration: int, words: Sequence[str]) -> Iterator[Episode]:
    rng = random.Random(iteration)
    outcomes = list(TABOO.outcomes)
    players = dict.fromkeys(TABOO.roles, PlayerInfo(f"spag-{iteration - 1}"))
    for number in range(count):
        said = []
        for turn in range(rng.randint(1, 10)):
            text = " ".join(rng.choices(words, k=20))
            ids = tuple(rng.choices(range(32_000), k=25))
            said.append(Utterance(TABOO.roles[turn % 2], text, "eos", ids, tuple(-rng.random() for _ in ids)))
        word = words[number % len(words)]
        yield Episode(
            id=f"{word}-{number}",
            task=TABOO.custom_task(word),
            history=tuple(said),
            outcome=rng.choice(outcomes),
            reason="made up",
            players=players,
        )


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


Query = Callable[[random.Random], dict[str, str | int]]


def kinds(words: Sequence[str]) -> dict[str, tuple[str, Query]]:
    """Return what is asked: title to path and a maker of queries."""
    games: dict[str, Query] = {
        "first page": lambda rng: {},
        "any page": lambda rng: {"page": rng.randint(1, 1600)},
        "by iteration": lambda rng: {"source": f"spag-{rng.randint(1, ITERATIONS)}"},
        "by outcome": lambda rng: {"outcome": rng.choice(list(TABOO.outcomes))},
        "by word": lambda rng: {"task": rng.choice(words)},
        "text, one word": lambda rng: {"text": f'"{rng.choice(words)}"'},
        "text, while typing": lambda rng: {"text": rng.choice(words)[:3]},
        "text, three words": lambda rng: {"text": " ".join(rng.sample(list(words), 3))},
        "text and every filter": lambda rng: {
            "text": rng.choice(words), "task": rng.choice(words), "outcome": "attacker_wins", "source": "spag-3",
        },
    }  # fmt: skip
    return {
        **{f"games, {title}": ("/games", query) for title, query in games.items()},
        "one game": ("/games/spag-2/{}", lambda rng: {}),
        "overview": ("/", lambda rng: {}),
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args(given)
    words = shipped_words()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for iteration in range(1, ITERATIONS + 1):
            write_rows(
                run / f"1-spag/iteration-{iteration}" / "episodes.jsonl",
                make_games(options.games // ITERATIONS, iteration, words),
            )
        phases = [{"algorithm": "spag", "iterations": ITERATIONS}]
        write_json(run / "config.yaml", {"phases": phases})  # JSON is YAML too
        write_json(run / "manifest.json", {"measured": {}, "stages": {}})
        size = sum(path.stat().st_size for path in run.rglob("*.jsonl"))
        app = create_app(run, Access())
        started = time.perf_counter()
        while app.state.site.index.sync():
            pass
        seconds = time.perf_counter() - started
        print(f"{options.games:,} games, {size / 2**20:,.0f} MiB, indexed in {seconds:.1f} s\n")
        with serving(app) as address, httpx.Client(base_url=address) as client:
            measure(client, kinds(words), options.repeats, options.games // ITERATIONS)


def measure(client: httpx.Client, asked: dict[str, tuple[str, Query]], repeats: int, games: int) -> None:
    """Ask every kind of request ``repeats`` times, kinds interleaved, and print the times in milliseconds."""
    rng = random.Random(0)
    times: dict[str, list[float]] = {title: [] for title in asked}
    for _ in range(repeats):
        for title, (path, query) in asked.items():
            started = time.perf_counter()
            client.get(path.format(rng.randint(1, games)), params=query(rng)).raise_for_status()
            times[title].append(1000 * (time.perf_counter() - started))
    print(f"{'request':32} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}")
    for title, values in times.items():
        median, late = np.percentile(values, [50, 95])
        print(
            f"{title:32} {median:8.1f} {late:8.1f} {max(values):8.1f}{'' if late < TARGET_MS else '  over the target'}"
        )


if __name__ == "__main__":
    main()
