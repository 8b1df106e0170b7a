"""What every route needs: the run, the index of its games, the models to play against, and how a page is made."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from spag.display.html import environment
from spag.engines.base import Engine
from spag.engines.bot import BOT_PREFIX, BotEngine, bot_of
from spag.engines.opening import open_engine
from spag.runs.reading import RunFolder
from spag.web.index import GameIndex
from spag.web.matches import Sessions
from spag.web.models import ModelPool
from spag.web.security import Access

CONCURRENCY = 4  # utterances a model works on at once


@dataclass(frozen=True)
class Site:
    """The run folder, or file of episodes, at ``path``, and what is kept of it between requests."""

    path: Path
    access: Access
    index: GameIndex
    models: ModelPool
    sessions: Sessions
    reply_limit_s: float

    def run(self) -> RunFolder:
        """Return the run as it is now."""
        return RunFolder(self.path)

    def opponents(self) -> list[str]:
        """Return whom visitors can play: models, the latest first, then the game's bots."""
        run = self.run()
        return [*reversed(run.checkpoints()), *(f"{BOT_PREFIX}{name}" for name in run.game.bots)]

    def render(self, request: Request, template: str, **context: Any) -> Markup:
        """Render ``template``; it also sees the run's name and game, and the address asked for."""
        run = self.run()
        shared = {"run": run.name, "game": run.game, "path": request.url.path, "locked": self.access.token is not None}
        return Markup(environment("spag.web").get_template(template).render({**shared, **context}))  # escaped by the template

    def page(self, request: Request, template: str, status_code: int = 200, **context: Any) -> HTMLResponse:
        """Answer with ``template``, rendered."""
        return HTMLResponse(self.render(request, template, **context), status_code)


def open_opponent(path: Path, name: str) -> Engine:
    """Open a bot, or a model of the run at ``path``. Raises ``RunError`` for one that is gone."""
    run = RunFolder(path)
    if name.startswith(BOT_PREFIX):
        return BotEngine(bot_of(run.game, name))
    model, config = run.model(name), run.config
    assert config is not None  # a run without settings has no models
    # transformers, whatever the run plays with: its replies can be watched, and two models fit beside each other
    return open_engine(model, config.engine.model_copy(update={"concurrency": CONCURRENCY, "backend": "transformers"}))


def site_of(request: Request) -> Site:
    """Dependency: the site of this application."""
    site: Site = request.app.state.site
    return site


TheSite = Annotated[Site, Depends(site_of)]


def is_swap(request: Request) -> bool:
    """Tell whether htmx asks for a piece of a page, rather than a browser for a page."""
    return "hx-request" in request.headers


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form; its length was checked before."""
    body = (await request.body()).decode("utf-8", errors="replace")
    return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=20))
