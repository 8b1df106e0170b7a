"""spag's games behind OpenEnv's server, played by OpenEnv's own client over HTTP."""

import json
import runpy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from expected import check_thoughts_are_private
from fastapi import FastAPI
from openenv.cli._validation import validate_running_environment
from openenv.core import GenericEnvClient
from openenv.validation.runner import run_validation
from openenv.validation.types import Level
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from samplings import sampling_with
from spag.adapters.openenv import GameAction, GameClient, GameEnvironment, create_app
from spag.adapters.opponent import Opponent, engine_of
from spag.core.errors import ConfigError, EngineError
from spag.core.types import Split
from spag.engines.base import Engine, Request
from spag.engines.scripted import ScriptedEngine
from spag.engines.thread import REPLY_LIMIT_S
from spag.games.base import Game
from spag.games.registry import SHIPPED, get
from spag.web.security import MOST_BYTES, REQUEST_S, Access, ApiGuard
from spag.web.server import listen, make_server

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "openenv"
TOKEN = "a-token-of-sixteen-characters"


@contextmanager
def serving(app: FastAPI, sessions: int = 32) -> Iterator[str]:
    """Serve ``app`` on a free port of this machine and yield its address."""
    with listen("127.0.0.1", 0) as listener:
        server = make_server(app, limit_concurrency=2 * sessions + 32, ws_max_size=MOST_BYTES)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(
    name: str, opened: Callable[[], Engine] | str, access: Access | None = None, limit_s: float = 60, **more: Any
) -> Iterator[str]:
    game = get(name)
    opened = engine_of(opened, game) if isinstance(opened, str) else opened
    with (
        Opponent(game, opened, limit_s=limit_s) as opponent,
        serving(create_app(game, opponent, access or Access(), **more)) as url,
    ):
        yield url


def played(client: Any, seed: int, text: Callable[[str], str]) -> list[Any]:
    """Return all that a client gets to see of a game."""
    seen = [client.reset(seed=seed, episode_id=f"game-{seed}"), client.state()]
    while not seen[-2].done:
        seen += [client.step(GameAction(text=text(seen[-2].observation.prompt))), client.state()]
    return seen


def careful(prompt: str) -> str:
    return "[check]" if "[check] or [bet]" in prompt[-40:] else "[call]"


@pytest.fixture(scope="module")
def kuhn() -> Iterator[str]:
    with served("kuhn_poker", "bot:random", sessions=8) as url:
        yield url


def test_whole_games_with_seed_and_episode_id(kuhn: str) -> None:
    with GameClient(kuhn).sync() as client:
        games = [played(client, seed, careful) for seed in range(12)]
    for seed, seen in enumerate(games):
        last, state = seen[-2], seen[-1]
        assert seen[1].episode_id == state.episode_id == f"game-{seed}" and seen[1].outcome is None
        assert (
            state.step_count == len(seen) // 2 - 1
            and state.outcome == last.observation.outcome
            and last.observation.reason
        )
        assert last.reward in (-2, -1, 1, 2) and all(step.reward == 0 for step in seen[:-2:2])
    assert {game[1].role for game in games} == {"player_0", "player_1"}
    with GenericEnvClient(base_url=kuhn).sync() as client:
        assert client.reset(seed=3, role="player_0").observation["role"] == "player_0"


def test_the_client_waits_longer_than_the_server() -> None:
    assert GameClient("http://127.0.0.1:1")._message_timeout > max(REQUEST_S, REPLY_LIMIT_S)
    assert GameClient("http://127.0.0.1:1", message_timeout_s=1)._message_timeout == 1


def test_games_at_once_are_the_games_alone(kuhn: str) -> None:
    def play(seed: int) -> list[Any]:
        with GameClient(kuhn).sync() as client:
            return played(client, seed, careful)

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(play, range(6)))
    assert together == [play(seed) for seed in range(6)]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_client_gets_the_games_prompt_and_nothing_else(name: str) -> None:
    """The conformance suite tests that a prompt holds no secret."""
    game = get(name)
    with Opponent(game, lambda: ScriptedEngine(lambda request: "[1] [check]")) as opponent:
        env = GameEnvironment(game, game.tasks(Split.TRAIN, 5, 0), opponent)
        for role in game.roles:
            seen = env.reset(seed=1, episode_id="x", role=role)
            assert env._position is not None and not seen.done
            prompt = game.prompt(game.observe(env._position, role))
            rest = {"done": False, "reward": 0.0, "metadata": {}, "outcome": None, "reason": None}
            assert seen.model_dump() == {"role": role, "prompt": prompt, **rest}
            public = {"episode_id": "x", "step_count": 0, "game": name, "role": role, "outcome": None}
            assert env.state.model_dump() == public


BAD = {
    "a negative seed": ("/reset", {"json": {"seed": -3}}, 422),
    "a seed that is a word": ("/reset", {"json": {"seed": "x"}}, 422),
    "a seed too large": ("/reset", {"json": {"seed": 2**70}}, 409),
    "a long id": ("/reset", {"json": {"episode_id": "x" * 300}}, 422),
    "an unknown role": ("/reset", {"json": {"role": "x"}}, 409),
    "no session": ("/step", {"json": {"action": {"text": "x"}}}, 409),
    "another action": ("/step", {"json": {"action": {"txt": "x"}}}, 422),
    "a long utterance": ("/step", {"json": {"action": {"text": "x" * 3000}}}, 422),
    "no JSON": ("/step", {"content": "{"}, 422),
    "too many bytes": ("/reset", {"content": "x" * 70_000}, 413),
    "no length": ("/reset", {"content": iter([b"{}"])}, 411),
    "a page that is not there": ("/nothing", {"json": {}}, 404),
    "the tasks": ("/spag-kuhn_poker/task", {"json": {"split": "train", "index": 0}}, 501),
    "another name for this machine": ("/reset", {"json": {}, "headers": {"Host": "evil.example"}}, 421),
    "a page of another site": ("/reset", {"json": {}, "headers": {"Origin": "http://evil.example"}}, 403),
}


@pytest.mark.parametrize(("path", "request_", "status"), BAD.values(), ids=BAD.keys())
def test_bad_requests_get_one_line(kuhn: str, path: str, request_: dict[str, Any], status: int) -> None:
    answer = httpx.post(kuhn + path, **request_)
    assert answer.status_code == status
    assert (
        answer.json().keys() == {"detail"}
        and isinstance(answer.json()["detail"], str)
        and "\n" not in answer.json()["detail"]
    )


def test_bad_messages_leave_the_game_where_it_was(kuhn: str) -> None:
    with connect(kuhn.replace("http", "ws") + "/ws") as socket:

        def say(message: Any) -> Any:
            socket.send(message if isinstance(message, str) else json.dumps(message))
            return json.loads(socket.recv())

        begun = say({"type": "reset", "data": {"seed": 3, "role": "player_0"}})
        assert begun["type"] == "observation"
        resets, steps = ({"seed": "x"}, {"episode_id": 7}), ({"text": "x" * 3000}, {})
        for bad in ("{", {"type": "x"}, *({"type": "reset", "data": data} for data in resets),
                    *({"type": "step", "data": data} for data in steps)):  # fmt: skip
            assert say(bad)["type"] == "error"
        assert say({"type": "state"})["data"]["step_count"] == 0
        assert say({"type": "step", "data": {"text": "[check]"}})["type"] == "observation"
        with pytest.raises(ConnectionClosed):
            say({"type": "step", "data": {"text": "x" * 70_000}})


def test_sessions_are_bounded_and_end_when_nothing_is_said() -> None:
    with served("kuhn_poker", "bot:random", sessions=1, idle_s=0.5) as url:
        with GameClient(url).sync() as first, pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
            first.reset(seed=0)
            with GameClient(url).sync() as second:
                second.reset(seed=0)
        with connect(url.replace("http", "ws") + "/ws") as silent, pytest.raises(ConnectionClosed):
            silent.recv(timeout=120)
        with GameClient(url).sync() as third:
            assert third.reset(seed=0).observation.prompt


def test_any_other_address_asks_for_a_token() -> None:
    with pytest.raises(ConfigError, match="a token is required"):
        Access("0.0.0.0")
    with served("kuhn_poker", "bot:random", Access("0.0.0.0", TOKEN)) as url:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for headers in ({}, {"Authorization": "Bearer x"}):
            answer = httpx.post(f"{url}/reset", json={}, headers=headers)
            assert (
                answer.status_code == 401
                and answer.json()["detail"] == "A token is required: Authorization: Bearer TOKEN."
            )
            with pytest.raises(InvalidStatus, match="401"):
                connect(url.replace("http", "ws") + "/ws", additional_headers=headers)
        assert httpx.post(f"{url}/reset", json={}, headers=bearer).status_code == 200
        with GameClient(url, headers=bearer).sync() as client:
            assert played(client, 1, careful)[-2].done


def test_a_failing_opponent_leaves_the_game_where_it_was() -> None:
    replies = iter(["Hm?", EngineError("the endpoint is gone"), "Hm."])

    def reply(request: Request) -> str:
        said = next(replies)
        if isinstance(said, EngineError):
            raise said
        return said

    with (
        served("adversarial_taboo", lambda: ScriptedEngine(reply), role="attacker") as url,
        GameClient(url).sync() as client,
    ):
        client.reset(seed=1)
        client.step(GameAction(text="Hello."))
        with pytest.raises(RuntimeError, match="the opponent failed: the endpoint is gone"):
            client.step(GameAction(text="Again."))
        assert client.state().step_count == 1
        assert client.step(GameAction(text="Again.")).observation.prompt  # it is opened again


def test_a_slow_opponent_and_a_slow_request_are_given_up() -> None:
    slow = ScriptedEngine(lambda request: "Hm.", latency_s=1.0)
    with served("adversarial_taboo", lambda: slow, limit_s=0.1, role="defender") as url:
        answer = httpx.post(f"{url}/reset", json={})
        assert answer.status_code == 503 and answer.json()["detail"].startswith(
            "the opponent failed: the model has not answered"
        )
    app = FastAPI()
    app.get("/")(lambda: threading.Event().wait(0.5))
    app.add_middleware(ApiGuard, access=Access(), request_s=0.05)
    with serving(app) as url:
        assert httpx.get(url).status_code == 408


def test_openenvs_own_validation_passes(kuhn: str) -> None:
    report = validate_running_environment(kuhn)
    assert report["passed"], [criterion for criterion in report["criteria"] if not criterion["passed"]]


def test_the_example_plays_and_its_manifest_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_validation(EXAMPLE, max_level=Level.STATIC)
    assert [(result.check_id, str(result.status.value)) for result in report.results] == [("static.manifest", "pass")]
    assert yaml.safe_load((EXAMPLE / "openenv.yaml").read_text(encoding="utf-8"))["app"] == "server.app:app"
    monkeypatch.setenv("SPAG_GAME", "kuhn_poker")
    monkeypatch.setenv("SPAG_OPPONENT", "bot:equilibrium")
    app = runpy.run_path(str(EXAMPLE / "server" / "app.py"))["app"]
    with serving(app) as url, GameClient(url).sync() as client:
        assert played(client, 5, careful)[-2].done


def test_a_role_that_the_game_does_not_have_is_refused() -> None:
    game: Game = get("kuhn_poker")
    with (
        Opponent(game, engine_of("bot:random", game)) as opponent,
        pytest.raises(ConfigError, match="has the roles player_0, player_1"),
    ):
        create_app(game, opponent, Access(), role="attacker")


def test_thoughts_are_private() -> None:
    """The client thinks, and so does the opponent."""
    game = get("kuhn_poker")

    def play(reply: str) -> object:
        heard: list[str] = []

        def answer(request: Request) -> str:
            heard.append(request.prompt)
            return reply

        with Opponent(game, lambda: ScriptedEngine(answer), sampling_with(thought_tokens=100)) as opponent:
            env = GameEnvironment(game, game.tasks(Split.TRAIN, 5, 0), opponent)
            seen = [env.reset(seed=1, episode_id="x", role="player_0")]
            while not seen[-1].done:
                seen.append(env.step(GameAction(text=reply)))
        return heard, [one.model_dump() for one in seen]

    check_thoughts_are_private(play)
