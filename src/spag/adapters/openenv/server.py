"""The server: OpenEnv's own application around ``GameEnvironment``, behind ``ApiGuard``, with bounds on everything a client can ask for.

    access = Access()  # loopback; any other address needs a token
    serve(create_app(game, opponent, access), access, 8000)

Games are played over ``/ws``, a session each. OpenEnv's plain ``/reset`` and ``/step`` make a new environment for every request, so nothing
can be played there: ``/step`` answers 409.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig, ServerMode
from starlette.exceptions import HTTPException

from spag.adapters.guard import IDLE_S, ApiGuard, refusal
from spag.adapters.openenv.environment import GameEnvironment, GameState, Say, Seen, Venue
from spag.adapters.opponent import Opponent
from spag.core.errors import ConfigError, EngineError, SpagError, first_line
from spag.core.types import Split, Task
from spag.games.base import Game
from spag.web.app import listen
from spag.web.security import MOST_BYTES, Access

SESSIONS = 32


def create_app(
    game: Game,
    opponent: Opponent,
    access: Access,
    *,
    role: str | None = None,
    tasks: Sequence[Task] | None = None,
    sessions: int = SESSIONS,
    idle_s: float = IDLE_S,
) -> FastAPI:
    """Return the application. ``role``: the one that clients play, any when ``None``; ``tasks``: the train split when ``None``."""
    if role is not None and role not in game.roles:
        raise ConfigError(f"role {role!r}: {game.name} has the roles {', '.join(game.roles)}")
    venue = Venue(game, tasks or game.tasks(Split.TRAIN, None, 0), opponent, role)
    app: FastAPI = create_fastapi_app(
        partial(GameEnvironment, venue),
        Say,
        Seen,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=idle_s),
        env_name=f"spag-{game.name}",
        state_cls=GameState,
        mode=ServerMode.SIMULATION,
    )
    for kind in (SpagError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _one_line)
    app.add_middleware(ApiGuard, access=access, idle_s=idle_s)
    return app


def make_server(app: FastAPI, *, sessions: int = SESSIONS) -> uvicorn.Server:
    """Return the server of ``app``, which bounds what comes before the application: messages in size, connections in number."""
    most = {"ws_max_size": MOST_BYTES, "limit_concurrency": 2 * sessions + 32, "timeout_graceful_shutdown": 2}
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, **most))  # type: ignore[arg-type]


def serve(app: FastAPI, access: Access, port: int, *, sessions: int = SESSIONS) -> None:
    """Serve ``app``, made with the same ``access``, until interrupted. Raises ``ConfigError`` for an address that cannot be used."""
    with listen(access.host, port) as listener, suppress(KeyboardInterrupt):
        make_server(app, sessions=sessions).run(sockets=[listener])


def _one_line(request: Request, error: Exception) -> Response:
    """Answer an error in one line, with the status of whose fault it is."""
    if isinstance(error, RequestValidationError):
        return refusal(422, _first_fault(error.errors()))
    if isinstance(error, HTTPException):
        faults = error.detail if isinstance(error.detail, list) else None
        return refusal(error.status_code, _first_fault(faults) if faults else first_line(Exception(error.detail)))
    return refusal(503 if isinstance(error, EngineError) else 409, first_line(error))


def _first_fault(faults: Sequence[Any]) -> str:
    place = ".".join(str(part) for part in faults[0]["loc"])
    return f"{place}: {faults[0]['msg']}"
