"""Progress reports: a reporter hands out a tracker for each piece of long work, which updates it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Tracker(Protocol):
    """One piece of long work."""

    def update(self, done: int, detail: str = "") -> None:
        """Report how much is done, counted from the start, and the figure that matters now."""


class Reporter(Protocol):
    """Shows the progress of a sequence of pieces of work."""

    def track(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Tracker]:
        """Begin a piece of work of ``total`` units, ``done`` of them finished in an earlier process."""

    def note(self, message: str) -> None:
        """Show a message of one line."""


class _Silence:
    def update(self, done: int, detail: str = "") -> None:
        pass


class SilentReporter:
    """Shows nothing."""

    def track(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Tracker]:
        return nullcontext(_Silence())

    def note(self, message: str) -> None:
        pass
