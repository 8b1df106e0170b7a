"""Text to HTML: everything a model or a person wrote is escaped, isolated from the text around it, and cannot hide anything.

Characters that are drawn as nothing or turn the direction of writing (zero-width spaces, soft hyphens, overrides, controls) are shown by
their code. That keeps the page in order, and in this game it also shows what a player tried.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from spag.games.taboo.types import Outcome

SHOWN = 20_000  # characters of one text that a page shows
POINTS = 120  # of a curve
_BLANKS = "\u115f\u1160\u3164\uffa0\u2800\u034f"
_SUSPECT = re.compile(rf"[^\x09\x0a\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff]|[{_BLANKS}]")
_JOINERS = "\u200c\u200d"  # part of emoji, and of Persian and Indic spelling
_ORDER = (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS, Outcome.ATTACKER_VIOLATION, Outcome.TIE)


def visible(text: str, *, longest: int = SHOWN) -> Markup:
    """Return ``text`` escaped, with invisible characters shown by their codes, cut after ``longest`` characters with a note."""
    shown = text[:longest]
    left = len(text) - len(shown)
    pieces: list[Markup | str] = []
    end = 0
    for found in _SUSPECT.finditer(shown):
        if _is_hidden(shown, found.start()):
            code = f"U+{ord(found.group()):04X}"
            name = unicodedata.name(found.group(), "control character").lower()
            pieces += [shown[end : found.start()], Markup('<span class="hidden-char" title="{}">{}</span>').format(name, code)]
            end = found.end()
    body = Markup("").join(map(escape, (*pieces, shown[end:])))
    return body + Markup(' <span class="cut">… {} more characters</span>').format(f"{left:,}") if left else body


def _is_hidden(text: str, position: int) -> bool:
    char = text[position]
    if char in _JOINERS:
        return position == 0 or text[position - 1].isascii()
    return char in _BLANKS or unicodedata.category(char) in ("Cf", "Cc", "Cs", "Zl", "Zp")


def said(text: str, span: tuple[int, int] | None = None) -> Markup:
    """Return an utterance as HTML, the characters of ``span`` marked."""
    if span is None or span[1] > SHOWN:
        return visible(text)
    start, end = span
    return (
        visible(text[:start]) + Markup("<mark>") + visible(text[start:end]) + Markup("</mark>") + visible(text[end:], longest=SHOWN - end)
    )


def shares(counts: dict[Outcome, int]) -> Iterator[tuple[Outcome, int, float, float]]:
    """Yield (outcome, count, share, sum of the shares before it), shares in per cent, for a stacked bar."""
    total, before = sum(counts.values()), 0.0
    for outcome in _ORDER:
        count = counts.get(outcome, 0)
        share = 100 * count / total if total else 0.0
        yield outcome, count, share, before
        before += share


def curve(values: Sequence[float], width: float = 240, height: float = 48) -> str:
    """Return the points of an SVG polyline through ``values``, thinned to at most 120 points."""
    step = max(1, -(-len(values) // POINTS))
    kept = [*values[::step]]
    low, high = min(kept), max(kept)
    across, up = width / max(1, len(kept) - 1), (height - 4) / ((high - low) or 1)
    return " ".join(f"{index * across:.1f},{2 + (high - value) * up:.1f}" for index, value in enumerate(kept))


def duration(seconds: float) -> str:
    """Return seconds as people say them: under 1 s, 8 s, 3 min, 2 h 05 min."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@cache
def environment() -> Environment:
    """Return the templates' environment: escaping always on, unknown names are errors."""
    made = Environment(loader=PackageLoader("spag.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters.update(visible=visible, said=said, shares=shares, curve=curve, duration=duration)
    return made
