"""The application: its routes, and the loop that follows a running run."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import RunError, SpagError
from spag.engines.base import Engine
from spag.engines.opening import open_player
from spag.engines.players import is_local
from spag.engines.thread import REPLY_LIMIT_S
from spag.report.html import game_style
from spag.runs.reading import RunFolder
from spag.storage.jsonfile import begins_list
from spag.storage.manifest import MANIFEST
from spag.web import live_games, pages
from spag.web.index import GameIndex
from spag.web.security import Access, Guard
from spag.web.sessions import ModelPool, OpenModel
from spag.web.site import Site

logger = logging.getLogger(__name__)

CONCURRENCY = 4  # utterances that a model generates at once
FOLLOW_S = 1.0  # seconds between two reads of a run's files


def create_app(
    path: Path, access: Access, *, open_model: OpenModel | None = None, reply_limit_s: float = REPLY_LIMIT_S
) -> FastAPI:
    """Return the application for the run folder or episodes file at ``path``. Raises ``SpagError``.

    ``open_model`` opens an opponent by its displayed name (``base``, ``spag-1``, ``bot:NAME``).
    """
    game_style(*_check(path).games.values())  # raises for a game that cannot be shown
    models = ModelPool(open_model or partial(_open_opponent, path), partial(_stamp, path))
    app = FastAPI(lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.site = Site(path, access, models, reply_limit_s)
    app.include_router(pages.router)
    app.include_router(live_games.router)
    app.mount("/static", StaticFiles(packages=[("spag.web", "static"), ("spag.report", "static")]), name="static")
    for kind in (SpagError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, pages.on_error)
    app.add_middleware(Guard, access=access)
    return app


def _open_opponent(path: Path, name: str) -> Engine:
    """Open a bot, or a model of the run at ``path``. Raises ``RunError`` if it is gone."""
    run = RunFolder(path)
    model = run.model(name) if is_local(name) else ModelConfig(name=name)
    # transformers, whatever the run uses: its replies can be shown as they grow, and two models fit in memory
    return open_player(model, run.game, EngineConfig(concurrency=CONCURRENCY, backend="transformers"))


def _stamp(path: Path, name: str) -> tuple[int, int] | None:
    """Return what changes when a model of the run at ``path`` is trained again; ``None`` if it has no files there."""
    if place := RunFolder(path).checkpoints().get(name):  # else a bot
        with suppress(OSError):  # an id of the hub
            found = Path(place).stat()
            return found.st_ino, found.st_mtime_ns
    return None


def _check(path: Path) -> RunFolder:
    """Return the run at ``path``. Raises ``RunError`` when there is nothing to show."""
    run = RunFolder(path)
    if path.is_file():
        with path.open("rb") as stream:
            if begins_list(stream.read(64)):
                raise RunError(f"{path}: a JSON list; import it first: spag import episodes {path} --output FILE")
    elif not path.is_dir():
        raise RunError(f"{path}: no such run folder or file of episodes")
    elif not (path / MANIFEST).exists() and not any(run.sources()):
        raise RunError(f"{path}: neither a manifest.json nor games in it; name the --output of spag run")
    return run


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    site: Site = app.state.site
    follower = asyncio.create_task(_follow(site.index))
    follower.add_done_callback(partial(_on_end, site.index))
    yield
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    site.models.close()
    site.index.close()


async def _follow(index: GameIndex) -> None:
    """Keep the index up to date while the server runs; the pages name what cannot be read."""
    while True:
        is_behind = await run_in_threadpool(index.sync)
        await asyncio.sleep(0 if is_behind else FOLLOW_S)


def _on_end(index: GameIndex, follower: "asyncio.Task[None]") -> None:
    """Report in the terminal and on the page if the loop ended unexpectedly, which is a bug."""
    if not follower.cancelled() and (error := follower.exception()):
        logger.error("the run is no longer followed", exc_info=error)
        fault = type(error).__name__
        index.stop(f"The run is no longer followed ({fault}); restart spag web. Its terminal says more.")
