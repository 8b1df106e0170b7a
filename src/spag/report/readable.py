"""A run folder for the report: a part that cannot be read counts as absent, and is named on the page."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypeVar

from spag.config.schema import RunConfig
from spag.core.errors import DataError, SpagError
from spag.games.base import Game
from spag.games.registry import DEFAULT, get
from spag.runs.reading import RunFolder, SelfPlay
from spag.runs.records import CollapseSign, Json

Part = TypeVar("Part")


class ReadableRun(RunFolder):
    """A run folder of which every part can be asked for."""

    @cached_property
    def _whole(self) -> RunFolder:
        """The same folder, read by the reader that raises."""
        return RunFolder(self.folder)

    @cached_property
    def damage(self) -> list[str]:
        """What could not be read so far, a line for each file."""
        return []

    def part(self, read: Callable[[], Part], absent: Part) -> Part:
        """Return what ``read`` returns, ``absent`` where it raises a ``SpagError``, which is kept."""
        try:
            return read()
        except SpagError as error:
            if str(error) not in self.damage:
                self.damage.append(str(error))
            return absent

    @cached_property
    def config(self) -> RunConfig | None:
        return self.part(lambda: self._whole.config, None)

    @cached_property
    def game(self) -> Game:
        return self.part(self._game, get(DEFAULT))

    @cached_property
    def stages(self) -> Mapping[str, Json]:
        return self.part(lambda: self._whole.stages, {})

    @cached_property
    def finished(self) -> str:
        return self.part(lambda: self._whole.finished, "")

    def health(self, name: str) -> Json | None:
        return self.part(lambda: self._of_this_game(name, self._whole.health(name)), None)

    @cached_property
    def plays(self) -> list[SelfPlay]:
        return self.part(self._plays, [])

    def metrics(self, name: str, last_bytes: int | None = None) -> list[Json]:
        return self.part(lambda: self._whole.metrics(name, last_bytes), [])

    @cached_property
    def evaluations(self) -> list[Json]:
        return self.part(lambda: self._whole.evaluations, [])

    @cached_property
    def collapse(self) -> list[CollapseSign]:
        return self.part(lambda: self._whole.collapse, [])

    @cached_property
    def arena(self) -> Json | None:
        return self.part(lambda: self._rated(self._of_this_game("arena", self._whole.arena)), None)

    @cached_property
    def reasoning(self) -> Json | None:
        return self.part(lambda: self._whole.reasoning, None)

    def _of_this_game(self, part: str, found: Json | None) -> Json | None:
        if found and found["game"] != self.game.name:
            raise DataError(f"{self.folder / part}: figures of {found['game']}, and the run plays {self.game.name}; redo what wrote them")
        return found

    def _rated(self, found: Json | None) -> Json | None:
        if found and not found["ratings"]:
            raise DataError(f"{self.folder / 'arena' / 'results.json'}: ratings: there are none; redo what wrote it")
        return found
