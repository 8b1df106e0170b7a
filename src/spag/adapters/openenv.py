"""spag's games as OpenEnv environments (0.10): one server, one game per session (extra ``openenv``). The client plays
one role as text, an ``Opponent`` the other.

    access = Access()  # loopback; any other address needs a token
    serve(create_app(game, opponent, access), access, 8000)

An observation is the prompt of the client's next turn; until the game is over, neither it nor the state reveals more of
the task. A seed decides task, role and every draw of the opponent; it is never sent back, since it reveals the task.

Games are played over ``/ws``, one session each. OpenEnv's plain ``/reset`` and ``/step`` make a new environment for
every request, so they cannot play a game: ``/step`` answers 409.
"""

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import (
    Action,
    ConcurrencyConfig,
    EnvironmentMetadata,
    Observation,
    ServerMode,
    State,
)  # fmt: skip
from pydantic import Field
from starlette.exceptions import HTTPException

from spag.adapters.opponent import Opponent
from spag.adapters.turns import after
from spag.core.errors import ConfigError, DataError, EngineError, SpagError, first_line
from spag.core.seeds import derive_seed
from spag.core.types import Split, Task
from spag.core.types import State as Position
from spag.games.base import Game
from spag.web import server
from spag.web.security import IDLE_S, MOST_BYTES, Access, ApiGuard, refusal
from spag.web.sessions import LONGEST_UTTERANCE

SESSIONS = 32
_LONGEST_ID = 255


class GameAction(Action):
    """The client's utterance."""

    text: str = Field(max_length=LONGEST_UTTERANCE, description="the utterance")


class GameObservation(Observation):
    """The view of the client's role. At the end ``prompt`` is empty, and ``outcome`` and ``reason`` are set."""

    role: str = Field(description="the role that the client plays")
    prompt: str = Field(default="", description="the prompt of the client's next turn")
    outcome: str | None = None
    reason: str | None = None


class GameState(State):
    """The public state: nothing of the task."""

    game: str = ""
    role: str | None = None
    outcome: str | None = None


class GameClient(EnvClient[GameAction, GameObservation, GameState]):
    """The client, with types; ``GenericEnvClient`` works too. It waits longer than the server does for its opponent."""

    def __init__(self, base_url: str | None = None, *, message_timeout_s: float = IDLE_S, **options: Any) -> None:
        super().__init__(base_url, message_timeout_s=message_timeout_s, **options)

    def _step_payload(self, action: GameAction) -> dict[str, Any]:
        return {"text": action.text}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[GameObservation]:
        done, reward = payload.get("done", False), payload.get("reward")
        return StepResult(GameObservation(**payload["observation"], done=done, reward=reward), reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> GameState:
        return GameState(**payload)


class GameEnvironment(Environment[GameAction, GameObservation, GameState]):
    """One session. Each ``reset`` begins a new game, on one of ``tasks``. ``role``: the client's, any if ``None``."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, game: Game, tasks: Sequence[Task], opponent: Opponent, role: str | None = None) -> None:
        super().__init__()
        self._game, self._tasks, self._opponent, self._roles = game, tasks, opponent, (role,) if role else game.roles
        self._role, self._episode_id, self._steps = "", "", 0
        self._position: Position | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, role: str | None = None, **_: Any
    ) -> GameObservation:
        """Begin a game. Raises ``DataError`` for an invalid seed, id or role."""
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise DataError(f"seed {str(seed)[:40]!r}: a seed is a whole number from 0 to 2^63 - 1")
        if episode_id is not None and not (isinstance(episode_id, str) and 0 < len(episode_id) <= _LONGEST_ID):
            raise DataError(f"episode_id {str(episode_id)[:40]!r}: an id has 1 to {_LONGEST_ID} characters")
        if role is not None and role not in self._roles:
            raise DataError(f"role {str(role)[:40]!r}: the roles to play here are {', '.join(self._roles)}")
        seed = secrets.randbits(62) if seed is None else seed
        task = self._tasks[derive_seed(seed, "task") % len(self._tasks)]
        role = role or self._roles[derive_seed(seed, "role") % len(self._roles)]
        position = self._until_turn_of(role, self._game.start(task, derive_seed(seed, task.id, 0)))
        self._role, self._steps, self._position = role, 0, position
        self._episode_id = episode_id or secrets.token_hex(8)
        return self._observation(position)

    def step(self, action: GameAction, timeout_s: float | None = None, **_: Any) -> GameObservation:
        """Play the client's utterance and the opponent's replies. If the opponent fails, the game does not change."""
        if self._position is None or self._position.result is not None:
            raise DataError("this session has no game in progress; reset it first")
        self._position = self._until_turn_of(self._role, after(self._game, self._position, action.text))
        self._steps += 1
        return self._observation(self._position)

    @property
    def state(self) -> GameState:
        result = self._position.result if self._position else None
        outcome, role = result.outcome if result else None, self._role or None
        state = GameState(game=self._game.name, role=role, outcome=outcome)
        state.episode_id, state.step_count = self._episode_id or None, self._steps
        return state

    def get_metadata(self) -> EnvironmentMetadata:
        game = self._game
        return EnvironmentMetadata(name=f"spag-{game.name}", description=f"{game.title}: {game.summary}")

    def _until_turn_of(self, role: str, position: Position) -> Position:
        while position.result is None and self._game.to_move(position) != role:
            position = self._game.apply(position, self._opponent.replies([position])[0])
        return position

    def _observation(self, position: Position) -> GameObservation:
        role, result = self._role, position.result
        if result is None:
            prompt = self._game.prompt(self._game.observe(position, role))
            return GameObservation(role=role, prompt=prompt, reward=0.0)
        reward, outcome, reason = result.rewards[role], result.outcome, result.reason
        return GameObservation(role=role, done=True, reward=reward, outcome=outcome, reason=reason)


def create_app(
    game: Game, opponent: Opponent, access: Access, *, role: str | None = None, tasks: Sequence[Task] | None = None,
    sessions: int = SESSIONS, idle_s: float = IDLE_S,
) -> FastAPI:  # fmt: skip
    """Return OpenEnv's application behind ``ApiGuard``. By default clients play any role, on the train split."""
    if role is not None and role not in game.roles:
        raise ConfigError(f"role {role!r}: {game.name} has the roles {', '.join(game.roles)}")
    tasks = tasks or game.tasks(Split.TRAIN, None, 0)
    app: FastAPI = create_fastapi_app(
        partial(GameEnvironment, game, tasks, opponent, role),
        GameAction,
        GameObservation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=idle_s),
        env_name=f"spag-{game.name}",
        state_cls=GameState,
        mode=ServerMode.SIMULATION,
    )
    for kind in (SpagError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _one_line)
    app.add_middleware(ApiGuard, access=access, idle_s=idle_s)
    return app


def serve(app: FastAPI, access: Access, port: int, *, sessions: int = SESSIONS) -> None:
    """Serve ``app``, made with the same ``access``, until interrupted. Raises ``ConfigError`` for a bad address."""
    server.serve(app, access.host, port, limit_concurrency=2 * sessions + 32, ws_max_size=MOST_BYTES)


def _one_line(request: Request, error: Exception) -> Response:
    """Return an error in one line, with a status for whose fault it is."""
    if not isinstance(error, RequestValidationError | HTTPException):
        return refusal(503 if isinstance(error, EngineError) else 409, first_line(error))
    status = error.status_code if isinstance(error, HTTPException) else 422
    faults: Any = error.detail if isinstance(error, HTTPException) else error.errors()
    if not isinstance(faults, list):
        return refusal(status, first_line(Exception(faults)))
    return refusal(status, f"{'.'.join(map(str, faults[0]['loc']))}: {faults[0]['msg']}")
