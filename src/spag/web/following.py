"""Following a run while it works: its settings, read anew for each request, and its games, read by a loop.

A file that cannot be read for a moment (it is being replaced, its disk is away) stops nothing: what was read before is shown, with one
line that names the file, and the line goes when the file is back.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from spag.config.schema import RunConfig
from spag.core.errors import SpagError
from spag.games.base import Game
from spag.runs.reading import RunFolder, Source
from spag.web.index import GameIndex

logger = logging.getLogger(__name__)

FOLLOW_S = 1.0  # between two looks at the files of a run
AGAIN_S = 5.0  # between two looks at settings that cannot be read


@dataclass(frozen=True)
class _KnownRun(RunFolder):
    """A run folder with the settings and the game of ``known``, which were read before."""

    known: RunFolder

    @cached_property
    def config(self) -> RunConfig | None:
        return self.known.config

    @cached_property
    def game(self) -> Game:
        return self.known.game


class RunReader:
    """Reads the run at ``path`` for pages and index. Raises ``SpagError`` when it cannot be read to begin with.

    The game stays the same once games of it are in the index: pages show them by its roles and outcomes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known, self._stamp = RunFolder(path), self._config_stamp()
        self._fault_of_settings, self._looked = "", time.monotonic()
        self.index = GameIndex(self._sources, lambda: self.read()[0].game)
        _ = self._known.config, self._known.game

    def read(self) -> tuple[RunFolder, str]:
        """Return the run as it is now, and why its settings are older than that; empty where they are not.

        Settings are parsed again when their file changed, and now and then while they cannot be.
        """
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
        except OSError:  # a file of episodes, or a run that has no settings yet
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size

    def _sources(self) -> Iterable[Source]:
        return self.read()[0].sources()

    def _fault(self, run: RunFolder) -> str:
        if run.config is None and self._known.config is not None:
            return f"{self._path}: config.yaml is gone; the page shows the run by the settings read before"
        if run.game.name != self._known.game.name and not self.index.is_empty:
            return f"{self._path}: another game than before, {run.game.name}; start spag web again to see it"
        return ""


async def follow(index: GameIndex) -> None:
    """Keep the index up with the files for as long as the server runs; each trouble is logged once."""
    told: list[str] = []
    while True:
        is_behind = await run_in_threadpool(index.sync)
        for trouble in (new := index.troubles):
            if trouble not in told:
                logger.warning("cannot follow the run for now: %s", trouble)
        told = new
        await asyncio.sleep(0 if is_behind else FOLLOW_S)


def on_end(index: GameIndex, follower: "asyncio.Task[None]") -> None:
    """Say so, in the terminal and on the page, when the loop ended by itself: a fault of ours."""
    if not follower.cancelled() and (error := follower.exception()):
        logger.error("the run is no longer followed", exc_info=error)
        index.stop(f"The run is no longer followed ({type(error).__name__}); start spag web again. Its terminal says more.")
