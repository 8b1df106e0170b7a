"""The arena's results as tables, for any game: labels and order follow its outcomes and figures."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from spag.engines.players import CONSTANT, is_local
from spag.evaluation.arena.paired import compared
from spag.games.base import Game, is_competitive
from spag.report.cells import Cell, Table, interval, oriented, p_value, rate_cell, signed, unsigned
from spag.report.html import spaced

Arena = Mapping[str, Any]
"""The result of ``load_results``."""


def scored_how(*, thinking: bool) -> str:
    """Return what follows "exact metrics": policies are scored without thinking, even if players think in play."""
    return ", with thinking disabled" if thinking else ""


def last_model(arena: Arena) -> str:
    """Return the name of the last model that the run trained; else of the last local model, or player."""
    names = [str(row["name"]) for row in arena["ratings"]]
    subjects: list[str] = arena.get("subjects") or [name for name in names if is_local(name)]
    return subjects[-1] if subjects else next(name for name in reversed(names) if name != CONSTANT)


def arena_tables(arena: Arena, game: Game) -> Iterator[Table]:
    """Yield every table of an arena."""
    yield from (role_table(arena, game, role) for role in game.roles)
    if is_competitive(game):
        yield from (pair_table(arena), rating_table(arena))
    yield change_table(arena, game)
    yield exact_table(arena["exact_metrics"], thinking=arena.get("thinking", False))


def role_table(arena: Arena, game: Game, role: str) -> Table:
    """Each player's results in ``role``: its reward, every share with its interval, and mean counts."""
    columns = _role_columns(game, role)
    rows = []
    for row in (one for one in arena["roles"] if one["role"] == role):
        found = {**row, **row["figures"]}
        rates = (_rate(found.get(key), scale) for key, (_, scale) in columns.items())
        rows.append((row["name"], signed(row["reward"]["mean"], 2), *rates))
    labels = ("player", "mean", *(label for label, _ in columns.values()))
    return Table(f"As {spaced(role)}: mean reward, and % of games with 95 % intervals", labels, tuple(rows))


def _role_columns(game: Game, role: str) -> dict[str, tuple[str, int]]:
    """Return label and scale (100 for a share, 1 for a mean count) of the rates that are possible in the game."""
    outcomes = game.outcomes.values()
    columns = {
        "win": ("wins", any(role in one.winners for one in outcomes)),
        "tie": ("ties" if is_competitive(game) else "nobody wins", any(one.is_draw for one in outcomes)),
        "violation": ("breaks the rules", any(one.fault == role for one in outcomes)),
        "loss": ("loses", any(one.winners and role not in one.winners for one in outcomes)),
    }
    shown = {key: (label, 100) for key, (label, is_possible) in columns.items() if is_possible}
    own = (figure for figure in game.figures if figure.role == role)
    return shown | {one.name: (one.label.removeprefix(f"{role}: "), 1 if one.is_count else 100) for one in own}


def _rate(rate: Mapping[str, Any] | None, scale: int) -> Cell:
    found = rate_cell(rate)
    return found if found is None or scale == 100 else f"{found.rate:.1f}"


def pair_table(arena: Arena) -> Table:
    """Every pair of players in both roles, the later one first."""
    rows = []
    for pair in arena["pairs"]:
        (one, other), (won, lost) = pair["players"], pair["wins"]
        score = oriented(pair["score"], as_is=False) if pair["score"] else None
        points, p = (interval(score, 100), p_value(score["p_value"])) if score else (None, None)
        rows.append((f"{other} – {one}", f"{pair['games']:,}", f"{lost} – {won}", str(pair["undecided"]), points, p))
    columns = ("players", "games", "wins", "undecided", "score", "p")
    return Table("Head to head, in both roles", columns, tuple(rows))


def rating_table(arena: Arena) -> Table:
    """Elo points with their intervals."""
    first, *others = arena["ratings"]
    rows = [(first["name"], "0"), *((row["name"], interval(row, value="points")) for row in others)]
    return Table("Elo rating by reward", ("player", "points over the first"), tuple(rows))


def change_table(arena: Arena, game: Game) -> Table:
    """How the last model differs from each of the others, in the same role on the same tasks."""
    last, labels = last_model(arena), _paired_labels(game)
    rows = []
    for row in arena["paired"]:
        if last in row["players"]:
            is_first = row["players"][0] == last
            now, then = (row["one"], row["other"]) if is_first else (row["other"], row["one"])
            label, scale, digits = labels[row["role"], row["outcome"]]
            change = " → ".join(unsigned(scale * value, digits) for value in (then, now))
            difference = oriented(row["difference"], is_first)
            changed = interval(difference, scale, digits=digits)
            rows.append((label, row["players"][is_first], change, changed, p_value(difference["p_value"])))
    whom = "against the same opponents" if len(arena["ratings"]) > 2 else "each against the other"
    title = f"{last} on the same tasks, {whom}"
    return Table(title, ("", "compared with", "then → now", "difference", "p"), tuple(rows), texts=2)


def _paired_labels(game: Game) -> dict[tuple[str, str | None], tuple[str, int, int]]:
    """Return label, scale and digits of a comparison of players: (role, outcome), or no outcome for the reward."""
    times = Counter(outcome.name for _, outcome in compared(game))
    labels: dict[tuple[str, str | None], tuple[str, int, int]] = {
        (role, None): (f"reward as {spaced(role)}", 1, 2) for role in game.roles
    }
    for role, one in compared(game):
        labels[role, one.name] = (f"{one.label}{f' ({role})' if times[one.name] > 1 else ''}, %", 100, 0)
    return labels


def exact_table(known: Mapping[str, Mapping[str, float]], *, thinking: bool = False) -> Table:
    """The exact metrics of policies in a solved game, by name; ``thinking``: whether they think in play."""
    names = list(dict.fromkeys(name for figures in known.values() for name in figures))
    rows = []
    for player, figures in known.items():
        rows.append((player, *(unsigned(figures[name], 3) if name in figures else None for name in names)))
    title = f"Exact metrics of the policy{scored_how(thinking=thinking)}"
    return Table(title, ("policy", *(name.replace("_", " ") for name in names)), tuple(rows))
