"""What the pages show of training: a curve of each, and of online steps curves by role, the latest evaluations, and the list of steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spag.display.html import curve, spaced
from spag.games.base import Game
from spag.runs.reading import RunFolder
from spag.runs.records import CollapseSign

_BY_ROLE = {  # figure of a role: its title, scale and format
    "reward": ("reward", 1, "%+.2f"),
    "win": ("wins, %", 100, "%.0f"),
    "illegal": ("breaks the rules, %", 100, "%.1f"),
    "entropy": ("entropy, nats a token", 1, "%.3f"),
    "length": ("tokens an utterance", 1, "%.1f"),
}
_OF_STEP = {"kl": "KL to the reference", "mismatch_kl": "KL of engine and trainer", "grad_norm": "gradient norm"}


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a card: whose it is, its latest value in words, and its points; ``role`` is empty for figures of the whole step."""

    role: str
    latest: str
    points: str


@dataclass(frozen=True, slots=True)
class Card:
    """A figure by step: one line, or one for each role, all on one scale."""

    title: str
    game: Game
    lines: tuple[Line, ...]


_OF_TRAINING = {"loss": ("loss", "%.3f"), "kl": ("KL", "%.3f"), "learning_rate": ("learning rate", "%.1e")}
_OF_TRAINING["samples_per_second"] = "samples/s", "%.2f"


def training_card(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the overview shows of an offline training: its losses, and the figures of the last logged step."""
    latest = {label: form % value for key, (label, form) in _OF_TRAINING.items() if (value := _number(rows[-1].get(key))) is not None}
    return {"name": name, "step": rows[-1]["step"], "losses": _values(rows, "loss"), "latest": latest}


def online_overview(run: RunFolder, evaluations: Sequence[Mapping[str, Any]], signs: Sequence[CollapseSign]) -> dict[str, Any] | None:
    """Return what the overview shows of online steps; ``None`` before the first is finished. Raises ``DataError`` for damaged metrics."""
    rows = run.online
    if not rows:
        return None
    games = run.online_games
    cards = [card for game in games for name in _BY_ROLE if (card := _role_card(rows, game, name, len(games) > 1))]
    cards += [_card(title, games[0], {"": _values(rows, name)}, 1, "%.2g") for name, title in _OF_STEP.items() if _values(rows, name)]
    return {
        "step": rows[-1]["step"],
        "steps": run.config.online.steps if run.config else rows[-1]["step"],
        "cards": [*_exact_cards(evaluations, games), *cards],
        "evaluations": _latest(evaluations),
        "signs": signs,
    }


def _role_card(rows: Sequence[Mapping[str, Any]], game: Game, name: str, is_mixed: bool) -> Card | None:
    title, scale, form = _BY_ROLE[name]
    series = {role: values for role in game.roles if (values := _values(rows, f"{game.name}/{role}/{name}"))}
    return _card(f"{game.title}: {title}" if is_mixed else title, game, series, scale, form) if series else None


def _exact_cards(evaluations: Sequence[Mapping[str, Any]], games: Sequence[Game]) -> list[Card]:
    cards = []
    for game in games:
        exact = [row["exact"] for row in evaluations if row["game"] == game.name]
        for name in dict.fromkeys(name for figures in exact for name in figures):
            cards.append(_card(name.replace("_", " "), game, {"": _values(exact, name)}, 1, "%.3f"))
    return cards


def _card(title: str, game: Game, series: Mapping[str, Sequence[float]], scale: float, form: str) -> Card:
    everything = [value for values in series.values() for value in values]
    bounds = min(everything), max(everything)
    return Card(
        title, game, tuple(Line(role, form % (scale * values[-1]), curve(values, bounds=bounds)) for role, values in series.items())
    )


def _values(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for row in rows if (value := _number(row.get(key))) is not None]


def _number(value: object) -> float | None:
    """Return a figure of a file, if it is one that can be shown: finite, and not too large for a float."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _latest(evaluations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the latest evaluation of every game against every opponent."""
    return list({(row["game"], row["opponent"]): row for row in evaluations}.values())


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step in the list: its games by outcome, and its figures as the columns say; those of a step at work are missing."""

    step: int
    ended: Mapping[str, int]
    cells: tuple[str, ...]


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


def step_rows(figures: Sequence[Mapping[str, Any]], games: Sequence[Game], ended: Mapping[int, Mapping[str, int]]) -> list[StepRow]:
    """Return every step with games or figures, the latest first. ``ended``: games by step and outcome."""
    rows, columns = {row["step"]: row for row in figures}, step_columns(games)
    return [
        StepRow(step, ended.get(step, {}), tuple(_cell(rows.get(step, {}).get(key), scale, form) for _, key, scale, form in columns))
        for step in sorted({*rows, *ended}, reverse=True)
    ]


def _cell(value: object, scale: float, form: str) -> str:
    return "–" if (number := _number(value)) is None else form % (scale * number)
