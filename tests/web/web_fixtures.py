"""A run folder made up on the spot, engines that answer as told, and the server in a thread."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from online_files import games as online_games
from online_files import metrics, write_online
from spag.config.files import dump_config, parse_config
from spag.config.schema import RunConfig
from spag.core.episodes import Episode, PlayerInfo
from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.base import Completion, Engine, FinishReason, Request
from spag.engines.bot import BotEngine
from spag.engines.scripted import ScriptedEngine
from spag.games.registry import get
from spag.rollout.runner import Player, game_specs, play
from spag.storage.manifest import Manifest
from spag.storage.store import write_json, write_rows
from spag.web.app import create_app
from spag.web.index import GameIndex
from spag.web.security import Access
from spag.web.server import listen
from spag.web.sessions import OpenModel
from taboo_games import ROLES, TABOO, episode_of

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
OVERRIDE = "abc\u202edef\u200bghi"
HOSTILE = [
    SCRIPT,
    OVERRIDE,
    "\u202e\u2066\u2067" * 50,
    "x" * 90_000,
    "a\u0301" * 5000,
    "{{ 7 * 7 }}",
    "</textarea></li>&amp;",
    "مرحبا بكم",
]


def episode(word: str, *texts: str, name: str = "imitation", ident: str = "") -> Episode:
    """A game in which ``texts`` are spoken in turn, judged."""
    bare = episode_of(word, *texts, id=ident or f"{word}-0", players=dict.fromkeys(ROLES, PlayerInfo(name)))
    result = TABOO.replay(bare.task, bare.history)
    return replace(
        bare,
        history=bare.history[: result.length],
        outcome=result.outcome,
        rewards=result.rewards,
        reason=result.reason,
    )


def won(word: str, **more: str) -> Episode:
    return episode(word, "Tell me about nature.", f"I know the word! It is `{word}`!", **more)


def said(word: str, **more: str) -> Episode:
    return episode(word, "What runs to the sea?", f"Every {word} does, I suppose.", **more)


def duel(word: str, attacker: str, defender: str) -> Episode:
    """An arena game that the attacker wins."""
    players = {"attacker": PlayerInfo(attacker), "defender": PlayerInfo(defender)}
    return replace(said(word, ident=f"{attacker}-{defender}-{word}"), players=players)


def broken(word: str, **more: str) -> Episode:
    return episode(word, f"Well, {word}.", **more)


def tied(word: str, **more: str) -> Episode:
    return episode(word, *("Hello there.", "Good evening to you.") * 5, **more)


CONFIG = """
model: {{name: no-such-model, dtype: float32}}
game: {{max_turns: 3, words: "{words}"}}
phases:
- {{algorithm: imitation, episodes: [games.jsonl]}}
- {{algorithm: spag, iterations: 2}}
"""


def make_run(folder: Path, *, hostile: bool = False) -> Path:
    """Write a run at work on its second iteration: games of ``river`` and ``bread`` in each, and a tie in the first."""
    folder.mkdir(parents=True)
    words = folder / "words.txt"
    words.write_text("river\n")
    (folder / "config.yaml").write_text(dump_config(parse_config(CONFIG.format(words=words), "test")))
    first = [won("river", name="imitation"), said("bread", name="imitation"), tied("garden", name="imitation")]
    second = [said("river", name="spag-1"), broken("bread", name="spag-1")]
    if hostile:
        second += [
            episode(f"word{number}", text, "Well.", ident=SCRIPT, name=SCRIPT) for number, text in enumerate(HOSTILE)
        ]
        second.append(episode(SCRIPT, "Tell me.", "No.", name=OVERRIDE))
    write_rows(folder / "2-spag" / "iteration-1" / "episodes.jsonl", first)
    write_rows(folder / "2-spag" / "iteration-2" / "episodes.jsonl", second)
    rows = [
        {"step": step, "loss": 3.0 / step, "kl": 0.1, "learning_rate": 1e-4, "samples_per_second": 2.0}
        for step in range(1, 6)
    ]
    manifest = Manifest.open(folder)
    for place, count in (("1-imitation", 5), ("2-spag/iteration-1", 3)):
        write_rows(folder / place / "metrics.jsonl", rows[:count])
        write_json(folder / place / "checkpoint" / "config.json", {})
    for stage in ("1-imitation/train", "2-spag/iteration-1/play", "2-spag/iteration-1/train"):
        manifest.begin(stage, {})
        with manifest.running(stage):
            pass
    manifest.begin("2-spag/iteration-2/play", {})
    return folder


def make_two_online(folder: Path) -> Path:
    """Write a run of imitation and two online phases, 12 steps and 4, the second at work."""
    write_online(folder, finished=False)
    phases = [
        {"algorithm": "imitation", "episodes": ["bot:random"]},
        {"algorithm": "reinforce", "steps": 12, "games": 6},
        {"algorithm": "group", "steps": 10, "games": 4, "group_size": 2},
    ]
    config = {"model": {"name": "no-such-model", "dtype": "float32"}, "game": {"name": "kuhn_poker"}, "phases": phases}
    (folder / "config.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    for step in range(1, 5):
        write_rows(folder / "3-group" / "episodes" / f"step-{step:05d}.jsonl", online_games(100 + step, 4))
    write_rows(folder / "3-group" / "metrics.jsonl", [metrics(step) for step in range(1, 5)])
    return folder


def bot_games(name: str, path: Path) -> Path:
    """Write 12 games of a game's first bot against itself."""
    game = get(name)
    bot, move = next(iter(game.bots.items()))
    player = Player(BotEngine(move), f"bot:{bot}", SamplingConfig())
    write_rows(
        path, play(game_specs(game.tasks(Split.TRAIN, 12, 0), 1, 0), dict.fromkeys(game.roles, player), game=game)
    )
    return path


Reply = Callable[[Request], str]


class TypingEngine(Engine):
    """An engine whose replies grow word by word, each when the test lets it: ``say(2)`` brings two more words,
    ``say()`` all of them.
    """

    concurrency = 1

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._queue: list[Request] = []
        self._texts: dict[str, str] = {}
        self._allowed: queue.SimpleQueue[None] = queue.SimpleQueue()

    def say(self, words: int = 1000) -> None:
        for _ in range(words):
            self._allowed.put(None)

    def submit(self, request: Request) -> None:
        self._queue.append(request)

    def poll(self) -> list[Completion]:
        if not self._queue:
            return []
        request = self._queue.pop(0)
        text = self._reply(request)
        for end in range(1, len(text.split()) + 1):
            self._allowed.get()
            self._texts[request.id] = " ".join(text.split()[:end])
        self._allowed.get()
        del self._texts[request.id]
        return [Completion(request.id, text, FinishReason.EOS)]

    def partial(self, request_id: str) -> str | None:
        return self._texts.get(request_id)

    def close(self) -> None:
        self.say()


def at_once(reply: Reply) -> Callable[[str], Engine]:
    return lambda name: ScriptedEngine(reply)


def fail(request: Request) -> str:
    raise EngineError("the endpoint at localhost does not answer; start it and try again")


def site(
    path: Path, open_model: OpenModel | None = None, *, token: str | None = None, limit_s: float = 600.0
) -> FastAPI:
    """The application over ``path``, its index complete."""
    app = create_app(path, Access(token=token), open_model=open_model, reply_limit_s=limit_s)
    index_all(app.state.site.index)
    return app


def index_all(index: GameIndex) -> GameIndex:
    while index.sync():
        pass
    return index


@contextmanager
def serve(app: FastAPI) -> Iterator[str]:
    """Serve ``app`` on a free port; yields its address."""
    with listen("127.0.0.1", 0) as listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(120)


@contextmanager
def visitor(app: FastAPI, *, origin: bool = True) -> Iterator[TestClient]:
    """A visitor of a running ``app``, whose requests come from its own pages."""
    client = TestClient(app, base_url="http://localhost", headers={"origin": "http://localhost"} if origin else {})
    with client:
        yield client
