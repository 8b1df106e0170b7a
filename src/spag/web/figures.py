"""Training on the web pages: a curve for each model, and for online phases curves by role and the tables of evaluations
and opponents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spag.games.base import Game
from spag.report.arena_tables import scored_how
from spag.report.cells import is_number, with_minus
from spag.report.html import curve
from spag.report.readable import ReadableRun
from spag.report.run_tables import OF_ROLE, evaluation_tables, training_figures
from spag.runs.layout import describe_phases
from spag.runs.records import OnlinePhase

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Line:
    """A role or metric (empty if the card's title says it), its latest value as text, and its curve if it is drawn."""

    name: str
    latest: str
    points: str


@dataclass(frozen=True, slots=True)
class Card:
    """One card of the overview: a metric with a curve per role on a shared scale, or the latest training metrics."""

    title: str
    game: Game
    lines: tuple[Line, ...]
    note: str = ""


def phases_of(run: ReadableRun) -> Iterator[dict[str, Any]]:
    """Yield the overview's part of each phase with metrics: cards, one per model or those of online steps, and of an
    online phase also its tables, under the title of their game if it plays several.
    """
    online = {phase.name: phase for phase in run.online_phases if phase.rows}
    lines = describe_phases(run.config) if run.config else []
    phases = groupby(run.models, key=lambda model: model.label)
    for line, (_, models) in zip(lines, phases, strict=True):
        title, _, about = line.partition(": ")
        shown: dict[str, Any] = {"title": title, "about": about, "cards": [], "online": None, "tables": []}
        for model in models:
            if phase := online.get(model.name):
                tables = [(game, evaluation_tables(phase, game, {})) for game in phase.games]
                titled = [(game.title if len(tables) > 1 else "", own) for game, own in tables if own]
                cards = [card for card in (*_exact_cards(phase), *_step_cards(phase)) if card.lines]
                shown |= {"online": phase, "cards": cards, "tables": titled}
            elif not model.is_online and (rows := run.metrics(model)):
                shown["cards"].append(_training_card(model.name, rows, model.games[0]))
        if shown["cards"]:
            yield shown


def _training_card(name: str, rows: Rows, game: Game) -> Card:
    """Return the card of an offline training: its losses, and the metrics of the last logged step."""
    lines = []
    for key, (title, scale, form) in training_figures(online=False).items():
        series = _series(rows, key)
        if any(value is not None for value in series):
            lines.append(Line(title, _cell(series[-1], scale, form), curve(series) if key == "loss" else ""))
    return Card(name, game, tuple(lines), f"step {rows[-1]['step']}")


def _step_cards(phase: OnlinePhase) -> Iterator[Card]:
    rows, games = phase.rows, phase.games
    for game in games:
        for name, (title, scale, form) in OF_ROLE.items():
            series = {role: _series(rows, f"{game.name}/{role}/{name}") for role in game.roles}
            yield _card(_titled(title, game, games), game, series, scale, form)
    for name, (title, scale, form) in training_figures(online=True).items():
        yield _card(title, games[0], {"": _series(rows, name)}, scale, form)


def _exact_cards(phase: OnlinePhase) -> Iterator[Card]:
    for game in phase.games:
        of_game = (row for row in phase.evaluations if row["game"] == game.name)
        exact = [*{row["step"]: row["exact"] for row in of_game}.values()]  # the same in the row of each opponent
        for name in dict.fromkeys(name for figures in exact for name in figures):
            title = f"{name.replace('_', ' ')}{scored_how(thinking=phase.thinks)}"
            yield _card(_titled(title, game, phase.games), game, {"": _series(exact, name)}, 1, "%.3f")


def _titled(title: str, game: Game, games: Sequence[Game]) -> str:
    return f"{game.title}: {title}" if len(games) > 1 else title


def _card(title: str, game: Game, series: Mapping[str, Sequence[float | None]], scale: float, form: str) -> Card:
    values = [value for own in series.values() for value in own if value is not None]
    bounds = min(values, default=0.0), max(values, default=0.0)
    drawn = {role: own for role, own in series.items() if any(value is not None for value in own)}
    lines = (Line(role, _cell(own[-1], scale, form), curve(own, bounds=bounds)) for role, own in drawn.items())
    return Card(title, game, tuple(lines))


def _series(rows: Rows, key: str) -> list[float | None]:
    """Return a value for each row; ``None`` where a role did not speak."""
    return [value if is_number(value := row.get(key)) else None for row in rows]


def _cell(value: Any, scale: float, form: str) -> str:
    return with_minus(form % (scale * value)) if is_number(value) else "–"
