"""The application: the routes together with what they need, and the loop that follows a running run."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spag.config.schema import RunConfig
from spag.core.errors import RunError, SpagError
from spag.engines.base import Engine
from spag.engines.opening import open_engine, sampling_of
from spag.games.taboo.judge.judge import JudgeMode
from spag.games.taboo.rules import AdversarialTaboo
from spag.games.taboo.types import Role
from spag.games.taboo.wordlist import load_words
from spag.games.taboo.words import Split, split_of
from spag.runs.folder import RunFolder
from spag.runs.stages import prompts_of
from spag.web import pages, play_pages
from spag.web.games import GameRoom, Rules, Sessions
from spag.web.index import GameIndex
from spag.web.security import LOGIN, TOKEN_COOKIE, Access, Guard
from spag.web.site import Site, form_of, is_swap, site_of
from spag.web.speakers import REPLY_LIMIT_S, Speakers

logger = logging.getLogger(__name__)

FOLLOW_S = 1.0  # between two looks at the files of a run
CONCURRENCY = 4  # utterances a model works on at once
_WRONG_TOKEN_S = 1.0

OpenCheckpoint = Callable[[str], Engine]


def create_app(
    path: Path, access: Access, *, open_checkpoint: OpenCheckpoint | None = None, reply_limit_s: float = REPLY_LIMIT_S
) -> FastAPI:
    """Return the application for the run folder or episodes file at ``path``.

    ``open_checkpoint`` opens a model by its name on the page (``base``, ``imitation``, ``iteration-1``); by default as the run's settings
    say. Raises ``SpagError`` when ``path`` cannot be shown.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    judge = JudgeMode(config.game.judge) if config else JudgeMode.STRICT
    room = None
    if config is not None:
        speakers = Speakers(open_checkpoint or (lambda name: _open_checkpoint(folder, name)))
        room = GameRoom(_rules(config), speakers, reply_limit_s)
    site = Site(folder, GameIndex(folder.sources, judge), access, Sessions(), room)
    app = FastAPI(lifespan=_lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.site = site
    app.include_router(pages.router)
    app.include_router(play_pages.router)
    app.add_api_route(LOGIN, _login_page, methods=["GET"], response_class=HTMLResponse)
    app.add_api_route(LOGIN, _login, methods=["POST"], response_model=None)
    app.mount("/static", StaticFiles(packages=[("spag.web", "static")]), name="static")
    app.add_exception_handler(SpagError, _on_spag_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_middleware(Guard, access=access)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    site: Site = app.state.site
    follower = asyncio.create_task(_follow(site.index))
    yield
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    if site.room is not None:
        site.room.speakers.close()
    site.index.close()


async def _follow(index: GameIndex) -> None:
    """Keep the index up with the files for as long as the server runs."""
    while True:
        is_behind = False
        try:
            is_behind = await run_in_threadpool(index.sync)
        except SpagError as error:  # a config.yaml that is being replaced by hand, say
            logger.warning("cannot follow the run: %s", error)
        await asyncio.sleep(0 if is_behind else FOLLOW_S)


def _open_checkpoint(folder: RunFolder, name: str) -> Engine:
    config, checkpoints = folder.config(), folder.checkpoints()
    if config is None or name not in checkpoints:
        raise RunError(f"{folder.path}: the checkpoint {name} is gone")
    model = config.model.model_copy(update={"name": checkpoints[name]})
    # transformers, whatever the run plays with: its replies can be watched, and two checkpoints fit beside each other
    return open_engine(model, config.engine.model_copy(update={"concurrency": CONCURRENCY, "backend": "transformers"}))


def _rules(config: RunConfig) -> Rules:
    @cache
    def words() -> list[str]:
        listed = load_words(config.words.source, config.words.top)
        return [word for word in listed if split_of(word) is Split.HELD_OUT] or listed

    return Rules(
        game=AdversarialTaboo(JudgeMode(config.game.judge)),
        prompts=prompts_of(config.game),
        max_turns=config.game.max_turns,
        sampling={Role.ATTACKER: sampling_of(config.selfplay.attacker), Role.DEFENDER: sampling_of(config.selfplay.defender)},
        draw_word=lambda: random.SystemRandom().choice(words()),
    )


async def _login_page(request: Request) -> Response:
    return site_of(request).page(request, "login.html", run="", error=None)


async def _login(request: Request) -> Response:
    """Check a token and remember the visitor by a cookie. A wrong one costs a second."""
    site = site_of(request)
    if not site.access.is_token((await form_of(request)).get("token", "")):
        await asyncio.sleep(_WRONG_TOKEN_S)
        return site.page(request, "login.html", 403, run="", error="That is not the token.")
    answer = RedirectResponse("/", 303)
    answer.set_cookie(TOKEN_COOKIE, site.access.cookie, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


async def _on_spag_error(request: Request, error: Exception) -> Response:
    return _error_page(request, 409, str(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error_page(request, error.status_code, str(error.detail))


async def _on_bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _error_page(request, 422, f"{first['loc'][-1]}: {str(first['msg']).lower()}")


def _error_page(request: Request, status: int, message: str) -> Response:
    title = "Not found" if status == 404 else "That did not work"
    return site_of(request).page(request, "_error.html" if is_swap(request) else "error.html", status, title=title, message=message)
