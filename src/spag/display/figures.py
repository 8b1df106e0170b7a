"""Numbers as tables and sentences show them: signs, p-values, differences."""

from collections.abc import Mapping


def turned(difference: Mapping[str, float], as_is: bool) -> Mapping[str, float]:
    """Return a difference seen from the other player, unless ``as_is``."""
    if as_is:
        return difference
    return {**difference, "mean": -difference["mean"], "low": -difference["high"], "high": -difference["low"]}


def signed(value: float, digits: int = 0) -> str:
    """Return a number with its sign; 0 has none."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def p_text(p: float) -> str:
    """Return a p-value with its sign of equality."""
    return f"p < {p_value(p)[1:]}" if p < 0.001 else f"p = {p_value(p)}"


def p_value(p: float) -> str:
    """Return a p-value as a table shows it."""
    return "<0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"
