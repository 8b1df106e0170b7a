"""Figures as tables and sentences show them, in the terminal and in the report: labels, order, signs, p-values, differences."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from spag.evaluation.arena.paired import compared
from spag.evaluation.health import free_roles, watches_openings
from spag.games.base import Game
from spag.games.registry import get


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


def is_contest(game: Game) -> bool:
    """Tell whether one player can win alone; ratings and scores say nothing of players who win together."""
    return any(len(outcome.winners) == 1 for outcome in game.outcomes.values())


def role_columns(game: Game, role: str) -> dict[str, tuple[str, int]]:
    """Return label and scale (100 for a share, 1 for a mean count) of a role's rates in the arena, those that the game can bring about."""
    outcomes = game.outcomes.values()
    columns = {
        "win": ("wins", any(role in one.winners for one in outcomes)),
        "tie": ("ties" if is_contest(game) else "nobody wins", any(one.is_draw for one in outcomes)),
        "violation": ("breaks the rules", any(one.fault == role for one in outcomes)),
        "loss": ("loses", any(one.winners and role not in one.winners for one in outcomes)),
    }
    shown = {key: (label, 100) for key, (label, is_possible) in columns.items() if is_possible}
    own = (figure for figure in game.figures if figure.role == role)
    return shown | {figure.name: (figure.label.removeprefix(f"{role}: "), 1 if figure.is_count else 100) for figure in own}


def paired_labels(game: Game) -> dict[tuple[str, str], str]:
    """Return the labels of what the arena compares players by: (role, outcome)."""
    times = Counter(outcome.name for _, outcome in compared(game))
    return {
        (role, outcome.name): outcome.label if times[outcome.name] == 1 else f"{outcome.label} ({role})" for role, outcome in compared(game)
    }


def health_rows(figures: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of a table of ``health``, a column for each name."""
    columns = list(figures.values())
    game = get(columns[0]["game"])
    texts = {"empty": "utterances empty"}
    if watches_openings(game):
        texts |= {"shared_openings": "openings used for 2 tasks or more", "generic_openings": "openings used for 3 tasks or more"}
    if free_roles(game):
        texts |= {"repeated": "utterances said before in the game", "copied": "  copied from the rules", "refusals": "  refusing to play"}

    def row(label: str, values: Iterable[float | None], scale: int = 100) -> tuple[str, ...]:
        return (f"{label}, %" if scale == 100 else label, *("-" if value is None else f"{scale * value:.1f}" for value in values))

    rows: list[tuple[str, ...]] = [
        ("games", *(f"{one['games']:,}" for one in columns)),
        row("utterances a game", (one["mean_length"] for one in columns), 1),
        *(row(outcome.label, (one["outcomes"].get(name) for one in columns)) for name, outcome in game.outcomes.items()),
        *(
            row(one.label, (column["figures"].get(one.name) for column in columns), 1 if one.is_count else 100)
            for one in game.figures
            if any(one.name in column["figures"] for column in columns)  # earlier versions kept fewer
        ),
        *(row(label, (one[key] for one in columns)) for key, label in texts.items()),
    ]
    for role in free_roles(game):
        said = [one["roles"][role] for one in columns]
        rows.append((f"{role}: words an utterance", *(f"{one['mean_words']:.1f}" for one in said)))
        rows.append((f"{role}: distinct-1, distinct-2", *(f"{one['distinct_1']:.2f}, {one['distinct_2']:.2f}" for one in said)))
    return rows
