"""A run folder for the report: unreadable parts count as absent, and are named on the page."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from spag.core.errors import DataError, SpagError
from spag.games.base import Game
from spag.games.registry import DEFAULT, get
from spag.runs.layout import PlannedModel
from spag.runs.parts import games_of
from spag.runs.reading import RunFolder
from spag.runs.records import Json

Part = TypeVar("Part")
_ABSENT: dict[str, Any] = {
    "config": None,
    "stages": {},
    "finished": "",
    "plays": [],
    "online": [],
    "evaluations": [],
    "opponents": [],
    "collapse": [],
    "reasoning": None,
}
"""The value returned for a damaged part of the run, by the name of the property."""


class ReadableRun(RunFolder):
    """A run folder whose parts can all be requested."""

    def __getattribute__(self, name: str) -> Any:
        read = super().__getattribute__
        if name not in _ABSENT:
            return read(name)
        found = self.part(lambda: read(name), _ABSENT[name])
        vars(self)[name] = found  # as of cached properties, also where it is damaged: it is read once
        return found

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
        return self.part(lambda: super(ReadableRun, self).game, get(DEFAULT))

    @cached_property
    def arena(self) -> Json | None:
        return self.part(lambda: _of_game(self.folder / "arena", super(ReadableRun, self).arena, self.game), None)

    def health(self, model: PlannedModel) -> Json | None:
        place = self.folder / model.folder
        return self.part(lambda: _of_game(place, super(ReadableRun, self).health(model), games_of(model)[0]), None)

    def metrics(self, model: PlannedModel, last_bytes: int | None = None) -> list[Json]:
        return self.part(lambda: super(ReadableRun, self).metrics(model, last_bytes), [])


def _of_game(where: Path, found: Json | None, game: Game) -> Json | None:
    """Return ``found``. Raises ``DataError`` if it belongs to another game than the settings say."""
    if found and found["game"] != game.name:
        raise DataError(f"{where}: figures of {found['game']}, and the run plays {game.name}; redo what wrote them")
    return found
