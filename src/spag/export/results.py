"""What was measured of a run, as Markdown: the report's tables with all their intervals."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from spag.evaluation.arena.games import NOTE
from spag.evaluation.stats import Rate
from spag.export.markdown import Markdown, code, figure, list_of, table
from spag.games.taboo.types import Role
from spag.report.findings import FEW_WORDS, arena_findings, reasoning_finding, sentence
from spag.report.rows import Cell, Noted, Table, pair_table, reasoning_table, role_table
from spag.runs.reading import RunData

M = Markdown


def result_lines(run: RunData) -> Iterator[Markdown]:
    """Yield the section on results, paragraph by paragraph."""
    yield M("## Results")
    if run.arena is None and run.reasoning is None:
        yield M("The run holds no results.")
    if run.arena:
        yield from _arena(run.arena)
    if run.reasoning:
        yield from _reasoning(run.reasoning)


def _arena(arena: Mapping[str, Any]) -> Iterator[Markdown]:
    player, found = arena_findings(arena)
    marked = [replace(one, other=code(one.other)) for one in found]
    if marked:
        yield M(sentence(code(player), marked))
        yield list_of(M(f"against {one.other}: {one.figures}") for one in marked)
    yield M(f"Games on {arena['words']:,} held-out words, judged by the {code(arena['judge'])} rules." + _few(arena["words"]))
    for role in Role:
        yield M(f"As {role}, % of games:")
        yield _table(role_table(arena, role))
    yield M("Every two players, in both roles:")
    yield _table(pair_table(arena))
    yield M("Elo points over the first player:")
    ratings = [(code(row["name"]), M(f"{row['points']:.0f} [{row['low']:.0f}, {row['high']:.0f}]")) for row in arena["ratings"]]
    yield table((M("player"), M("points")), ratings)
    yield M(NOTE)


def _few(words: int) -> str:
    return " With so few words only large differences can show." if words < FEW_WORDS else ""


def _reasoning(reasoning: Mapping[str, Any]) -> Iterator[Markdown]:
    yield M("Reasoning, measured with lm-evaluation-harness; below each score, the difference to the first model with its 95 % interval:")
    found = reasoning_finding(reasoning)
    if found:
        model, finding = found
        yield M(f"{sentence(code(model), [replace(finding, other=code(finding.other))])} {code(finding.figures)}")
    yield _table(reasoning_table(reasoning))


def _table(shown: Table) -> Markdown:
    rows = [(_name(row[0]), *(_cell(cell) for cell in row[1:])) for row in shown.rows]
    return table([M(one) if one.isascii() and one.replace(" ", "").isalnum() else code(one) for one in shown.columns], rows)


def _name(cell: Cell) -> Markdown:
    if isinstance(cell, Noted):
        return M(" ".join((code(cell.text), *(f"({code(note)})" for note in cell.notes))))
    return code(cell)


def _cell(cell: Cell) -> Markdown:
    if isinstance(cell, Rate):
        return M(f"{100 * cell.rate:.0f} [{100 * cell.low:.0f}, {100 * cell.high:.0f}]")
    if isinstance(cell, Noted):
        return M("<br>".join((figure(cell.text), *map(figure, cell.notes))))
    return M("–") if cell is None else figure(cell)
