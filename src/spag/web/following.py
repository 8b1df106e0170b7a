"""Following a running run: its settings are reread when they change, its games by a loop.

While a file cannot be read (it is being replaced, its disk is unavailable), pages show what was read before and name
the file.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from spag.config.schema import RunConfig
from spag.core.errors import SpagError
from spag.games.base import Game
from spag.runs.parts import GameFile
from spag.runs.reading import RunFolder
from spag.web.index import GameIndex

logger = logging.getLogger(__name__)

FOLLOW_S = 1.0  # seconds between two reads of a run's files
AGAIN_S = 5.0  # seconds between two tries to read damaged settings


@dataclass(frozen=True)
class _KnownRun(RunFolder):
    """A run folder with the settings and games of ``known``, read earlier."""

    known: RunFolder

    @cached_property
    def config(self) -> RunConfig | None:
        return self.known.config

    @cached_property
    def game(self) -> Game:
        return self.known.game

    @cached_property
    def games(self) -> Mapping[str, Game]:
        return self.known.games


class RunReader:
    """Reads the run at ``path`` for pages and index. Raises ``SpagError`` if it cannot be read at the start.

    The kinds of games are fixed once games are in the index, because pages show them by their roles and outcomes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known, self._stamp = RunFolder(path), self._config_stamp()
        self._fault_of_settings, self._looked = "", time.monotonic()
        self.index = GameIndex(self._sources, lambda: self.read()[0].games)
        _ = self._known.config, self._known.games

    def read(self) -> tuple[RunFolder, str]:
        """Return the current run, and why its settings are outdated; empty if they are not."""
        stamp, run, now = self._config_stamp(), RunFolder(self._path), time.monotonic()
        if stamp is None or stamp != self._stamp or (self._fault_of_settings and now - self._looked > AGAIN_S):
            try:
                self._fault_of_settings = self._fault(run)
            except SpagError as error:
                self._fault_of_settings = f"{error}; until then the page shows the run by the settings read before"
            if not self._fault_of_settings:
                self._known = run
            self._stamp, self._looked = stamp, time.monotonic()
        return _KnownRun(self._path, self._known), self._fault_of_settings

    def _config_stamp(self) -> tuple[int, ...] | None:
        try:
            found = (self._path / "config.yaml").stat()
        except OSError:  # a file of episodes, or a run without settings yet
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _sources(self) -> Iterable[GameFile]:
        return self.read()[0].sources()

    def _fault(self, run: RunFolder) -> str:
        if run.config is None and self._known.config is not None:
            return f"{self._path}: config.yaml is gone; the page shows the run by the settings read before"
        is_other = run.game.name != self._known.game.name or self._known.games.keys() - run.games.keys()
        if is_other and not self.index.is_empty:
            return f"{self._path}: another game than before, {', '.join(run.games)}; start spag web again to see it"
        return ""


async def follow(index: GameIndex) -> None:
    """Keep the index up to date while the server runs; each problem is logged once."""
    described: list[str] = []
    while True:
        is_behind = await run_in_threadpool(index.sync)
        for trouble in (new := index.troubles):
            if trouble not in described:
                logger.warning("cannot follow the run for now: %s", trouble)
        described = new
        await asyncio.sleep(0 if is_behind else FOLLOW_S)


def on_end(index: GameIndex, follower: "asyncio.Task[None]") -> None:
    """Report in the terminal and on the page if the loop ended by itself, which is a bug."""
    if not follower.cancelled() and (error := follower.exception()):
        logger.error("the run is no longer followed", exc_info=error)
        fault = type(error).__name__
        index.stop(f"The run is no longer followed ({fault}); start spag web again. Its terminal says more.")
