"""Shared by all routes: the served run, rendering of templates, and forms.

While a file of the run cannot be read (it is being replaced, its disk is unavailable), pages show what was read before
and name the file.
"""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from spag.core.episodes import Episode
from spag.core.errors import DataError, SpagError
from spag.engines.players import bot_names
from spag.games.base import Game
from spag.games.registry import game_by_rules
from spag.report.html import environment
from spag.runs.reading import RunFolder
from spag.web.index import GameIndex
from spag.web.security import Access
from spag.web.sessions import ModelPool, Sessions

MOST_FIELDS = 20  # fields of a form


class Site:
    """The run folder or file of episodes at ``path``, and its state between requests. Raises ``SpagError`` if it cannot
    be read at the start.

    ``fault``: why the settings are outdated; empty if they are not. The kinds of games are fixed once games are in the
    index, because pages show them by their roles and outcomes.
    """

    def __init__(self, path: Path, access: Access, models: ModelPool, reply_limit_s: float) -> None:
        self.path, self.access, self.models, self.reply_limit_s = path, access, models, reply_limit_s
        self.sessions, self.fault = Sessions(), ""
        self._known, self._stamp = RunFolder(path), self._config_stamp()
        self.index = GameIndex(lambda: self.run().sources(), lambda: self.run().games)
        _ = self._known.config, self._known.games

    def run(self) -> RunFolder:
        """Return the current run, with the last readable settings."""
        stamp, run = self._config_stamp(), RunFolder(self.path)
        if stamp is None or stamp != self._stamp or self.fault:  # damage may be elsewhere, and may pass
            try:
                self.fault = self._fault(run)
            except SpagError as error:
                self.fault = f"{error}; until then the page shows the run by the settings read before"
            if not self.fault:
                self._known = run
            self._stamp = stamp
        settings = {"config": self._known.config, "game": self._known.game, "games": self._known.games}
        vars(known := RunFolder(self.path)).update(settings)  # in place of what its cached properties would read
        return known

    def _config_stamp(self) -> tuple[int, ...] | None:
        try:
            found = (self.path / "config.yaml").stat()
        except OSError:  # a file of episodes, or a run without settings yet
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _fault(self, run: RunFolder) -> str:
        if run.config is None and self._known.config is not None:
            return f"{self.path}: config.yaml is gone; the page shows the run by the settings read before"
        if any(map(self.index.holds, self._known.games.keys() - run.games.keys())):
            return f"{self.path}: another game than before, {', '.join(run.games)}; restart spag web to see it"
        return ""

    def game_of(self, episode: Episode) -> Game:
        """Return the run's game of an episode, under the rules it was played by. Raises ``DataError`` for another."""
        games = self.run().games
        if episode.game not in games:
            raise DataError(f"games of {episode.game} are not shown; the run plays {', '.join(games)}")
        return game_by_rules(episode, games[episode.game])

    def short(self, fault: object) -> str:
        """Return the message of an error about a file, with its path relative to the run."""
        return str(fault).removeprefix(f"{self.path}/")

    def opponents(self) -> tuple[list[str], str]:
        """Return the possible opponents (models, latest first, then bots), and why models are missing, else empty."""
        run, models, fault = self.run(), list[str](), ""
        try:
            models = [*reversed(run.checkpoints())]
        except SpagError as error:
            fault = f"The run's models cannot be found: {self.short(error)}"
        return [*models, *bot_names(run.game)], fault

    def render(self, request: Request, template: str, **context: Any) -> Markup:
        """Render ``template``; it also sees the run's name and games, and the requested address."""
        run = self.run()
        shared = {
            "run": run.name,
            "game": run.game,
            "games": run.games,
            "path": request.url.path,
            "locked": self.access.token is not None,
            "has_steps": bool(run.begun_online),
        }
        shown = environment("spag.web").get_template(template).render({**shared, **context})
        return Markup(shown)  # escaped by the template

    def page(self, request: Request, template: str, status_code: int = 200, **context: Any) -> HTMLResponse:
        """Respond with ``template``, rendered."""
        return HTMLResponse(self.render(request, template, **context), status_code)


async def site_of(request: Request) -> Site:
    """Dependency: the site of this application."""
    site: Site = request.app.state.site
    return site


TheSite = Annotated[Site, Depends(site_of)]


def is_swap(request: Request) -> bool:
    """Tell whether htmx requests a piece of a page, not a browser a whole page."""
    return "hx-request" in request.headers


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, whose length has been checked. Raises ``HTTPException`` for too many."""
    body = (await request.body()).decode("utf-8", errors="replace")
    try:
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise HTTPException(422, f"This form has more than {MOST_FIELDS} fields.") from error
