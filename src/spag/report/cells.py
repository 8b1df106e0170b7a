"""What a table of results is, before it is drawn, and how its numbers are written.

The terminal (``cli/tables.py``), the report (``macros.html``) and the model card (``export/card.py``) each draw any
``Table``; none of them shapes cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spag.evaluation.intervals import Rate


@dataclass(frozen=True, slots=True)
class DetailedCell:
    """A cell with a figure, and lines that belong to it in small print."""

    text: str
    details: tuple[str, ...]


Cell = str | Rate | DetailedCell | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with rows of as many cells as there are columns, the first of which names the row.

    ``None`` is a figure that there is not. ``texts``: how many columns, from the left, hold text and not figures.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int = 1
    last_is_total: bool = False


def signed(value: float, digits: int = 0) -> str:
    """Return a number with its sign; 0 has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def unsigned(value: float, digits: int = 0) -> str:
    """Return a number with a sign only below 0."""
    return signed(value, digits).removeprefix("+")


def p_text(p: float) -> str:
    """Return a p-value as a sentence names it."""
    return f"p < {p_value(p)[1:]}" if p < 0.001 else f"p = {p_value(p)}"


def p_value(p: float) -> str:
    """Return a p-value as a table shows it."""
    return "<0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def interval(found: Mapping[str, float], scale: float = 1, value: str = "mean", digits: int = 0) -> str:
    """Return a difference with its interval."""
    mean, low, high = (signed(scale * found[key], digits) for key in (value, "low", "high"))
    return f"{mean} [{low}, {high}]"


def oriented(difference: Mapping[str, float], as_is: bool) -> Mapping[str, float]:
    """Return a difference as the other player sees it, unless ``as_is``."""
    if as_is:
        return difference
    return {**difference, "mean": -difference["mean"], "low": -difference["high"], "high": -difference["low"]}


def rate_cell(rate: Mapping[str, Any] | None) -> Rate | None:
    """Return a rate from a file, whatever else the file says of it; ``None`` where nothing was counted."""
    return Rate(**{field.name: rate[field.name] for field in fields(Rate)}) if rate and rate["total"] else None


def exact_cell(value: float | None) -> str | None:
    """Return an exact figure to three digits."""
    return None if value is None else unsigned(value, 3)
