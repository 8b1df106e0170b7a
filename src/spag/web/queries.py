"""What the pages ask the index: a filtered page of games, counts by outcome, the choices of the filters, one word across sources.

Words of a search are quoted before they reach SQLite's full-text language, so that nothing a visitor types is syntax; the last word also
matches as a beginning, for search while typing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, Field

from spag.games.taboo.types import Outcome
from spag.web.index import GameIndex

PAGE_SIZE = 30
_MOST = 10**9
_TERM = re.compile(r'"([^"]+)"?|([^\s"]+)')
_SHORTEST_BEGINNING = 3  # letters; shorter beginnings match nearly every game


def _none_if_blank(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


_Blank = BeforeValidator(_none_if_blank)
Text = Annotated[Annotated[str, Field(max_length=200)] | None, _Blank]
Count = Annotated[Annotated[int, Field(ge=0, le=_MOST)] | None, _Blank]


class GameFilter(BaseModel):
    """What a visitor asks for; fields are named as in the address. An empty field filters nothing."""

    source: Text = None
    outcome: Annotated[Outcome | None, _Blank] = None
    winner: Annotated[Literal["attacker", "defender", "nobody"] | None, _Blank] = None
    attacker: Text = None
    defender: Text = None
    word: Text = None
    shortest: Count = None
    longest: Count = None
    text: Text = None
    page: Annotated[int, Field(ge=1, le=_MOST)] = 1

    def address(self, **changes: Any) -> dict[str, str]:
        """Return the query of the address that shows this filter with ``changes``."""
        values = {**self.model_dump(mode="json"), **changes}
        return {name: str(value) for name, value in values.items() if value is not None and not (name == "page" and value == 1)}


@dataclass(frozen=True, slots=True)
class GameRow:
    """One game of a list."""

    id: int
    source: str
    number: int
    word: str
    outcome: Outcome
    length: int
    attacker: str
    defender: str
    preview: str


@dataclass(frozen=True, slots=True)
class GamePage:
    """A page of games with the counts of all that match, by outcome."""

    rows: list[GameRow]
    outcomes: dict[Outcome, int]
    page: int

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // PAGE_SIZE))


_NAMES = [column.name for column in fields(GameRow)]
_COLUMNS = ", ".join(_NAMES)


def find_games(index: GameIndex, asked: GameFilter) -> GamePage:
    """Return one page, newest games first; a page beyond the last is the last."""
    where, arguments = _where(asked)
    counts = index.query(f"SELECT outcome, count(*) FROM games {where} GROUP BY outcome", arguments)
    found = GamePage([], {Outcome(outcome): count for outcome, count in counts}, 1)
    page = min(asked.page, found.pages)
    rows = index.query(
        f"SELECT {_COLUMNS} FROM games {where} ORDER BY id DESC LIMIT ? OFFSET ?", (*arguments, PAGE_SIZE, (page - 1) * PAGE_SIZE)
    )
    return GamePage([_row(row) for row in rows], found.outcomes, page)


def _row(row: Sequence[Any]) -> GameRow:
    return msgspec.convert(dict(zip(_NAMES, row, strict=True)), GameRow)


def _where(asked: GameFilter) -> tuple[str, list[Any]]:
    """Return the WHERE clause of a filter and its arguments."""
    equal = ("source", "outcome", "winner", "attacker", "defender", "word")
    terms: list[tuple[str, Any]] = [
        *((f"{name} = ?", getattr(asked, name)) for name in equal),
        ("length >= ?", asked.shortest),
        ("length <= ?", asked.longest),
        ("id IN (SELECT rowid FROM texts WHERE texts MATCH ?)", match_expression(asked.text) if asked.text else None),
    ]
    used = [(clause, value.strip() if isinstance(value, str) else value) for clause, value in terms if value is not None]
    return ("WHERE " if used else "") + " AND ".join(clause for clause, _ in used), [value for _, value in used]


def match_expression(text: str) -> str:
    """Turn what a visitor typed into an FTS5 expression: every word must occur; words in double quotes occur as they stand."""
    terms = [(phrase or word, bool(phrase)) for phrase, word in _TERM.findall(text.replace("\0", " "))]
    quoted = [f'"{term}"' for term, _ in terms]
    if terms and not terms[-1][1] and len(terms[-1][0]) >= _SHORTEST_BEGINNING:
        quoted[-1] += "*"
    return " AND ".join(quoted) or '""'


def outcome_shares(index: GameIndex) -> dict[str, dict[Outcome, int]]:
    """Return how the games of each source ended, sources in the order in which their games came."""
    rows = index.query("SELECT source, outcome, count(*), min(id) FROM games GROUP BY source, outcome ORDER BY min(id)")
    shares: dict[str, dict[Outcome, int]] = {}
    for source, outcome, count, _ in rows:
        shares.setdefault(source, {})[Outcome(outcome)] = count
    return shares


def choices(index: GameIndex) -> dict[str, list[str]]:
    """Return the values that the filters ``source``, ``attacker`` and ``defender`` can take."""
    found = {"source": [name for (name,) in index.query("SELECT source FROM games GROUP BY source ORDER BY min(id)")]}
    for column in ("attacker", "defender"):
        rows = index.query(f"SELECT DISTINCT {column} FROM games WHERE {column} != '' ORDER BY {column} LIMIT 100")
        found[column] = [name for (name,) in rows]
    return found


def latest_games(index: GameIndex, count: int) -> list[GameRow]:
    """Return the games that came last."""
    return [_row(row) for row in index.query(f"SELECT {_COLUMNS} FROM games ORDER BY id DESC LIMIT ?", (count,))]


def games_of_word(index: GameIndex, word: str, per_source: int) -> dict[str, tuple[int, list[GameRow]]]:
    """Return for each source with games of ``word`` how many there are, and the first ``per_source`` of them."""
    rows = [_row(row) for row in index.query(f"SELECT {_COLUMNS} FROM games WHERE word = ? ORDER BY id", (word,))]
    sources = list(dict.fromkeys(row.source for row in rows))
    grouped = {source: [row for row in rows if row.source == source] for source in sources}
    return {source: (len(games), games[:per_source]) for source, games in grouped.items()}


def shared_words(index: GameIndex, count: int) -> list[tuple[str, int]]:
    """Return the words played in the most sources, with that number."""
    sql = "SELECT word, count(DISTINCT source) AS sources FROM games GROUP BY word ORDER BY sources DESC, count(*) DESC, word LIMIT ?"
    return [(word, sources) for word, sources in index.query(sql, (count,))]


def last_number(index: GameIndex, source: str) -> int:
    """Return the highest line number of a source's games; 0 for an unknown source."""
    return int(index.query("SELECT coalesce(max(number), 0) FROM games WHERE source = ?", (source,))[0][0])
