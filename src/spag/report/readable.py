"""A run folder as the report and the web UI read it: they show what can be read and name the rest."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from spag.core.errors import SpagError
from spag.games.registry import DEFAULT, get
from spag.runs.layout import PlannedModel
from spag.runs.reading import RunFolder
from spag.runs.records import Json

Part = TypeVar("Part")


class ReadableRun(RunFolder):
    """A run folder with every part read. ``damage``: what could not be read, one line per file."""

    damage: list[str]

    def __init__(self, run: RunFolder) -> None:
        """``run``: the folder; each part of it is read only once."""
        super().__init__(run.folder)
        vars(self).update(vars(run), damage=[])
        if_damaged: dict[str, Any] = {"config": None, "game": get(DEFAULT), "stages": {}}  # others depend on these
        if_damaged |= {"plays": (), "online_phases": (), "arena": None, "reasoning": None}
        for name, absent in if_damaged.items():
            vars(self)[name] = self.part(partial(getattr, self, name), absent)
        for phase in self.online_phases:
            for name in ("rows", "evaluations", "opponents", "collapse"):
                vars(phase)[name] = self.part(partial(getattr, phase, name), [])

    def part(self, read: Callable[[], Part], absent: Part) -> Part:
        """Return the result of ``read``, or ``absent`` if it raises a ``SpagError``, which is recorded."""
        try:
            return read()
        except SpagError as error:
            if str(error) not in self.damage:
                self.damage.append(str(error))
            return absent

    def health(self, model: PlannedModel) -> Json | None:
        return self.part(lambda: super(ReadableRun, self).health(model), None)

    def metrics(self, model: PlannedModel) -> list[Json]:
        return self.part(lambda: super(ReadableRun, self).metrics(model), [])
