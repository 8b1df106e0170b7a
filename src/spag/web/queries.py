"""What the pages ask the index: a filtered page of games, counts by outcome, the choices of the filters, one task across sources.

Words of a search are quoted before they reach SQLite's full-text language, so that nothing a visitor types is syntax; the last word also
matches as a beginning, for search while typing.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from sqlite3 import Row
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import BaseModel, BeforeValidator, Field

from spag.games.base import Game
from spag.runs.records import EVALUATION_SOURCE, STEP_SOURCE, is_online, step_of, step_source
from spag.web.index import GameIndex

PAGE_SIZE = 30
STEPS_A_PAGE = 50
MOST_BARS = 8
"""Bars that all online steps together have in the overview."""
MOST_COLUMNS = 12
NOBODY = "nobody"
"""The winner of games that no role wins."""
_MOST = 10**9
_TERM = re.compile(r'"([^"]+)"?|([^\s"]+)')
_SHORTEST_BEGINNING = 3  # letters; shorter beginnings match nearly every game
_EQUAL = ("source", "outcome", "first", "second", "task")

_Blank = BeforeValidator(lambda value: None if isinstance(value, str) and not value.strip() else value)
Text = Annotated[Annotated[str, Field(max_length=200)] | None, _Blank]
Count = Annotated[Annotated[int, Field(ge=0, le=_MOST)] | None, _Blank]


class GameFilter(BaseModel):
    """What a visitor asks for; fields are named as in the address. An empty field filters nothing."""

    source: Text = None
    step: Count = None
    outcome: Text = None
    winner: Text = None
    first: Text = None
    second: Text = None
    task: Text = None
    shortest: Count = None
    longest: Count = None
    text: Text = None
    page: Annotated[int, Field(ge=1, le=_MOST)] = 1

    def address(self, **changes: Any) -> dict[str, str]:
        """Return the query of the address that shows this filter with ``changes``."""
        values = {**self.model_dump(mode="json"), **changes}
        return {name: str(value) for name, value in values.items() if value is not None and not (name == "page" and value == 1)}


@dataclass(frozen=True, slots=True)
class GamePage:
    """One of ``pages`` with games, and the counts of all that match, by outcome."""

    rows: list[Row]
    page: int
    pages: int
    outcomes: dict[str, int]
    total: int


def find_games(index: GameIndex, asked: GameFilter, game: Game) -> GamePage:
    """Return one page, newest games first; a page beyond the last is the last."""
    where, arguments = _where(asked, game)
    counts = index.query(f"SELECT outcome, count(*) FROM games {where} GROUP BY outcome", arguments)
    total = sum(row[1] for row in counts)
    pages = max(1, -(-total // PAGE_SIZE))
    page = min(asked.page, pages)
    rows = _rows(index, f"{where} ORDER BY id DESC LIMIT ? OFFSET ?", (*arguments, PAGE_SIZE, (page - 1) * PAGE_SIZE))
    return GamePage(rows, page, pages, {row["outcome"]: row[1] for row in counts}, total)


def _rows(index: GameIndex, rest: str, arguments: Sequence[Any]) -> list[Row]:
    return index.query(f"SELECT source, number, task, outcome, length, first, second, preview FROM games {rest}", arguments)


def _where(asked: GameFilter, game: Game) -> tuple[str, list[Any]]:
    """Return the WHERE clause of a filter and its arguments."""
    terms: list[tuple[str, Any]] = [
        *((f"{name} = ?", getattr(asked, name)) for name in _EQUAL),
        ("(source = ? OR source GLOB ?)", None if asked.step is None else [step_source(asked.step), f"{step_source(asked.step)}.part*"]),
        ("length >= ?", asked.shortest),
        ("length <= ?", asked.longest),
        ("id IN (SELECT rowid FROM texts WHERE texts MATCH ?)", match_expression(asked.text) if asked.text else None),
    ]
    used = [(clause, value.strip() if isinstance(value, str) else value) for clause, value in terms if value is not None]
    if asked.winner is not None:
        won = [one.name for one in game.outcomes.values() if (asked.winner in one.winners if one.winners else asked.winner == NOBODY)]
        used.append((f"outcome IN ({', '.join('?' * len(won))})", won))
    arguments = [value for _, values in used for value in (values if isinstance(values, list) else [values])]
    return ("WHERE " if used else "") + " AND ".join(clause for clause, _ in used), arguments


def match_expression(text: str) -> str:
    """Turn what a visitor typed into an FTS5 expression: every word must occur; words in double quotes occur as they stand."""
    terms = [(phrase or word, bool(phrase)) for phrase, word in _TERM.findall(text.replace("\0", " "))]
    quoted = [f'"{term}"' for term, _ in terms]
    if terms and not terms[-1][1] and len(terms[-1][0]) >= _SHORTEST_BEGINNING:
        quoted[-1] += "*"
    return " AND ".join(quoted) or '""'


def outcome_counts(index: GameIndex) -> dict[str, dict[str, int]]:
    """Return how the games of each source ended, sources in the order in which their games came."""
    rows = index.query("SELECT source, outcome, count(*), min(id) FROM games GROUP BY source, outcome ORDER BY min(id)")
    counts: dict[str, dict[str, int]] = {}
    for source, outcome, count, _ in rows:
        counts.setdefault(source, {})[outcome] = count
    return counts


def counts_by_step(counts: Mapping[str, Mapping[str, int]]) -> dict[int, dict[str, int]]:
    """Return those of the ``outcome_counts`` that are of online steps, by step."""
    found: dict[int, dict[str, int]] = {}
    for source, ended in counts.items():
        if (step := step_of(source)) is not None:
            found[step] = _sum(found.get(step, {}), ended)
    return dict(sorted(found.items()))


def shown_counts(counts: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str, Mapping[str, int]]]:
    """Return ``outcome_counts`` as bars: name, address and counts; online steps several together, their evaluations all together."""
    bars: list[tuple[str, str, Mapping[str, int]]] = []
    bars += [(source, f"/games?{urlencode({'source': source})}", ended) for source, ended in counts.items() if not is_online(source)]
    by_step = counts_by_step(counts)
    steps, size = list(by_step), max(1, -(-len(by_step) // MOST_BARS))
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        name = f"online step{'' if len(part) == 1 else 's'} {part[0]}{'' if len(part) == 1 else f'–{part[-1]}'}"
        bars.append((name, f"/steps?page={_page_of(part[-1], steps[-1])}", reduce(_sum, (by_step[step] for step in part))))
    evaluations = [ended for source, ended in counts.items() if source.startswith(EVALUATION_SOURCE)]
    if evaluations:
        bars.append(("evaluations", "/steps", reduce(_sum, evaluations)))
    return bars


def _page_of(step: int, last: int) -> int:
    return (last - step) // STEPS_A_PAGE + 1


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))


def choices(index: GameIndex) -> dict[str, list[str]]:
    """Return the values that the filters ``source``, ``first`` and ``second`` can take; online steps have a filter of their own."""
    sql = f"SELECT {{0}} FROM games WHERE {{0}} != '' AND {{0}} NOT GLOB '{STEP_SOURCE}*' GROUP BY {{0}} ORDER BY min(id) LIMIT 100"
    return {column: [name for (name,) in index.query(sql.format(column))] for column in ("source", "first", "second")}


def latest_games(index: GameIndex, count: int) -> list[Row]:
    """Return the games that came last."""
    return _rows(index, "ORDER BY id DESC LIMIT ?", (count,))


def games_of_task(index: GameIndex, task: str, per_source: int) -> dict[str, tuple[int, list[Row]]]:
    """Return for each source with games of ``task`` how many there are, and the first ``per_source`` of them.

    Of more than ``MOST_COLUMNS`` sources every second, third and so on is left.
    """
    grouped: dict[str, list[Row]] = {}
    for row in _rows(index, "WHERE task = ? ORDER BY id", (task,)):
        grouped.setdefault(row["source"], []).append(row)
    every = -(-len(grouped) // MOST_COLUMNS)  # of online steps there are hundreds
    return {source: (len(rows), rows[:per_source]) for source, rows in [*grouped.items()][:: max(1, every)]}


def shared_tasks(index: GameIndex, count: int) -> list[tuple[str, int]]:
    """Return the tasks played in the most sources, with that number."""
    sql = "SELECT task, count(DISTINCT source) AS sources FROM games GROUP BY task ORDER BY sources DESC, count(*) DESC, task LIMIT ?"
    return [(row["task"], row["sources"]) for row in index.query(sql, (count,))]


def last_number(index: GameIndex, source: str) -> int:
    """Return the highest line number of a source's games; 0 for an unknown source."""
    return int(index.query("SELECT coalesce(max(number), 0) FROM games WHERE source = ?", (source,))[0][0])
