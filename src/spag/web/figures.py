"""Training on the web pages: a curve for each model, and for online phases curves by role, the latest evaluations, and
the list of steps.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from spag.games.base import Game, is_competitive
from spag.report.arena_tables import scored_how
from spag.report.cells import with_minus
from spag.report.html import curve, spaced
from spag.runs.layout import describe_phases
from spag.runs.reading import RunFolder
from spag.runs.records import OnlinePhase

Rows = Sequence[Mapping[str, Any]]
TryRead = Callable[[Callable[[], Any]], Any]  # reads a part of the run; None if it is damaged
_OF_TRAINING = {
    "loss": ("loss", "%.3f"),
    "kl": ("log-ratio to the reference", "%.3f"),
    "learning_rate": ("learning rate", "%.1e"),
    "samples_per_second": ("samples/s", "%.2f"),
}
_BY_ROLE = {  # metric of a role: its title, scale and format
    "reward": ("reward", 1, "%+.2f"),
    "win": ("wins, %", 100, "%.0f"),
    "illegal": ("breaks the rules, %", 100, "%.1f"),
    "entropy": ("entropy, nats a token", 1, "%.3f"),
    "length": ("tokens an utterance", 1, "%.1f"),
    "cut_thoughts": ("thoughts cut, %", 100, "%.1f"),
}
_OF_STEP = {"kl": "KL to the reference", "mismatch_kl": "KL of engine and trainer", "grad_norm": "gradient norm"}


@dataclass(frozen=True, slots=True)
class Line:
    """A curve: its role (empty for metrics of the whole step), its latest value as text, and its points."""

    role: str
    latest: str
    points: str


@dataclass(frozen=True, slots=True)
class Card:
    """A metric by step: one line, or one for each role, on one scale."""

    title: str
    game: Game
    lines: tuple[Line, ...]


def phases_of(run: RunFolder, read: TryRead) -> Iterator[dict[str, Any]]:
    """Yield the overview's cards of each phase with metrics: one per model, or those of online steps."""
    online = {phase.name: phase for phase in read(lambda: run.online_phases) or []}
    lines = describe_phases(run.config) if run.config else []
    phases = groupby(run.models, key=lambda model: model.folder.partition("/")[0])
    for line, (_, models) in zip(lines, phases, strict=True):
        steps, cards = None, []
        for model in models:
            if model.name in online:
                steps = read(partial(online_figures, online[model.name], read))
            elif not model.is_online and (rows := read(partial(run.metrics, model))):
                cards.append(training_card(model.name, rows))
        if steps or cards:
            title, _, about = line.partition(": ")
            yield {"title": title, "about": about, "cards": cards, "online": steps}


def training_card(name: str, rows: Rows) -> dict[str, Any]:
    """Return the overview's card of an offline training: its losses, and the metrics of the last logged step."""
    last = {label: (_number(rows[-1].get(key)), form) for key, (label, form) in _OF_TRAINING.items()}
    latest = {label: with_minus(form % number) for label, (number, form) in last.items() if number is not None}
    return {"name": name, "step": rows[-1]["step"], "losses": _values(rows, "loss"), "latest": latest}


def online_figures(phase: OnlinePhase, read: TryRead) -> dict[str, Any] | None:
    """Return the overview's part about an online phase; ``None`` before its first step is finished."""
    rows, games = phase.rows, phase.games
    evaluations, opponents, warnings = (
        read(partial(getattr, phase, name)) or [] for name in ("evaluations", "opponents", "collapse")
    )
    if not rows:
        return None
    latest = {(row["game"], row["opponent"]): row for row in evaluations}
    cards = [*_exact_cards(evaluations, games, phase.thinks), *_step_cards(rows, games)]
    return {
        "phase": phase,
        "step": rows[-1]["step"],
        "cards": [card for card in cards if card.lines],
        "evaluations": list(latest.values()),
        "opponents": opponents,
        "competitive": {game.name for game in games if is_competitive(game)},  # in others a score means nothing
        "warnings": warnings,
    }


def _step_cards(rows: Rows, games: Sequence[Game]) -> Iterator[Card]:
    for game in games:
        for name, (title, scale, form) in _BY_ROLE.items():
            series = {role: _series(rows, f"{game.name}/{role}/{name}") for role in game.roles}
            yield _card(_titled(title, game, games), game, series, scale, form)
    for name, title in _OF_STEP.items():
        yield _card(title, games[0], {"": _series(rows, name)}, 1, "%.2g")


def _exact_cards(evaluations: Rows, games: Sequence[Game], thinking: bool) -> Iterator[Card]:
    for game in games:
        of_game = (row for row in evaluations if row["game"] == game.name)
        exact = [*{row["step"]: row["exact"] for row in of_game}.values()]  # the same in the row of each opponent
        for name in dict.fromkeys(name for figures in exact for name in figures):
            title = f"{name.replace('_', ' ')}{scored_how(thinking=thinking)}"
            yield _card(_titled(title, game, games), game, {"": _series(exact, name)}, 1, "%.3f")


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
    return [_number(row.get(key)) for row in rows]


def _values(rows: Rows, key: str) -> list[float]:
    return [value for value in _series(rows, key) if value is not None]


def _number(value: object) -> float | None:
    """Return a number that can be drawn: finite, and not too large for a float; else ``None``."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def step_columns(games: Sequence[Game]) -> list[tuple[str, str, float, str]]:
    """Return title, key in the metrics, scale and format of each column of the list of steps."""
    columns: list[tuple[str, str, float, str]] = []
    for game in games:
        for role in game.roles:
            who = f"{game.title}, {spaced(role)}" if len(games) > 1 else spaced(role)
            for name in ("reward", "win", "illegal"):
                title, scale, form = _BY_ROLE[name]
                columns.append((f"{who}: {title}", f"{game.name}/{role}/{name}", scale, form))
    return [*columns, ("entropy", "entropy", 1, "%.3f")]


def step_rows(
    rows: Rows, games: Sequence[Game], ended: Mapping[str, Mapping[int, Mapping[str, int]]]
) -> list[tuple[int, int, list[tuple[Game, Mapping[str, int]]], list[str]]]:
    """Return every step with games or metrics, latest first: the number of games, the outcomes of each kind of game,
    and a cell for each column.

    ``ended``: outcomes by game and step.
    """
    by_step, columns, found = {row["step"]: row for row in rows}, step_columns(games), []
    played = {step for own in ended.values() for step in own}
    for step in sorted({*by_step, *played}, reverse=True):
        row = by_step.get(step, {})
        outcomes = [(game, ended[game.name][step]) for game in games if step in ended.get(game.name, {})]
        count = sum(sum(counts.values()) for _, counts in outcomes)
        cells = [_cell(row.get(key), scale, form) for _, key, scale, form in columns]
        found.append((step, count, outcomes, cells))
    return found


def _cell(value: object, scale: float, form: str) -> str:
    return "–" if (number := _number(value)) is None else with_minus(form % (scale * number))
