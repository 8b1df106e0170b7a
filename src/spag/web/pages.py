"""The pages that only read: the overview, the list of games, one game, one word across sources."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from starlette.responses import HTMLResponse, Response

from spag.games.taboo.explain import explain
from spag.games.taboo.types import Role
from spag.web import queries
from spag.web.queries import GameFilter
from spag.web.site import Site, is_swap, site_of

LATEST = 8
PER_SOURCE = 3
SUGGESTED = 40

router = APIRouter(default_response_class=HTMLResponse)
TheSite = Annotated[Site, Depends(site_of)]


@router.get("/")
def overview(request: Request, site: TheSite, seen: str = "") -> Response:
    """How far the run is, how its games ended, and the latest of them.

    htmx asks for the same again and again, saying what it has ``seen``; while nothing changed, the page is left alone.
    """
    stages = site.folder.stages()
    trained = [stage.name.partition("/")[0] for stage in stages if stage.name.endswith("/train")]
    curves = {name: rows for name in trained if (rows := site.folder.metrics(name))}
    body = site.render(
        request,
        "_overview.html",
        config=site.folder.config(),
        stages=stages,
        shares=queries.outcome_shares(site.index),
        curves={name: _curve(rows) for name, rows in curves.items()},
        arena=site.folder.arena(),
        latest=queries.latest_games(site.index, LATEST),
        faults=site.index.faults,
    )
    shown = hashlib.sha256(body.encode()).hexdigest()[:16]
    if is_swap(request):
        return Response(status_code=204) if shown == seen else site.page(request, "_live.html", body=body, seen=shown)
    return site.page(request, "overview.html", body=body, seen=shown)


def _curve(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    losses = [float(row["loss"]) for row in rows if row.get("loss") is not None]
    return {"losses": [loss for loss in losses if math.isfinite(loss)], "last": rows[-1]}


@router.get("/games")
def games(request: Request, site: TheSite, asked: Annotated[GameFilter, Query()]) -> HTMLResponse:
    """The list of games. htmx asks for the results alone, and is told the short form of the address."""
    found = queries.find_games(site.index, asked)
    context: dict[str, Any] = {
        "asked": asked,
        "found": found,
        "newer": urlencode(asked.address(page=found.page - 1)),
        "older": urlencode(asked.address(page=found.page + 1)),
        "is_filtered": bool(asked.address(page=1)),
    }
    if is_swap(request):
        answer = site.page(request, "_games.html", **context)
        answer.headers["HX-Replace-Url"] = f"/games?{urlencode(asked.address(page=found.page))}".rstrip("?")
        return answer
    return site.page(request, "games.html", choices=queries.choices(site.index), **context)


@router.get("/games/{source}/{number}")
def game(request: Request, site: TheSite, source: str, number: int) -> HTMLResponse:
    """One game with its verdict."""
    episode = site.index.episode(source, number)
    if episode is None:
        raise HTTPException(404, f"There is no game {number} in {source[:100]}.")
    return site.page(
        request,
        "game.html",
        source=source,
        number=number,
        last=queries.last_number(site.index, source),
        episode=episode,
        players={role: episode.players[role].model if role in episode.players else "" for role in Role},
        verdict=explain(episode, site.index.judge),
    )


@router.get("/words")
def words(request: Request, site: TheSite, word: Annotated[str, Query(max_length=200)] = "") -> HTMLResponse:
    """One word across iterations, side by side; without a word, those worth comparing."""
    columns = []
    for source, (total, rows) in queries.games_of_word(site.index, word.strip(), PER_SOURCE).items():
        episodes = [(row, site.index.episode(source, row.number)) for row in rows]
        shown = [(row.number, episode, explain(episode, site.index.judge)) for row, episode in episodes if episode is not None]
        columns.append((source, total, shown))
    suggested = [] if columns else queries.shared_words(site.index, SUGGESTED)
    return site.page(request, "words.html", word=word.strip(), columns=columns, suggested=suggested)
