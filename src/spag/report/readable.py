"""A run folder for the report: unreadable parts count as absent, and are named on the page."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from spag.core.errors import DataError, SpagError
from spag.games.base import Game
from spag.games.registry import DEFAULT, get
from spag.runs.parts import SelfPlay, games_of
from spag.runs.reading import RunFolder
from spag.runs.records import Json

Part = TypeVar("Part")
_ABSENT: dict[str, Any] = {
    "config": None,
    "stages": {},
    "finished": "",
    "evaluations": [],
    "opponents": [],
    "collapse": [],
    "reasoning": None,
}
"""The value returned for a damaged part of the run, by the name of the property."""


class ReadableRun(RunFolder):
    """A run folder whose parts can all be requested."""

    def __getattribute__(self, name: str) -> Any:
        if name in _ABSENT:
            return self.part(lambda: getattr(self._whole, name), _ABSENT[name])
        return super().__getattribute__(name)

    @cached_property
    def _whole(self) -> RunFolder:
        """The same folder, read by the reader that raises."""
        return RunFolder(self.folder)

    @cached_property
    def damage(self) -> list[str]:
        """What could not be read so far, one line per file."""
        return []

    def part(self, read: Callable[[], Part], absent: Part) -> Part:
        """Return the result of ``read``, or ``absent`` if it raises a ``SpagError``, which is recorded."""
        try:
            return read()
        except SpagError as error:
            if str(error) not in self.damage:
                self.damage.append(str(error))
            return absent

    @cached_property
    def game(self) -> Game:
        return self.part(self._game, get(DEFAULT))

    def health(self, name: str) -> Json | None:
        return self.part(lambda: self._health(name), None)

    def _health(self, name: str) -> Json | None:
        games = [game for model in self.models if model.name == name for game in games_of(model)]
        return _of_game(self.folder / name, self._whole.health(name), games[0] if games else self.game)

    @cached_property
    def plays(self) -> list[SelfPlay]:
        return self.part(self._plays, [])

    def metrics(self, name: str, last_bytes: int | None = None) -> list[Json]:
        return self.part(lambda: self._whole.metrics(name, last_bytes), [])

    @cached_property
    def arena(self) -> Json | None:
        return self.part(lambda: _of_game(self.folder / "arena", self._whole.arena, self.game), None)


def _of_game(where: Path, found: Json | None, game: Game) -> Json | None:
    """Return ``found``. Raises ``DataError`` if it belongs to another game than the settings say."""
    if found and found["game"] != game.name:
        raise DataError(f"{where}: figures of {found['game']}, and the run plays {game.name}; redo what wrote them")
    return found
