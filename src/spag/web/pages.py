"""Read-only pages: overview, games, one game, token, errors."""

import asyncio
import hashlib
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathField
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spag.core.types import State
from spag.games.base import Game
from spag.games.replay import explain
from spag.report.arena_tables import role_table
from spag.report.html import game_style
from spag.report.readable import ReadableRun
from spag.report.run_tables import arena_note
from spag.runs.records import StageProgress
from spag.web import queries
from spag.web.figures import phases_of
from spag.web.index import MOST_LINES
from spag.web.queries import GameFilter
from spag.web.security import LOGIN, TOKEN_COOKIE, set_cookie
from spag.web.site import TheSite, form_of, is_swap, site_of

LATEST = 8
_WRONG_TOKEN_S = 1.0

router = APIRouter(default_response_class=HTMLResponse)


@router.get("/game.css")
def style(site: TheSite) -> Response:
    """The colors of the games."""
    return Response(game_style(*site.run().games.values()), media_type="text/css")


@router.get("/")
def overview(request: Request, site: TheSite, seen: str = "") -> Response:
    """The state of the run; a damaged file is named and its part omitted. An htmx poll whose state was already
    ``seen`` gets 204.
    """
    known = site.run()
    run = ReadableRun(known)
    stages: list[StageProgress] = run.part(known.progress, [])  # none if the manifest is damaged
    phases = list(phases_of(run))  # reads the metrics, so before the faults are listed
    faults = filter(None, [site.fault, *site.index.faults, *run.damage])
    body = site.render(
        request,
        "_overview.html",
        config=run.config,
        stages=stages,
        plan=run.plan,
        bars=[(run.games[name], queries.bars(counts)) for name, counts in queries.outcome_counts(site.index).items()],
        arena_note=arena_note(run),
        phases=phases,
        arena_tables=[role_table(run.arena, run.game, role) for role in run.game.roles] if run.arena else [],
        held_out_doubt=run.held_out_doubt,
        latest=queries.latest_games(site.index, LATEST),
        faults=[*dict.fromkeys(map(site.short, faults))],
    )
    shown = hashlib.sha256(body.encode()).hexdigest()[:16]
    if is_swap(request):
        return Response(status_code=204) if shown == seen else site.page(request, "_live.html", body=body, seen=shown)
    return site.page(request, "overview.html", body=body, seen=shown)


@router.get("/games")
def games(request: Request, site: TheSite, asked: Annotated[GameFilter, Query()]) -> HTMLResponse:
    """The list of games. htmx requests only the results, and gets the short form of the address."""
    kinds = site.run().games
    known = {
        "game": {name: kind.title for name, kind in kinds.items()},
        "outcome": {one.name: one.label for kind in kinds.values() for one in kind.outcomes.values()},
    }
    for name, own in known.items():
        if getattr(asked, name) not in (None, *own):
            titles = ", ".join(kind.title for kind in kinds.values())
            raise HTTPException(422, f"{name}: {titles} has no such {name}")
    found = queries.find_games(site.index, asked)
    if is_swap(request):
        answer = site.page(request, "_games.html", asked=asked, found=found)
        answer.headers["HX-Replace-Url"] = f"/games?{asked.address(found.page)}".rstrip("?")
        return answer
    choices = queries.choices(site.index)
    if asked.source:
        choices["source"].setdefault(asked.source, asked.source)  # those of online steps are not listed
    return site.page(request, "games.html", choices=choices | known, asked=asked, found=found)


@router.get("/games/{source}/{number}")
def game(
    request: Request, site: TheSite, source: str, number: Annotated[int, PathField(ge=1, le=MOST_LINES)]
) -> HTMLResponse:
    """One game with its verdict."""
    episode = site.index.episode(source, number)
    if episode is None:
        raise HTTPException(404, f"There is no game {number} in {source[:100]}.")
    shown = site.game_of(episode)
    before, after = queries.neighbours(site.index, source, number)
    return site.page(
        request,
        "game.html",
        game=shown,
        source=source,
        number=number,
        before=before,
        after=after,
        episode=episode,
        task=shown.describe_task(episode.task),
        players={role: player.model for role, player in episode.players.items()},
        explained=explain(shown, episode),
        board=_board(shown, State(episode.task, episode.seed or 0, episode.history)),
    )


def _board(shown: Game, state: State) -> str:
    """Return the view of the last position, in games that draw one."""
    view = shown.describe_view(shown.observe(state, shown.roles[0]))
    return view if "\n" in view.strip() else ""


@router.get(LOGIN)
async def login_page(request: Request, site: TheSite) -> Response:
    """The form that asks for the token."""
    return site.page(request, "login.html", run="", error=None)


@router.post(LOGIN)
async def login(request: Request, site: TheSite) -> Response:
    """Check a token and set a cookie. A wrong token is answered after a second."""
    if not site.access.is_token((await form_of(request)).get("token", "")):
        await asyncio.sleep(_WRONG_TOKEN_S)
        return site.page(request, "login.html", 403, run="", error="That is not the token.")
    answer = RedirectResponse("/", 303)
    set_cookie(answer, request, TOKEN_COOKIE, site.access.cookie)
    return answer


async def on_error(request: Request, error: Exception) -> Response:
    """Answer a ``SpagError``, an ``HTTPException`` or a ``RequestValidationError``."""
    status, message = 409, str(error)
    if isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status, message = 422, f"{first['loc'][-1]}: {str(first['msg']).lower()}"
    title = "Not found" if status == 404 else "That did not work"
    site, template = await site_of(request), "_error.html" if is_swap(request) else "error.html"
    shown = {} if site.access.admits(request) else {"run": ""}  # as at LOGIN
    return site.page(request, template, status, title=title, message=message, **shown)
