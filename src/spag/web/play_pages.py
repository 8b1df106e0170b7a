"""Playing: starting a game, speaking, and watching the model's reply grow.

The reply is watched by a chain of waiting requests: each says how much the page shows already, and is answered as soon as there is more.
When the reply is done the whole table is swapped. The target word is in no answer before the visitor may know it.
"""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spag.core.episodes import Episode
from spag.core.errors import DataError, RunError
from spag.games.taboo.explain import Explanation, explain
from spag.games.taboo.types import Role
from spag.web.games import LONGEST_UTTERANCE, GameRoom, HumanGame, Session, checked_word
from spag.web.security import SESSION_COOKIE
from spag.web.site import Site, form_of, is_swap, site_of

HOLD_S = 10.0  # how long a request waits for news
_LOOK_S = 0.05

router = APIRouter(default_response_class=HTMLResponse)
TheSite = Annotated[Site, Depends(site_of)]


def room_of(site: TheSite) -> GameRoom:
    """Dependency: the room to play in. Raises ``RunError`` where there is none."""
    if site.room is None:
        raise RunError(f"{site.folder.path}: no config.yaml, so there is no model to play against; give spag web the folder of a run")
    return site.room


TheRoom = Annotated[GameRoom, Depends(room_of)]


def session_of(request: Request, site: TheSite) -> Session | None:
    """Dependency: the visitor's session, if there is one."""
    return site.sessions.find(request.cookies.get(SESSION_COOKIE))


TheSession = Annotated[Session | None, Depends(session_of)]


def game_of(game_id: str, session: TheSession) -> HumanGame:
    """Dependency: a game of this visitor; those of others do not exist for them."""
    game = session.games.get(game_id) if session else None
    if game is None:
        raise HTTPException(404, "There is no such game in your session; it may have been too long ago.")
    return game


TheGame = Annotated[HumanGame, Depends(game_of)]


@router.get("/play")
async def lobby(request: Request, site: TheSite, session: TheSession) -> HTMLResponse:
    """Choose a checkpoint and a side."""
    games = list(reversed(session.games.values())) if session else []
    return site.page(request, "play.html", checkpoints=list(site.folder.checkpoints()), games=games, error=None)


@router.post("/play")
async def start(request: Request, site: TheSite, room: TheRoom, session: TheSession) -> Response:
    """Begin a game and go to its page."""
    form = await form_of(request)
    checkpoint, side, word = form.get("checkpoint", ""), form.get("role", ""), form.get("word", "").strip()
    checkpoints = list(site.folder.checkpoints())
    games = list(reversed(session.games.values())) if session else []
    try:
        if checkpoint not in checkpoints or side not in set(Role):
            raise DataError("choose a checkpoint and a side")
        name, session = (None, session) if session else site.sessions.create()
        is_own = word and side == Role.ATTACKER
        target = checked_word(word) if is_own else await run_in_threadpool(room.rules.draw_word)  # loading the list takes a while
        game = room.start(session, checkpoint, Role(side), target)
    except DataError as error:
        return site.page(request, "play.html", 422, checkpoints=checkpoints, games=games, error=str(error))
    answer = RedirectResponse(f"/play/{game.id}", 303)
    if name is not None:
        answer.set_cookie(SESSION_COOKIE, name, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


@router.get("/play/{game_id}")
async def table(request: Request, site: TheSite, room: TheRoom, game: TheGame) -> HTMLResponse:
    """The page of a game."""
    room.advance(game)
    return _table(request, site, game)


@router.post("/play/{game_id}/say")
async def say(request: Request, site: TheSite, room: TheRoom, game: TheGame) -> Response:
    """Take the visitor's utterance."""
    text = (await form_of(request)).get("text", "")
    try:
        room.say(game, text.replace("\r\n", "\n"))
    except DataError as error:
        return _table(request, site, game, status_code=422, fault=str(error), draft=text[:LONGEST_UTTERANCE])
    return _table(request, site, game) if is_swap(request) else RedirectResponse(f"/play/{game.id}", 303)


@router.post("/play/{game_id}/retry")
async def retry(request: Request, site: TheSite, room: TheRoom, game: TheGame) -> Response:
    """Ask the model again after it failed."""
    room.retry(game)
    return _table(request, site, game) if is_swap(request) else RedirectResponse(f"/play/{game.id}", 303)


@router.get("/play/{game_id}/reply")
async def reply(request: Request, site: TheSite, room: TheRoom, game: TheGame, seen: int = 0) -> HTMLResponse:
    """Answer once the reply has more than ``seen`` characters, or is done, or ten seconds have passed."""
    until = time.monotonic() + HOLD_S
    while True:
        room.advance(game)
        if game.reply is None:
            answer = _table(request, site, game)
            answer.headers.update({"HX-Retarget": "#table", "HX-Reswap": "outerHTML"})
            return answer
        text = game.reply.speaker.text_so_far(game.reply)
        if len(text) > seen or time.monotonic() > until:
            return site.page(request, "_reply.html", game=game, text=text)
        await asyncio.sleep(_LOOK_S)


def _table(
    request: Request, site: Site, game: HumanGame, *, status_code: int = 200, fault: str | None = None, draft: str = ""
) -> HTMLResponse:
    text = game.reply.speaker.text_so_far(game.reply) if game.reply else ""
    return site.page(
        request,
        "_table.html" if is_swap(request) else "table.html",
        status_code,
        game=game,
        text=text,
        fault=fault,
        draft=draft,
        longest=LONGEST_UTTERANCE,
        verdict=_explanation(site, game),
    )


def _explanation(site: Site, game: HumanGame) -> Explanation | None:
    verdict, state = game.state.verdict, game.state
    if verdict is None:
        return None
    episode = Episode(
        target_word=state.target_word, max_turns=state.max_turns, history=state.history, outcome=verdict.outcome, reason=verdict.reason
    )
    return explain(episode, site.index.judge)
