"""What a person sees: rich progress bars on a terminal, plain log lines elsewhere, and tables."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from spag.core.progress import Reporter, Tracker
from spag.core.visible import visible_text

logger = logging.getLogger("spag")
PLAIN_INTERVAL_S = 15.0


@dataclass(slots=True)
class _BarTracker:
    progress: Progress
    task: TaskID

    def update(self, done: int, detail: str = "") -> None:
        self.progress.update(self.task, completed=done, detail=escape(visible_text(detail)))


@dataclass(slots=True)
class _PlainTracker:
    title: str
    total: int
    first: int
    started: float = field(default_factory=time.monotonic)
    last_line: float = field(default_factory=time.monotonic)

    def update(self, done: int, detail: str = "") -> None:
        now = time.monotonic()
        if now - self.last_line < PLAIN_INTERVAL_S and done < self.total:
            return
        self.last_line = now
        rate = (done - self.first) / max(now - self.started, 1e-9)
        left = f", {timedelta(seconds=round((self.total - done) / rate))} left" if rate > 0 and done < self.total else ""
        logger.info("%s: %d/%d%s  %s", self.title, done, self.total, left, detail)


class ConsoleReporter:
    """Satisfies ``spag.core.progress.Reporter``: bars on a terminal, a log line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: set[str] = set()

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator[Tracker]:
        if not self._console.is_terminal:
            yield _PlainTracker(title, total, done)
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
        )
        with Progress(*columns, console=self._console) as progress:
            yield _BarTracker(progress, progress.add_task(escape(visible_text(title)), total=total, completed=done, detail=""))

    def note(self, message: str) -> None:
        """Log ``message``, each once a command."""
        if message not in self._said:
            self._said.add(message)
            logger.info(message)


class _VisibleFormatter(logging.Formatter):
    """Messages hold names and texts of models and files: each is one line, and none drives the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_text(super().format(record), lines=record.exc_info is not None)


def make_reporter(console: Console) -> Reporter:
    """Set up logging to ``console`` and return the reporter that goes with it."""
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, show_level=False, markup=False, log_time_format="%H:%M:%S")
        handler.setFormatter(_VisibleFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_VisibleFormatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return ConsoleReporter(console)


def new_table(title: str | None, *columns: str) -> Table:
    """Return a table in the look that all have, narrow enough for 80 columns: text in its first column, figures in the others."""
    table = Table(
        title=Text(visible_text(title)) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    for index, label in enumerate(columns):
        table.add_column(Text(visible_text(label)), justify="right" if index else "left")
    return table
