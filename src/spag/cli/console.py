"""Progress and log lines on standard error: rich bars on a terminal, plain lines elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from spag.core.progress import Reporter, Tracker
from spag.core.visible import visible_text

logger = logging.getLogger("spag")
PLAIN_INTERVAL_S = 30.0
"""Seconds between two log lines of one bar without a terminal."""


class _DetailColumn(ProgressColumn):
    """The numbers after a bar: if a line is too long, only they are truncated."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["detail"], no_wrap=True, overflow="ellipsis")


@dataclass(slots=True)
class _BarTracker:
    progress: Progress
    task: TaskID

    def update(self, done: int, detail: str = "") -> None:
        self.progress.update(self.task, completed=done, detail=visible_text(detail))


class _PlainTracker:
    def __init__(self, title: str, total: int, first: int) -> None:
        self.title, self.total, self.first, self.ended = title, total, first, False
        self.started = self.last_line = time.monotonic()

    def update(self, done: int, detail: str = "") -> None:
        now = time.monotonic()
        if self.ended or (now - self.last_line < PLAIN_INTERVAL_S and done < self.total):
            return
        self.last_line, self.ended = now, done >= self.total
        rate = (done - self.first) / max(now - self.started, 1e-9)
        left = (
            f", {timedelta(seconds=round((self.total - done) / rate))} left" if rate > 0 and done < self.total else ""
        )
        logger.info("%s: %d/%d%s  %s", self.title, done, self.total, left, detail)


class ConsoleReporter:
    """Satisfies ``spag.core.progress.Reporter``: bars on a terminal, occasional log lines elsewhere."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Tracker]:
        if self._quiet or not self._console.is_terminal:
            yield _PlainTracker(title, total, done)
            return
        whole = Column(no_wrap=True)
        columns = (
            SpinnerColumn(table_column=whole),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24, table_column=whole),
            MofNCompleteColumn(table_column=whole),
            TimeElapsedColumn(table_column=whole),
            TimeRemainingColumn(table_column=whole),
            _DetailColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            yield _BarTracker(
                progress, progress.add_task(escape(visible_text(title)), total=total, completed=done, detail="")
            )

    def note(self, message: str) -> None:
        """Log ``message``."""
        logger.log(logging.WARNING if message.startswith("warning") else logging.INFO, "%s", message)


class _Once(logging.Filter):
    """Lets each message through once: a run opens a dozen models, but logs their backend once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._said
        self._said.add(message)
        return is_new


class _VisibleFormatter(logging.Formatter):
    """Messages contain foreign names and texts: each becomes one line, and none can control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_text(super().format(record), lines=record.exc_info is not None)


def make_reporter(console: Console, verbosity: int = 0) -> Reporter:
    """Set up logging to ``console`` and return its reporter.

    ``verbosity``: -1 shows warnings only, 1 the messages of libraries too.
    """
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(
            console=console, show_path=False, show_level=False, markup=False, log_time_format="%H:%M:%S"
        )
        handler.setFormatter(_VisibleFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_VisibleFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    handler.addFilter(_Once())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING if verbosity < 0 else logging.INFO)
    logger.propagate = False
    if verbosity > 0:
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    return ConsoleReporter(console, quiet=verbosity < 0)
