"""Result tables before rendering, and the formatting of their numbers.

The terminal (``cli/tables.py``), the report (``macros.html``) and the model card (``export/markdown.py``) each render
any ``Table``; none of them formats cells.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spag.evaluation.intervals import Rate


@dataclass(frozen=True, slots=True)
class DetailedCell:
    """A cell with a number, and lines of small print below it."""

    text: str
    details: tuple[str, ...]


_LARGEST = 1e30
Cell = str | Rate | DetailedCell | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows have one cell per column; the first cell names the row.

    ``None`` is a missing number. ``texts``: how many columns, from the left, hold text instead of numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int = 1
    last_is_total: bool = False


def is_number(value: Any) -> bool:
    """Whether ``value`` can be shown and drawn: a number that does not overflow an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def signed(value: float, digits: int = 0) -> str:
    """Return a number with its sign; 0 has none."""
    return with_minus(f"{value:+.{digits}f}")


def with_minus(text: str) -> str:
    """Return a formatted number with a minus sign in place of its hyphen; that of an exponent stays, 0 has no sign."""
    return re.sub("^-", "\N{MINUS SIGN}", text) if float(text) else text.lstrip("+-")


def unsigned(value: float, digits: int = 0) -> str:
    """Return a number with a sign only below 0."""
    return signed(value, digits).removeprefix("+")


def p_text(p: float) -> str:
    """Return a p-value as written in a sentence."""
    return f"p < {p_value(p)[1:]}" if p < 0.001 else f"p = {p_value(p)}"


def p_value(p: float) -> str:
    """Return a p-value as shown in a table."""
    if 0.0495 <= p < 0.0505:  # two digits would not show on which side of 0.05 it is
        return f"{p:.4f}"
    return "<0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def interval(found: Mapping[str, float], scale: float = 1, value: str = "mean", digits: int = 0) -> str:
    """Return a difference with its interval."""
    mean, low, high = (signed(scale * found[key], digits) for key in (value, "low", "high"))
    return f"{mean} [{low}, {high}]"


def oriented(difference: Mapping[str, float], as_is: bool) -> Mapping[str, float]:
    """Return a difference from the other player's view, unless ``as_is``."""
    if as_is:
        return difference
    return {**difference, "mean": -difference["mean"], "low": -difference["high"], "high": -difference["low"]}


def rate_cell(rate: Mapping[str, Any] | None) -> Rate | None:
    """Return a rate from a file, ignoring its other fields; ``None`` if nothing was counted."""
    return Rate(**{field.name: rate[field.name] for field in fields(Rate)}) if rate and rate["total"] else None
