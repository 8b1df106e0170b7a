"""Text and tables as Markdown for the model card, in which no foreign text is active.

Names of models, players and files and all settings are foreign: they become code spans, in which neither Markdown nor
HTML is active.
"""

import re
import unicodedata

from spag.evaluation.intervals import Rate
from spag.report.cells import Cell, DetailedCell, Table

_LONGEST = 200


class Markdown(str):
    """Text to be rendered as Markdown: our own words, or foreign text from ``code``."""


def code(text: object) -> Markdown:
    """Return foreign text as a code span on one line: invisible characters as codes, truncated to 200 characters."""
    line = " ".join(str(text).split())
    shown = "".join(f"U+{ord(char):04X}" if unicodedata.category(char)[0] == "C" else char for char in line[:_LONGEST])
    shown += "…" if len(line) > _LONGEST else ""
    if not shown:
        return Markdown("(empty)")
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return Markdown(f"{fence}{pad}{shown}{pad}{fence}")


def figure(value: object) -> Markdown:
    """Return Markdown and numbers (digits, signs, intervals, p-values) unchanged, anything else as a code span."""
    text = str(value)
    is_figure = re.fullmatch(r"[-\d\s.,+\N{MINUS SIGN}±–→\[\]%<=p]*", text)
    return Markdown(text) if isinstance(value, Markdown) or is_figure else code(text)


def table(shown: Table) -> Markdown:
    """Return a table of results: text left-aligned, numbers right-aligned."""
    heads = [Markdown(one) if one.isascii() and one.replace(" ", "").isalnum() else one for one in shown.columns]
    marks = ["---" if place < shown.texts else "---:" for place in range(len(shown.columns))]
    rows = [map(cell, heads), marks, *(map(cell, row) for row in shown.rows)]
    return Markdown("\n".join(f"| {' | '.join(row)} |" for row in rows))


def cell(value: Cell) -> Markdown:
    """Return a cell of a table."""
    if isinstance(value, Rate):
        text = f"{100 * value.rate:.0f} [{100 * value.low:.0f}, {100 * value.high:.0f}]"
    elif isinstance(value, DetailedCell):
        text = "<br>".join(map(figure, (value.text, *value.details)))
    else:
        text = "–" if value is None else figure(value)
    return Markdown(text.replace("|", r"\|"))  # a bar ends a cell even in a code span
