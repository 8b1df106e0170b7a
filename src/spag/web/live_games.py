"""Playing: starting a game, speaking, and showing the reply as it grows.

A reply is followed by long polling: each request gives the number of characters on the page, and is answered when there
are more. When the reply is done, the whole match is swapped. Until the game is over, no response contains anything
hidden from the visitor's role.
"""

import asyncio
import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spag.algorithms.settings import TeacherSettings
from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.core.options import SamplingConfig
from spag.games.replay import Explanation, explain
from spag.report.html import capital
from spag.runs.reading import RunFolder
from spag.web.security import SESSION_COOKIE, cookie_of, set_cookie
from spag.web.sessions import LONGEST_UTTERANCE, Session, WebMatch, draw_task, informed_roles
from spag.web.site import Site, TheSite, form_of, is_swap

HOLD_S = 10.0  # how long a request waits for news
_LOOK_S = 0.05

router = APIRouter(default_response_class=HTMLResponse)


# Plain functions would run in worker threads, but sessions and games have no lock.
async def session_of(request: Request, site: TheSite) -> Session | None:
    """Dependency: the visitor's session, if any."""
    return site.sessions.find(cookie_of(request, SESSION_COOKIE))


TheSession = Annotated[Session | None, Depends(session_of)]


async def match_of(match_id: str, session: TheSession) -> WebMatch:
    """Dependency: a game of this visitor; other visitors' games are not found."""
    match = session.get(match_id) if session is not None else None
    if match is None:
        raise HTTPException(404, "There is no such game in your session; it may have expired.")
    return match


TheMatch = Annotated[WebMatch, Depends(match_of)]


@router.get("/play")
async def lobby(request: Request, site: TheSite, session: TheSession) -> HTMLResponse:
    """Choose an opponent and a role."""
    return _lobby(request, site, session)


@router.post("/play")
async def start(request: Request, site: TheSite, session: TheSession) -> Response:
    """Begin a game and go to its page."""
    form, run = await form_of(request), site.run()
    opponent, role, text = form.get("opponent", ""), form.get("role", ""), form.get("task", "").strip()
    try:
        if opponent not in site.opponents()[0] or role not in run.game.roles:
            raise DataError("choose an opponent and a role")
        is_own = text and role in informed_roles(run.game)
        task = run.game.custom_task(text) if is_own else await run_in_threadpool(draw_task, run.game)
        state = run.game.start(task, secrets.randbits(62))
    except DataError as error:
        return _lobby(request, site, session, 422, str(error))
    match = WebMatch(run.game, state, role, opponent, site.models, _sampling(run), site.reply_limit_s)
    name = site.sessions.add(cookie_of(request, SESSION_COOKIE), match)
    answer = RedirectResponse(f"/play/{match.id}", 303)
    set_cookie(answer, request, SESSION_COOKIE, name)
    return answer


def _sampling(run: RunFolder) -> SamplingConfig:
    """Return the sampling of the last phase that plays the game; the arena's greedy play would repeat itself."""
    for model in reversed(run.models):
        settings, games = model.phase.settings, {game.name for game in model.games}
        if run.game.name in games and not isinstance(settings, TeacherSettings):
            found: SamplingConfig = settings.sampling
            return found
    return SamplingConfig()


def _lobby(
    request: Request, site: Site, session: Session | None, status_code: int = 200, error: str | None = None
) -> HTMLResponse:
    opponents, fault = site.opponents()
    context = {"opponents": opponents, "informed": informed_roles(site.run().game), "error": error or fault}
    matches = list(reversed(session.values())) if session else []
    return site.page(request, "play.html", status_code, matches=matches, **context)


@router.get("/play/{match_id}")
async def match_page(request: Request, site: TheSite, match: TheMatch) -> HTMLResponse:
    """The page of a game."""
    match.advance()
    return _match(request, site, match)


@router.post("/play/{match_id}/say")
async def say(request: Request, site: TheSite, match: TheMatch) -> Response:
    """Take the visitor's utterance."""
    form = await form_of(request)
    text = form.get("text", "")
    try:
        match.say(text.replace("\r\n", "\n"), form.get("after"))
    except DataError as error:
        return _match(request, site, match, 422, fault=str(error), draft=text[:LONGEST_UTTERANCE])
    return _match(request, site, match) if is_swap(request) else RedirectResponse(f"/play/{match.id}", 303)


@router.post("/play/{match_id}/retry")
async def retry(request: Request, site: TheSite, match: TheMatch) -> Response:
    """Ask again after a reply failed."""
    match.retry()
    return _match(request, site, match) if is_swap(request) else RedirectResponse(f"/play/{match.id}", 303)


@router.get("/play/{match_id}/reply")
async def reply(request: Request, site: TheSite, match: TheMatch, seen: int = 0) -> HTMLResponse:
    """Respond once the reply has more than ``seen`` characters, is done, or ten seconds have passed."""
    until = time.monotonic() + HOLD_S
    while True:
        match.advance()
        if match.reply is None:
            answer = _match(request, site, match)
            answer.headers.update({"HX-Retarget": "#match", "HX-Reswap": "outerHTML"})
            return answer
        text = match.reply_so_far
        if len(text) > seen or time.monotonic() > until:
            return site.page(request, "_reply.html", match=match, text=text)
        await asyncio.sleep(_LOOK_S)


def _match(
    request: Request, site: Site, match: WebMatch, status_code: int = 200, *, fault: str | None = None, draft: str = ""
) -> HTMLResponse:
    template, explained = "_match.html" if is_swap(request) else "match.html", _explanation(match)
    context = {"match": match, "text": match.reply_so_far, "fault": fault, "draft": draft, "longest": LONGEST_UTTERANCE}
    return site.page(request, template, status_code, explained=explained, title=_title(match, explained), **context)


def _explanation(match: WebMatch) -> Explanation | None:
    state = match.state
    played = Episode(task=state.task, history=state.history, game=match.game.name, seed=state.seed)
    return explain(match.game, played) if match.is_over else None


def _title(match: WebMatch, explained: Explanation | None) -> str:
    """Return how a game ended, as the visitor sees it."""
    if explained is None:
        return ""
    outcome = explained.outcome
    if outcome.fault:
        return "You broke a rule" if outcome.fault == match.human else "Your opponent broke a rule"
    if match.human in outcome.winners:
        return "You both win" if match.other in outcome.winners else "You win"
    return "You lose" if outcome.winners else capital(outcome.label)
