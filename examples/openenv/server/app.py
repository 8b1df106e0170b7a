"""Adversarial Taboo, or any game of spag, as an OpenEnv environment with a built-in opponent; clients play over /ws.

    pip install '.[openenv]'
    python examples/openenv/server/app.py --opponent smollm2-135m        # on http://127.0.0.1:8000

A client, in any program:

    from spag.adapters.openenv import GameAction, GameClient
    with GameClient("http://127.0.0.1:8000").sync() as client:
        seen = client.reset(seed=7, episode_id="first", role="attacker")
        while not seen.done:
            seen = client.step(GameAction(text=model(seen.observation.prompt)))
        print(seen.reward, seen.observation.outcome)

Under another server (openenv.yaml, ``uvicorn server.app:app``) environment variables hold the settings: SPAG_HOST and
so on.
"""

import argparse
import os

from fastapi import FastAPI

from spag.adapters.openenv import create_app, serve
from spag.adapters.opponent import Opponent, engine_of
from spag.games.registry import get
from spag.web.security import Access


def settings(words: list[str] | None) -> argparse.Namespace:
    """Return the settings: from the command line, else from the environment."""
    parser = argparse.ArgumentParser(description="serve a game of spag as an OpenEnv environment")
    parser.add_argument("--game", default=os.environ.get("SPAG_GAME", "adversarial_taboo"))
    parser.add_argument(
        "--opponent", default=os.environ.get("SPAG_OPPONENT", "smollm2-135m"), help="bot:NAME, openai:MODEL or a model"
    )
    parser.add_argument(
        "--role", default=os.environ.get("SPAG_ROLE"), help="the role that clients play; any by default"
    )
    parser.add_argument(
        "--host", default=os.environ.get("SPAG_HOST", "127.0.0.1"), help="any but loopback needs SPAG_WEB_TOKEN"
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sessions", type=int, default=32, help="games at once")
    return parser.parse_args(words)


def build(given: argparse.Namespace, access: Access) -> FastAPI:
    """Return the application; its opponent is opened in the background."""
    game = get(given.game)
    return create_app(
        game, Opponent(game, engine_of(given.opponent, game)), access, role=given.role, sessions=given.sessions
    )


def main() -> None:
    """Serve until interrupted."""
    given = settings(None)
    access = Access(given.host, os.environ.get("SPAG_WEB_TOKEN"))
    serve(build(given, access), access, given.port, sessions=given.sessions)


if __name__ == "__main__":
    main()
else:
    app = build(settings([]), Access(settings([]).host, os.environ.get("SPAG_WEB_TOKEN")))
