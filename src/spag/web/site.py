"""What every route needs, in one place: the run, the index, the games that are played, and how a page is made."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from spag.display.html import environment
from spag.games.taboo.explain import TITLES
from spag.runs.folder import RunFolder
from spag.web.games import GameRoom, Sessions
from spag.web.index import GameIndex
from spag.web.security import Access


@dataclass(frozen=True, slots=True)
class Site:
    """``room`` is ``None`` where there is nothing to play against: a plain file of episodes."""

    folder: RunFolder
    index: GameIndex
    access: Access
    sessions: Sessions
    room: GameRoom | None

    def render(self, request: Request, template: str, **context: Any) -> Markup:
        """Render ``template``; it also sees the run's name, the address asked for, and the titles of outcomes."""
        shared = {"run": self.folder.name, "path": request.url.path, "titles": TITLES, "locked": self.access.token is not None}
        return Markup(environment().get_template(template).render({**shared, **context}))  # escaped by the template

    def page(self, request: Request, template: str, status_code: int = 200, **context: Any) -> HTMLResponse:
        """Answer with ``template``, rendered."""
        return HTMLResponse(self.render(request, template, **context), status_code)


def site_of(request: Request) -> Site:
    """Dependency: the site of this application."""
    site: Site = request.app.state.site
    return site


def is_swap(request: Request) -> bool:
    """Tell whether htmx asks for a piece of a page, rather than a browser for a page."""
    return "hx-request" in request.headers


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; its length was checked before."""
    body = (await request.body()).decode("utf-8", errors="replace")
    return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=20))
