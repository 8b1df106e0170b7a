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
from spag.core.errors import DataError
from spag.core.types import Task
from spag.games.base import Game
from spag.runs.reading import Source
from spag.runs.records import is_online

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


class _OtherGameError(DataError):
    def __init__(self, game: str, wanted: str) -> None:
        super().__init__(f"a game of {game}, not {wanted}; open it on its own")
        self.game = game


@dataclass(slots=True)
class _Follower:
    """How far a file has been read, and what tells it from another file of that name."""

    path: Path
    inode: int = 0
    head: bytes = b""
    offset: int = 0
    lines: int = 0


class GameIndex:
    """The index over the files that ``sources`` names, all of them of one game. Safe to use from several threads.

    ``faults``: lines that hold no such game, and files that cannot be read; at most twenty.
    """

    def __init__(self, sources: Callable[[], Iterable[Source]], game: Callable[[], Game]) -> None:
        self.faults: list[str] = []
        self._sources, self._game = sources, game
        self._followers: dict[str, _Follower] = {}
        self._lock = threading.Lock()
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)  # "": a private temporary file
        self._db.row_factory = sqlite3.Row
        self._db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536;" + _SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def query(self, sql: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Run a reading query over the table ``games`` (and ``texts``)."""
        with self._lock:
            return self._db.execute(sql, arguments).fetchall()

    def sync(self) -> bool:
        """Take in what was appended, in the order of the sources, up to the first that has more than ``BATCH`` games left.

        Returns whether more is waiting.
        """
        sources = {source.name: source.path for source in self._sources()}
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
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
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
                return len(lines) == BATCH
        except OSError as error:
            self._note(f"{path}: cannot be read: {error.strerror}")
            return False

    def _add(self, name: str, follower: _Follower, lines: list[bytes]) -> None:
        """Put the games of whole ``lines`` into the index."""
        games, game = [], self._game()
        for line in lines:
            follower.lines += 1
            place = f"{follower.path}:{follower.lines}"
            if line.strip():
                try:
                    games.append(((name, follower.lines, follower.offset, len(line)), *_read(line, place, game)))
                except _OtherGameError as error:  # online steps may mix games
                    note = f"games of {error.game} are not shown; open a file of them on its own: spag web FILE"
                    self._note(note if is_online(name) else f"{place}: not an episode: {error}")
                except (msgspec.MsgspecError, UnicodeDecodeError, DataError) as error:
                    self._note(f"{place}: not an episode: {str(error).removeprefix(f'{place}: ')}")
            follower.offset += len(line)
        with self._lock:
            self._db.execute("BEGIN")
            for place_values, values, text in games:
                added = self._db.execute(_INSERT, (*place_values, *values)).lastrowid
                self._db.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (added, text))
            self._db.execute("COMMIT")

    def _forget(self, name: str) -> None:
        del self._followers[name]
        with self._lock:
            self._db.execute("DELETE FROM games WHERE source = ?", (name,))

    def _note(self, fault: str) -> None:
        if fault not in self.faults and len(self.faults) < _MOST_FAULTS:
            self.faults.append(fault)


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
        about = game.describe_task(task)
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"its task is not one of {game.name}: {error!r}") from error
    texts = [said.content for said in row.history]
    players = [row.players[role].model if role in row.players else "" for role in game.roles]
    return (about, outcome, len(texts), *players, texts[-1][:PREVIEW] if texts else ""), "\n".join((about, *texts))
