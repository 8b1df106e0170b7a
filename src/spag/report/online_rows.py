"""Figures of online training as rows of tables, for report and terminal."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from spag.display.figures import p_value
from spag.display.html import spaced
from spag.games.base import Game
from spag.report.rows import Cell, Table, interval, rate_cell
from spag.runs.folder import ONLINE

_PARTS = {"play": "play_s", "log-probabilities": "logprobs_s", "training": "train_s", "weight update": "update_weights_s"}


def time_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Where the time of a step goes, as means over the steps; the rest is what no part counts."""
    seconds = {part: _mean(rows, key) for part, key in _PARTS.items()}
    step = _mean(rows, "step_s")
    seconds["rest"] = max(0.0, step - sum(seconds.values()))
    shown = [(part, f"{one:.2f}", f"{100 * one / step if step else 0.0:.1f}") for part, one in seconds.items()]
    return Table(("a step", "seconds", "share, %"), (*shown, ("total", f"{step:.2f}", "100.0")), last_is_total=True)


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    found = [value for row in rows if isinstance(value := row.get(key), int | float)]
    return fmean(found) if found else 0.0


def evaluation_table(evaluations: Sequence[Mapping[str, Any]], game: Game) -> Table:
    """How the policy did against each opponent at the first and at the last evaluation, in both roles and by points."""
    rows: list[tuple[Cell, ...]] = []
    for opponent, (first, last) in _ends(evaluations, game):
        for one in [first, last] if first["step"] < last["step"] else [last]:
            title = f"{opponent}, step {one['step']}"
            rows += [(title, spaced(own["role"]), str(own["games"]), _rate(own["win"]), _rate(own["violation"])) for own in one["roles"]]
    return Table(("against", "as", "games", "wins, %", "breaks the rules, %"), tuple(rows))


def score_table(evaluations: Sequence[Mapping[str, Any]], game: Game) -> Table:
    """The points of the policy over each opponent in 100 games of both roles, at the last evaluation."""
    rows = []
    for opponent, (_, last) in _ends(evaluations, game):
        for pair in last.get("pair", ()):
            if score := pair["score"]:
                rows.append((opponent, f"{pair['games']:,}", interval(score, 100), p_value(score["p_value"])))
    return Table(("policy against", "games", "points in 100 games", "p"), tuple(rows))


def exact_table(evaluations: Sequence[Mapping[str, Any]], game: Game, known: Mapping[str, Mapping[str, float]]) -> Table:
    """The exact figures of a solved game: of the policy at the first and the last evaluation, and of the models in ``known``.

    The final policy may be an average of weights, and so differ from the last step's.
    """
    scored = [row for row in evaluations if row["game"] == game.name and row["exact"]]
    names = list(dict.fromkeys(name for row in scored for name in row["exact"]))
    ends = {f"step {row['step']}": row["exact"] for row in (scored[:1] + scored[-1:])}
    final = {f"{ONLINE} (final)": known[ONLINE]} if ONLINE in known else {}
    shown = {**{name: own for name, own in known.items() if name != ONLINE}, **ends, **final}
    rows = [(who, *(_exact(own.get(name)) for name in names)) for who, own in shown.items()]
    return Table(("policy", *(name.replace("_", " ") for name in names)), tuple(rows) if scored else ())


def _exact(value: float | None) -> Cell:
    return None if value is None else f"{value:.3f}".replace("-", "\N{MINUS SIGN}")


def _ends(evaluations: Sequence[Mapping[str, Any]], game: Game) -> Iterator[tuple[str, tuple[Mapping[str, Any], Mapping[str, Any]]]]:
    """Yield every opponent with the first and the last evaluation against it."""
    own = [row for row in evaluations if row["game"] == game.name]
    for opponent in dict.fromkeys(row["opponent"] for row in own):
        met = [row for row in own if row["opponent"] == opponent]
        yield opponent, (met[0], met[-1])


def _rate(rate: Mapping[str, Any]) -> Cell:
    return rate_cell(rate) if rate["total"] else None
