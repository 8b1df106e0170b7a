"""The pages' queries to the index: a filtered page of games, counts by outcome, the choices of the filters.

Search words are quoted before they reach SQLite, so that visitors cannot enter full-text syntax; the last word also
matches as a prefix, for search while typing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Row
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from pydantic import BaseModel, BeforeValidator, Field

from spag.web.index import GameIndex

PAGE_SIZE = 30
MOST_BARS = 8  # for the steps of one phase in the overview
LONGEST_NAME = 2000  # characters of a task, source or player in an address
_MOST = 10**9
_TERM = re.compile(r'"([^"]+)"?|([^\s"]+)')
_SHORTEST_PREFIX = 3  # letters; shorter prefixes match nearly every game

_Blank = BeforeValidator(lambda value: None if isinstance(value, str) and not value.strip() else value)
Text = Annotated[Annotated[str, Field(max_length=200)] | None, _Blank]
Name = Annotated[Annotated[str, Field(max_length=LONGEST_NAME)] | None, _Blank]
Count = Annotated[Annotated[int, Field(ge=0, le=_MOST)] | None, _Blank]
Ended = Mapping[str, int]
"""Games by outcome."""


class GameFilter(BaseModel):
    """A visitor's filter; fields are named as in the address. An empty field filters nothing."""

    game: Text = None
    source: Name = None
    phase: Text = None
    step: Count = None
    until: Count = None  # the last of several steps
    outcome: Text = None
    first: Name = None
    second: Name = None
    task: Name = None
    text: Text = None
    page: Annotated[int, Field(ge=1, le=_MOST)] = 1

    def address(self, page: int) -> str:
        """Return the query string that shows ``page`` of this filter."""
        values = {**self.model_dump(exclude_none=True, exclude={"page"}), **({"page": page} if page != 1 else {})}
        return urlencode(values)


@dataclass(frozen=True, slots=True)
class GamePage:
    """One of ``pages`` of games, and the counts of all matches, by game and outcome."""

    rows: list[Row]
    page: int
    pages: int
    outcomes: dict[str, dict[str, int]]
    total: int


def find_games(index: GameIndex, asked: GameFilter) -> GamePage:
    """Return one page, newest games first; pages beyond the last give the last."""
    where, arguments = _where(asked)
    counts: dict[str, dict[str, int]] = {}
    sql = f"SELECT game, outcome, count(*) FROM games {where} GROUP BY game, outcome ORDER BY min(id)"
    for game, outcome, count in index.query(sql, arguments):
        counts.setdefault(game, {})[outcome] = count
    total = sum(sum(ended.values()) for ended in counts.values())
    pages = max(1, -(-total // PAGE_SIZE))
    page = min(asked.page, pages)
    rows = _rows(index, f"{where} ORDER BY id DESC LIMIT ? OFFSET ?", (*arguments, PAGE_SIZE, (page - 1) * PAGE_SIZE))
    return GamePage(rows, page, pages, counts, total)


def _rows(index: GameIndex, rest: str, arguments: Sequence[Any]) -> list[Row]:
    columns = "source, number, game, task, outcome, length, first, second, preview"
    return index.query(f"SELECT {columns} FROM games {rest}", arguments)


def _where(asked: GameFilter) -> tuple[str, list[Any]]:
    """Return the WHERE clause of a filter and its arguments."""
    plain = ("game", "source", "phase", "outcome", "first", "second")
    terms: dict[str, Any] = {
        **{f"{name} = ?": getattr(asked, name) for name in plain},
        "step >= ?": asked.step,
        "step <= ?": asked.step if asked.until is None else asked.until,
        "task = ?": asked.task and asked.task.strip(),
        "id IN (SELECT rowid FROM texts WHERE texts MATCH ?)": match_expression(asked.text or "") or None,
    }
    used = {clause: value for clause, value in terms.items() if value is not None}
    return ("WHERE " if used else "") + " AND ".join(used), list(used.values())


def match_expression(text: str) -> str:
    """Turn a visitor's search into an FTS5 expression: every word must occur, phrases in double quotes as written.

    Words without a letter or digit are not in the index and are ignored; empty if there are no others.
    """
    found = [(phrase or word, bool(phrase)) for phrase, word in _TERM.findall(text.replace("\0", " "))]
    terms = [(term, is_phrase) for term, is_phrase in found if any(map(str.isalnum, term))]
    quoted = [f'"{term}"' for term, _ in terms]
    if terms and not terms[-1][1] and len(terms[-1][0]) >= _SHORTEST_PREFIX:
        quoted[-1] += "*"
    return " AND ".join(quoted)


class GameSource(NamedTuple):
    """The source of games; ``phase`` and ``step`` as in ``GameFile``."""

    name: str
    phase: str
    step: int | None


def outcome_counts(index: GameIndex) -> dict[str, dict[GameSource, dict[str, int]]]:
    """Return the outcomes of each source, by game; sources are in the order in which their games appeared."""
    counts: dict[str, dict[GameSource, dict[str, int]]] = {}
    columns = "source, phase, step, game, outcome"
    for *source, game, outcome, count in index.query(
        f"SELECT {columns}, count(*) FROM games GROUP BY {columns} ORDER BY min(id)"
    ):
        counts.setdefault(game, {}).setdefault(GameSource(*source), {})[outcome] = count
    return counts


def bars(counts: Mapping[GameSource, Ended]) -> list[tuple[str, str, Ended]]:
    """Return a game's ``outcome_counts`` as bars: name, address, counts. A phase has ``MOST_BARS``, and one of
    evaluations.
    """
    found: dict[str, list[tuple[str, str, Ended]]] = {}
    for source, ended in counts.items():
        if not source.phase:
            found[source.name] = [(source.name, _address(source=source.name), ended)]
        elif source.phase not in found:
            found[source.phase] = [*_step_bars(counts, source.phase)]
    return [bar for own in found.values() for bar in own]


def _step_bars(counts: Mapping[GameSource, Ended], phase: str) -> Iterator[tuple[str, str, Ended]]:
    """Yield the bars of an online phase."""
    own = [(source.step, ended) for source, ended in counts.items() if source.phase == phase]
    played = [(step, ended) for step, ended in own if step is not None]
    evaluated = [ended for step, ended in own if step is None]
    steps = sorted({step for step, _ in played})
    size = max(1, -(-len(steps) // MOST_BARS))
    for start in range(0, len(steps), size):
        first, last = steps[start], steps[start : start + size][-1]
        name = f"{phase} step {first}" if first == last else f"{phase} steps {first}–{last}"
        total = _total(ended for step, ended in played if first <= step <= last)
        yield name, _address(phase=phase, step=first, **({} if first == last else {"until": last})), total
    if evaluated:
        yield f"{phase} evaluations", _address(phase=phase), _total(evaluated)


def _address(**asked: Any) -> str:
    return f"/games?{urlencode(asked)}"


def _total(counts: Iterable[Ended]) -> Ended:
    return sum(map(Counter, counts), Counter[str]())


def choices(index: GameIndex) -> dict[str, dict[str, str]]:
    """Return the values of filters with few values, and how they are shown; games of online steps are found by phase
    and step, not by source. Evaluations between steps come last.
    """
    found = {}
    for column, rest in (("source", "AND step IS NULL"), ("phase", ""), ("first", ""), ("second", "")):
        sql = f"SELECT {column} FROM games WHERE {column} != '' {rest} GROUP BY {column}"
        ordered = f"{sql} ORDER BY min(phase != ''), min(id) LIMIT 100"
        found[column] = {name: name for (name,) in index.query(ordered)}
    return found


def latest_games(index: GameIndex, count: int) -> list[Row]:
    """Return the latest games."""
    return _rows(index, "ORDER BY id DESC LIMIT ?", (count,))


def neighbours(index: GameIndex, source: str, number: int) -> tuple[int | None, int | None]:
    """Return the line numbers of a source's games before and after ``number``; lines between may hold no game."""
    sql = """SELECT (SELECT max(number) FROM games WHERE source = ? AND number < ?),
                    (SELECT min(number) FROM games WHERE source = ? AND number > ?)"""
    [(before, after)] = index.query(sql, (source, number) * 2)
    return before, after
