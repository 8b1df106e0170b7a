"""The games of a run in SQLite: filters and full text answer at once, while the games themselves stay in their files.

Episode files only grow, so the index follows them by byte offset: ``sync`` reads whole lines after the last one known and leaves a torn
last line for later. A file that shrank or was replaced is read anew. The index lives in a private temporary database that vanishes with
the process: nothing is written into the run folder, and nothing can go stale.

A game is named by its source and its line number, which stay the same when the index is built again.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from spag.core.episodes import TABOO, Episode, episode_of
from spag.core.errors import DataError, SpagError
from spag.core.types import Task
from spag.games.base import Game
from spag.runs.reading import Source
from spag.runs.records import is_online

MOST_LINES = 10**12
"""Above the number of any line, within what SQLite holds."""
BATCH = 400  # games taken in between two chances for a page to be answered
PREVIEW = 160  # characters of the last utterance that the list of games shows
_HEAD = 4096  # bytes by which a file is known again
_MOST_FAULTS = 20

_SCHEMA = """
CREATE TABLE games (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice, so that texts of forgotten games match nothing
    source TEXT NOT NULL, number INTEGER NOT NULL, offset INTEGER NOT NULL, size INTEGER NOT NULL,
    task TEXT NOT NULL COLLATE NOCASE, outcome TEXT NOT NULL, length INTEGER NOT NULL,
    first TEXT NOT NULL, second TEXT NOT NULL, preview TEXT NOT NULL, UNIQUE (source, number)
);
CREATE INDEX by_task ON games (task, source);
CREATE INDEX by_all ON games (source, outcome, length, first, second);
CREATE INDEX by_first ON games (first);
CREATE INDEX by_second ON games (second);
CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize='unicode61 remove_diacritics 2');
"""
_INSERT = """
INSERT INTO games (source, number, offset, size, task, outcome, length, first, second, preview) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class _Said(msgspec.Struct):
    content: str


class _Player(msgspec.Struct):
    model: str


class _Row(msgspec.Struct):
    """What the index wants of an episode; token ids and log-probabilities, most of a row's bytes, are skipped unread."""

    history: list[_Said]
    task: Task | None = None  # not in rows of schema 1
    game: str = TABOO
    outcome: str | None = None
    players: Mapping[str, _Player] = {}


_ROWS = msgspec.json.Decoder(_Row)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a line that is no row; the last for one that is nested too deeply."""


class _OtherGameError(DataError):
    def __init__(self, game: str, wanted: str) -> None:
        super().__init__(f"a game of {game}, not {wanted}; open it on its own")
        self.game = game


@dataclass(slots=True)
class _Follower:
    """How far a file has been read, what tells it from another file of that name, and what was wrong with its lines."""

    path: Path
    inode: int = 0
    head: bytes = b""
    offset: int = 0
    lines: int = 0
    first_fault: str = ""
    more_faults: int = 0

    @property
    def fault(self) -> str:
        if not self.more_faults:
            return self.first_fault
        lines = "1 more line holds" if self.more_faults == 1 else f"{self.more_faults:,} more lines hold"
        return f"{self.first_fault}; {lines} no game either"

    def note(self, fault: str) -> None:
        """Keep the first fault, and count the others; one that says the same counts as one."""
        self.more_faults += bool(self.first_fault) and fault != self.first_fault
        self.first_fault = self.first_fault or fault


class GameIndex:
    """The index over the files that ``sources`` names, all of them of one game. Safe to use from several threads.

    A file that cannot be read keeps its games, and is read on when it can be.
    """

    def __init__(self, sources: Callable[[], Iterable[Source]], game: Callable[[], Game]) -> None:
        self._troubles: dict[str, str] = {}  # of each source, or of their list: why it cannot be read now
        self._sources, self._game = sources, game
        self._followers: dict[str, _Follower] = {}
        self._lock = threading.Lock()
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)  # "": a private temporary file
        self._db.row_factory = sqlite3.Row
        self._db.executescript("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536;" + _SCHEMA)

    @property
    def troubles(self) -> list[str]:
        """What cannot be read now."""
        return [*self._troubles.values()]

    def stop(self, why: str) -> None:
        """Say on the pages that nothing is followed any more."""
        self._troubles["stopped"] = why

    @property
    def faults(self) -> list[str]:
        """``troubles``, and one line for each file with lines that hold no game; of many files the first twenty."""
        found = [fault for follower in list(self._followers.values()) if (fault := follower.fault)]
        found = list(dict.fromkeys(found))
        more = [f"{len(found) - _MOST_FAULTS:,} more files have such lines"] if len(found) > _MOST_FAULTS else []
        return [*self.troubles, *found[:_MOST_FAULTS], *more]

    @property
    def is_empty(self) -> bool:
        return not self.query("SELECT 1 FROM games LIMIT 1")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run a reading query over the table ``games`` (and ``texts``)."""
        with self._lock:
            return self._db.execute(sql, arguments).fetchall()

    def sync(self) -> bool:
        """Take in what was appended, in the order of the sources, up to the first that has more than ``BATCH`` games left.

        Returns whether more is waiting. What cannot be read is among ``troubles`` until it can be.
        """
        try:
            sources = {source.name: source.path for source in self._sources()}
            self._troubles.pop("", None)
        except (SpagError, OSError) as error:
            self._troubles[""] = str(error)
            return False
        for name in [name for name in self._followers if name not in sources]:
            self._forget(name)
        return any(self._follow(name, path) for name, path in sources.items())

    def episode(self, source: str, number: int) -> Episode | None:
        """Return a game in full, from its file, or ``None`` when there is none such. Raises ``DataError`` when the file changed."""
        follower = self._followers.get(source)
        found = self.query("SELECT offset, size FROM games WHERE source = ? AND number = ?", (source, number))
        if follower is None or not found:
            return None
        place = f"{follower.path}:{number}"
        try:
            with follower.path.open("rb") as stream:
                stream.seek(found[0][0])
                return episode_of(msgspec.json.decode(stream.read(found[0][1]), type=dict[str, Any]), place)
        except OSError as error:
            raise DataError(f"{follower.path}: cannot be read: {error.strerror}") from error
        except _UNREADABLE as error:
            raise DataError(f"{place}: not an episode: {error}") from error

    def _follow(self, name: str, path: Path) -> bool:
        try:
            with path.open("rb") as stream:
                stat, follower = os.fstat(stream.fileno()), self._followers.get(name, _Follower(path))
                is_same = stat.st_ino == follower.inode and stat.st_size >= follower.offset
                if name in self._followers and not (is_same and stream.read(len(follower.head)) == follower.head):
                    self._forget(name)
                    follower = _Follower(path)
                self._followers[name] = follower
                stream.seek(follower.offset)
                lines = list(islice(stream, BATCH))
                if lines and not lines[-1].endswith(b"\n"):
                    lines.pop()  # being written
                self._add(name, follower, lines)
                stream.seek(0)
                follower.inode, follower.head = stat.st_ino, stream.read(min(_HEAD, follower.offset))
                self._troubles.pop(name, None)
                return len(lines) == BATCH
        except OSError as error:
            self._troubles[name] = f"{path}: cannot be read: {error.strerror}"
        except (SpagError, sqlite3.Error) as error:
            self._troubles[name] = str(error)
        return False

    def _add(self, name: str, follower: _Follower, lines: list[bytes]) -> None:
        """Put the games of whole ``lines`` into the index; the follower counts them once they are in."""
        games, faults, game = [], [], self._game()
        offset = follower.offset
        for number, line in enumerate(lines, start=follower.lines + 1):
            place = f"{follower.path}:{number}"
            if line.strip():
                try:
                    games.append(((name, number, offset, len(line)), *_read(line, place, game)))
                except _OtherGameError as error:  # online steps may mix games
                    note = f"games of {error.game} are not shown; open a file of them on its own: spag web FILE"
                    faults.append(note if is_online(name) else f"{place}: not an episode: {error}")
                except (*_UNREADABLE, DataError) as error:
                    faults.append(f"{place}: not an episode: {str(error).removeprefix(f'{place}: ')}")
            offset += len(line)
        with self._lock, self._db:
            self._db.execute("BEGIN")
            for place_values, values, text in games:
                added = self._db.execute(_INSERT, (*place_values, *values)).lastrowid
                self._db.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (added, text))
        follower.offset, follower.lines = offset, follower.lines + len(lines)
        for fault in faults:
            follower.note(fault)

    def _forget(self, name: str) -> None:
        del self._followers[name]
        self._troubles.pop(name, None)
        with self._lock:
            self._db.execute("DELETE FROM games WHERE source = ?", (name,))


def _read(line: bytes, place: str, game: Game) -> tuple[tuple[Any, ...], str]:
    """Return the columns of a game from ``task`` on, and its text for searches."""
    row = _ROWS.decode(line)
    if row.game != game.name:
        raise _OtherGameError(row.game, game.name)
    task, outcome = row.task, row.outcome
    if task is None or outcome is None:
        whole = episode_of(msgspec.json.decode(line), place)
        task, outcome = whole.task, outcome or game.replay(whole.task, whole.history, whole.seed or 0).outcome
    if outcome not in game.outcomes:
        raise DataError(f"{game.name} has no outcome {outcome!r}")
    try:
        about = "".join((game.describe_task(task), ""))  # a TypeError where it is no text
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"its task is not one of {game.name}: {error!r}") from error
    texts = [said.content for said in row.history]
    players = [row.players[role].model if role in row.players else "" for role in game.roles]
    return (about, outcome, len(texts), *players, texts[-1][:PREVIEW] if texts else ""), "\n".join((about, *texts))
