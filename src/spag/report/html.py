"""Text to HTML for the report and the web pages: escaping, the style rules of a game's colors, and the template
environment.

All text from models and people is escaped and isolated from its surroundings. Characters that are invisible or change
the direction of writing (zero-width spaces, overrides, controls) are shown by their code: this keeps a page in order,
and reveals what a player tried.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from spag.core.errors import ConfigError
from spag.core.types import Outcome
from spag.core.visible import code, counted, hidden
from spag.games.base import Game

SHOWN = 20_000  # characters shown of one text
POINTS = 120  # points of a curve
_WIDTH, _HEIGHT = 240, 48  # of the box that a curve fills
ROLE_COLORS = ("#d08a4d", "#3f9599")  # of players who win together
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")


def visible(text: str, *, longest: int = SHOWN) -> Markup:
    """Return ``text`` escaped, with invisible characters as codes, cut after ``longest`` characters with a note."""
    shown = text[:longest]
    left = len(text) - len(shown)
    pieces: list[Markup | str] = []
    end = 0
    for start in hidden(shown):
        name = unicodedata.name(shown[start], "control character").lower()
        span = Markup('<span class="hidden-char" title="{}">{}</span>').format(name, code(shown[start]))
        pieces += [shown[end:start], span]
        end = start + 1
    body = Markup("").join(map(escape, (*pieces, shown[end:])))
    return body + Markup(' <span class="cut">… {} more characters</span>').format(f"{left:,}") if left else body


def said(text: str, span: tuple[int, int] | None = None, longest: int = SHOWN, before: int = 300) -> Markup:
    """Return an utterance as HTML with the characters of ``span`` marked.

    A long one is cut to ``longest`` characters: the first ones or, if the span comes later, those starting ``before``
    the span.
    """
    if span is None:
        return visible(text, longest=longest)
    start = max(0, span[0] - before) if span[1] > longest else 0
    end = max(start + longest, span[1])
    lead, marked = (visible(part, longest=end) for part in (text[start : span[0]], text[slice(*span)]))
    cut = Markup('<span class="cut">…</span> ') if start else ""
    return cut + lead + Markup("<mark>{}</mark>").format(marked) + visible(text[span[1] :], longest=end - span[1])


def capital(text: str) -> str:
    """Return ``text`` with an initial capital, the rest unchanged."""
    return text[:1].upper() + text[1:]


def spaced(name: str) -> str:
    """Return a role's display name, without underscores."""
    return name.replace("_", " ")


def role_class(role: str, game: Game) -> str:
    """Return the CSS class of a role: ``first`` or ``second``."""
    return "first" if role == game.roles[0] else "second"


def shares(counts: Mapping[str, int], game: Game) -> Iterator[tuple[Outcome, int, float, float]]:
    """Yield (outcome, count, share, sum of the previous shares), shares in per cent, for a stacked bar."""
    total, before = sum(counts.values()), 0.0
    for name, outcome in game.outcomes.items():
        count = counts.get(name, 0)
        share = 100 * count / total if total else 0.0
        yield outcome, count, share, before
        before += share


def curve(values: Sequence[float | None], bounds: tuple[float, float] | None = None) -> str:
    """Return the points of an SVG polyline through ``values``, thinned to at most 120 points, the last among them.
    ``None`` is a place without a point; there must be a value.

    ``bounds``: the values at bottom and top, for several curves of one scale; by default the least and the greatest.
    Values that are all equal lie halfway up.
    """
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    end = len(known) - 1
    kept = [known[at] for at in (*range(0, end, max(1, -(-end // (POINTS - 1)))), end)]
    low, high = bounds or (min(value for _, value in kept), max(value for _, value in kept))
    across, up = _WIDTH / max(1, len(values) - 1), (_HEIGHT - 4) / (high - low) if high > low else 0.0
    top = 2 if high > low else _HEIGHT / 2
    return " ".join(f"{place * across:.1f},{top + (high - value) * up:.1f}" for place, value in kept)


def duration(seconds: float) -> str:
    """Return seconds in readable form: under 1 s, 8 s, 3 min, 2 h 05 min."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def plain_name(game: Game) -> str:
    """Return a game's name in a form usable in file and class names: letters, digits, dashes."""
    return "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in game.name)


def game_class(game: Game) -> str:
    """Return the class of an element that shows a game, so that its colors may differ from those of the page's game."""
    return f"game-{plain_name(game)}"


def game_style(game: Game, *others: Game) -> str:
    """Return style rules for the classes ``first`` and ``second`` of the roles, and ``o-NAME`` of each outcome.

    Rules of ``others`` apply within an element of their ``game_class``. Raises ``ConfigError`` for an outcome whose
    name or color is not valid in a style sheet.
    """
    return "\n".join((_style_rules(game, ""), *(_style_rules(one, f".{game_class(one)} ") for one in others)))


def _style_rules(game: Game, within: str) -> str:
    colors = {role_class(role, game): role_color(role, game) for role in game.roles}
    for outcome in game.outcomes.values():
        if not (outcome.name.isidentifier() and outcome.name.isascii() and _COLOR.fullmatch(outcome.color)):
            named = f"{game.name}: outcome {outcome.name!r}, color {outcome.color!r}"
            raise ConfigError(f"{named}: write a plain name and a color as #rrggbb")
        colors[f"o-{outcome.name}"] = outcome.color
    side = "--side: color-mix(in srgb, var(--fill) 62%, var(--ink))"
    soft = "--soft: color-mix(in srgb, var(--fill) 17%, var(--card))"
    return "\n".join(f"{within}.{name} {{ --fill: {color}; {side}; {soft}; }}" for name, color in colors.items())


def role_color(role: str, game: Game) -> str:
    """Return the color of a role: that of its own victory, if it can win alone."""
    won = (outcome.color for outcome in game.outcomes.values() if outcome.winners == (role,))
    return next(won, ROLE_COLORS[role != game.roles[0]])


@cache
def environment(package: str) -> Environment:
    """Return the templates of ``package`` and of this package: escaping is always on, unknown names are errors."""
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("spag.report")])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    for function in (visible, said, capital, spaced, role_class, game_class, shares, counted, duration):
        made.filters[function.__name__] = function
    return made
