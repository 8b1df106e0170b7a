"""Console output: rich progress bars on a terminal, plain log lines elsewhere, and tables."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from rich import box
from rich.cells import cell_len
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
from rich.table import Column, Table
from rich.text import Text

from spag.core.progress import Reporter, Tracker
from spag.core.visible import visible_text

logger = logging.getLogger("spag")
PLAIN_INTERVAL_S = 30.0
"""Seconds between two log lines of one bar without a terminal."""
_LEAST_NAME = 12
"""Columns to which a name is folded, at least, where a table is too wide."""
_GAP = 2
"""Columns between two columns of a table in the common style, and at its edges together."""


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


def new_table(title: str | None, *columns: str) -> Table:
    """Return a table in the common style, for 80 columns: text in its first column, numbers in the others."""
    table = Table(
        title=Text(visible_text(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for index, label in enumerate(columns):
        table.add_column(Text(visible_text(label)), justify="right" if index else "left")
    return table


def fit(table: Table, width: int) -> int:
    """Fit a table from ``new_table`` into ``width`` columns, and return how wide it is.

    Columns are narrowed from the widest on, down to their longest word; names (``no_wrap``) stay whole while others can
    give, and are then folded. No number is ever cut: what is wider than the terminal stays so.
    """
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    heads = [str(column.header) for column in table.columns]
    widths = [
        max(cell_len(line) for text in (head, *own) for line in (text.splitlines() or [""]))
        for head, own in zip(heads, cells, strict=True)
    ]
    whole = [size if column.no_wrap else 0 for size, column in zip(widths, table.columns, strict=True)]
    words = [
        max(_longest_word(*own), min(_LEAST_NAME, _longest_word(head))) for head, own in zip(heads, cells, strict=True)
    ]
    room = width - _GAP * len(table.columns)
    if sum(widths) <= room:
        return width
    least = [name or word for name, word in zip(whole, words, strict=True)]
    if sum(least) > room:
        least = [min(name, _LEAST_NAME) if name else word for name, word in zip(whole, words, strict=True)]
    widths = _narrowed(widths, least, room)
    for column, size, name in zip(table.columns, widths, whole, strict=True):
        column.width, column.overflow, column.no_wrap = size, "fold", size == name
    return max(width, sum(widths) + _GAP * len(table.columns))


def _longest_word(*texts: str) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _narrowed(widths: list[int], least: list[int], room: int) -> list[int]:
    """Return ``widths`` with the widest narrowed, none below its ``least``, until their sum is ``room``."""
    widths = list(widths)
    while sum(widths) > room:
        wide = [place for place, size in enumerate(widths) if size > least[place]]
        if not wide:
            break
        widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths
