"""The games of a run in SQLite, for filters and full-text search; the games themselves stay in their files.

Episode files only grow, so the index follows them by byte offset: ``sync`` reads whole lines after the last known one
and leaves a torn last line for later. A file that shrank, was replaced, or goes on after a game without a line break is
read again from its start, as is one with lines that could not be read when the games of the settings change. The
database is private and temporary: nothing is written into the run folder. A game is
identified by its source and line number.
"""

import os
import sqlite3
import threading
import weakref
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from spag.core.episodes import TABOO, Episode
from spag.core.errors import DataError, SpagError
from spag.core.types import Task
from spag.games.base import Game
from spag.games.registry import game_by_rules
from spag.games.replay import replay
from spag.runs.records import GameFile
from spag.storage.episodes import episode_of

MOST_LINES = 10**12  # above any line number, within SQLite's range
BATCH = 400  # games read before requests are answered again
PREVIEW = 160  # characters of the last utterance shown in the list of games
_HEAD = 4096  # bytes that distinguish a file from its replacement
_MOST_FAULTS = 20

_SCHEMA = """
PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536;
CREATE TABLE games (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice, so that texts of forgotten games match nothing
    source TEXT NOT NULL, phase TEXT NOT NULL, step INTEGER,  -- phase: of online games
    number INTEGER NOT NULL, offset INTEGER NOT NULL, size INTEGER NOT NULL, game TEXT NOT NULL,
    task TEXT NOT NULL COLLATE NOCASE, outcome TEXT NOT NULL, length INTEGER NOT NULL,
    first TEXT NOT NULL, second TEXT NOT NULL, preview TEXT NOT NULL, UNIQUE (source, number)
);
CREATE INDEX by_task ON games (task, source);
CREATE INDEX by_all ON games (source, phase, step, game, outcome, length, first, second);
CREATE INDEX by_step ON games (step, phase);
CREATE INDEX by_first ON games (first);
CREATE INDEX by_second ON games (second);
CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize='unicode61 remove_diacritics 2');
"""
_COLUMNS = "source, phase, step, number, offset, size, game, task, outcome, length, first, second, preview"
_INSERT = f"INSERT INTO games ({_COLUMNS}) VALUES ({', '.join('?' * 13)})"


class _Said(msgspec.Struct):
    content: str


class _Player(msgspec.Struct):
    model: str


class _IndexedRow(msgspec.Struct):
    """The fields of an episode that are indexed; token ids and log-probabilities, most of a row's bytes, are
    skipped.
    """

    history: list[_Said]
    task: Task | None = None  # not in rows of upstream
    game: str = TABOO
    outcome: str | None = None
    players: Mapping[str, _Player] = {}


_ROWS = msgspec.json.Decoder(_IndexedRow)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # the last one: nested too deeply


class _OtherGameError(DataError):
    """The line is a kind of game that is not in the run's settings."""


@dataclass(slots=True)
class _Follower:
    """How far a file has been read, how to recognise its replacement, and the faults in its lines. ``kinds``: the games
    that were shown when its first line was read.
    """

    source: GameFile
    kinds: frozenset[str]
    inode: int = 0
    head: bytes = b""
    offset: int = 0
    lines: int = 0
    is_open: bool = False  # the last line is a game without its line break
    first_fault: str = ""
    more_faults: int = 0

    @property
    def fault(self) -> str:
        more = f"; more lines without a game: {self.more_faults:,}" if self.more_faults else ""
        return self.first_fault + more

    def note(self, fault: str) -> None:
        """Keep the first fault, and count the others; equal messages count once."""
        self.more_faults += bool(self.first_fault) and fault != self.first_fault
        self.first_fault = self.first_fault or fault


class GameIndex:
    """The index over the files in ``sources``, usable from several threads. An unreadable file keeps its games.

    ``games``: the kinds of games that are shown, by name.
    """

    def __init__(self, sources: Callable[[], Iterable[GameFile]], games: Callable[[], Mapping[str, Game]]) -> None:
        self._troubles: dict[str, str] = {}  # by source: why it cannot be read now; "": the list of sources
        self._sources, self._games = sources, games
        self._followers: dict[str, _Follower] = {}
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)  # "": a private temporary file
        self._db.row_factory = sqlite3.Row
        weakref.finalize(self, self._db.close)  # Python 3.13 warns about unclosed connections
        self._db.executescript(_SCHEMA)

    def stop(self, why: str) -> None:
        """Show on the pages that the run is no longer followed."""
        self._troubles["stopped"] = why

    @property
    def faults(self) -> list[str]:
        """What cannot be read now, then a line for each of the first twenty files with lines that are not games."""
        found = list(dict.fromkeys(fault for one in list(self._followers.values()) if (fault := one.fault)))
        more = [f"{len(found) - _MOST_FAULTS:,} more files have such lines"] if len(found) > _MOST_FAULTS else []
        return [*self._troubles.values(), *found[:_MOST_FAULTS], *more]

    def holds(self, game: str) -> bool:
        """Whether games of this name are in the index."""
        return bool(self.query("SELECT 1 FROM games WHERE game = ? LIMIT 1", (game,)))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run a query that reads ``games`` and ``texts``."""
        with self._lock:
            return self._db.execute(sql, arguments).fetchall()

    def sync(self) -> bool:
        """Read appended games, source by source, up to ``BATCH`` of one. Returns whether there are more."""
        with self._reading:  # two threads would add the same lines
            try:
                sources = {source.name: source for source in self._sources()}
            except (SpagError, OSError) as error:
                self._troubles[""] = str(error)
                return False
            self._troubles = {name: why for name, why in self._troubles.items() if name in sources}
            for name in [name for name in self._followers if name not in sources]:
                self._forget(name)
            return any(map(self._follow, sources.values()))

    def episode(self, source: str, number: int) -> Episode | None:
        """Return a game from its file; ``None`` for an unknown one. Raises ``DataError`` if the file changed."""
        follower = self._followers.get(source)
        found = self.query("SELECT offset, size FROM games WHERE source = ? AND number = ?", (source, number))
        if follower is None or not found:
            return None
        path = follower.source.path
        place = f"{path}:{number}"
        try:
            with path.open("rb") as stream:
                stream.seek(found[0][0])
                line = stream.read(found[0][1]).removeprefix(BOM_UTF8)
            return episode_of(msgspec.json.decode(line, type=dict[str, Any]), place)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        except _UNREADABLE as error:
            raise DataError(f"{place}: not an episode: {error}") from error

    def _follow(self, source: GameFile) -> bool:
        name, path = source.name, source.path
        try:
            with path.open("rb") as stream:
                new = _Follower(source, frozenset(self._games()))
                stat, follower = os.fstat(stream.fileno()), self._followers.get(name, new)
                grown = stat.st_size - follower.offset
                is_same = stat.st_ino == follower.inode and (grown == 0 or (grown > 0 and not follower.is_open))
                is_same = is_same and (follower.kinds == new.kinds or not follower.fault)
                if name in self._followers and not (is_same and stream.read(len(follower.head)) == follower.head):
                    self._forget(name)
                    follower = new
                self._followers[name] = follower
                stream.seek(follower.offset)
                lines = list(islice(stream, BATCH))
                if lines and not lines[-1].endswith(b"\n") and not _is_game(lines[-1], self._games()):
                    lines.pop()  # being written
                self._add(follower, lines)
                if lines:
                    follower.is_open = not lines[-1].endswith(b"\n")
                stream.seek(0)
                follower.inode, follower.head = stat.st_ino, stream.read(min(_HEAD, follower.offset))
                self._troubles.pop(name, None)
                return len(lines) == BATCH
        except OSError as error:
            self._troubles[name] = f"{path}: cannot be read: {error.strerror}"
        except (SpagError, sqlite3.Error) as error:
            self._troubles[name] = str(error)
        return False

    def _add(self, follower: _Follower, lines: list[bytes]) -> None:
        """Index the games in whole ``lines``; the follower counts the lines once all are in."""
        games, faults, kinds = [], [], self._games()
        source, offset = follower.source, follower.offset
        for number, line in enumerate(lines, start=follower.lines + 1):
            place = f"{source.path}:{number}"
            if line.strip():
                try:
                    values, text = _read(line, place, kinds)
                    games.append(((source.name, source.phase, source.step, number, offset, len(line), *values), text))
                except _OtherGameError as error:
                    faults.append(str(error))
                except (*_UNREADABLE, DataError) as error:
                    faults.append(f"{place}: not an episode: {str(error).removeprefix(f'{place}: ')}")
            offset += len(line)
        with self._lock, self._db:
            self._db.execute("BEGIN")
            for values, text in games:
                added = self._db.execute(_INSERT, values).lastrowid
                self._db.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (added, text))
        follower.offset, follower.lines = offset, follower.lines + len(lines)
        for fault in faults:
            follower.note(fault)

    def _forget(self, name: str) -> None:
        del self._followers[name]
        with self._lock:
            self._db.execute("DELETE FROM games WHERE source = ?", (name,))


def _is_game(line: bytes, kinds: Mapping[str, Game]) -> bool:
    try:
        _read(line, "", kinds)
    except (*_UNREADABLE, DataError):
        return False
    return True


def _read(line: bytes, place: str, kinds: Mapping[str, Game]) -> tuple[tuple[Any, ...], str]:
    """Return the columns of a game from ``game`` on, and its text for search."""
    line = line.removeprefix(BOM_UTF8)
    row = _ROWS.decode(line)
    game = kinds.get(row.game)
    if game is None:
        raise _OtherGameError(f"games of {row.game} are not shown; open their file separately: spag web FILE")
    task, outcome = row.task, row.outcome
    if task is None or outcome is None:
        whole = episode_of(msgspec.json.decode(line), place)
        task, outcome = whole.task, outcome or replay(game_by_rules(whole, game), whole).outcome
    if outcome not in game.outcomes:
        raise DataError(f"{game.name} has no outcome {outcome!r}")
    try:
        about = "".join((game.describe_task(task), ""))  # a TypeError if it is not text
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"its task is not one of {game.name}: {error!r}") from error
    texts = [said.content for said in row.history]
    players = [row.players[role].model if role in row.players else "" for role in game.roles]
    preview = texts[-1][:PREVIEW] if texts else ""
    return (game.name, about, outcome, len(texts), *players, preview), "\n".join((about, *texts))
