"""Foreign texts made safe inside Markdown, and tables.

Names of models, players and files, and every setting come from outside. They stand in code spans, where neither Markdown nor HTML means
anything; the type keeps plain strings out of the card, so that none is forgotten.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NewType

Markdown = NewType("Markdown", str)
"""Text that means what it says as Markdown: our own words, figures, or a foreign text out of ``code``."""

_LONGEST = 200


def code(text: object) -> Markdown:
    """Return a foreign text as a code span on one line: invisible characters by their codes, cut after 200 characters."""
    line = " ".join(str(text).split())
    shown = "".join(f"U+{ord(char):04X}" if unicodedata.category(char)[0] == "C" else char for char in line[:_LONGEST])
    shown += "…" if len(line) > _LONGEST else ""
    if not shown:
        return Markdown("(empty)")
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return Markdown(f"{fence}{pad}{shown}{pad}{fence}")


def figure(text: str) -> Markdown:
    """Return a figure as it is: digits, signs, intervals, p-values. What is anything else becomes a code span."""
    return Markdown(text) if re.fullmatch(r"[-\d\s.,+\N{MINUS SIGN}±–→\[\]%<=p]*", text) else code(text)


def list_of(items: Iterable[Markdown]) -> Markdown:
    """Return a list with a dot for each item."""
    return Markdown("\n".join(f"- {item}" for item in items))


def table(columns: Sequence[Markdown], rows: Iterable[Sequence[Markdown]]) -> Markdown:
    """Return a table: the first column to the left, the others, of figures, to the right."""
    marks = ["---", *["---:"] * (len(columns) - 1)]
    lines = [_row(columns), f"| {' | '.join(marks)} |", *(_row(row) for row in rows)]
    return Markdown("\n".join(lines))


def _row(cells: Sequence[Markdown]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"  # a bar ends a cell even in a code span
