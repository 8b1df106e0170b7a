"""Progress reports: a reporter creates a tracker for each long task, and the task updates it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Tracker(Protocol):
    """The progress of one long task."""

    def update(self, done: int, detail: str = "") -> None:
        """Report the units done since the start, and the most relevant metric."""


class Reporter(Protocol):
    """Shows the progress of a sequence of long tasks."""

    def track(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Tracker]:
        """Begin a task of ``total`` units, ``done`` of them finished in an earlier process."""

    def note(self, message: str) -> None:
        """Show a one-line message."""


class SilentReporter:
    """A reporter, and its own tracker, that show nothing."""

    def track(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Tracker]:
        return nullcontext(self)

    def update(self, done: int, detail: str = "") -> None:
        pass

    def note(self, message: str) -> None:
        pass
