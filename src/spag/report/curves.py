"""Line plots over training steps, as small multiples: functions take metrics as read from files, and return matplotlib
figures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from spag.evaluation.intervals import Floats
from spag.games.base import Game
from spag.report.arena_tables import scored_how
from spag.report.cells import is_number
from spag.report.charts import add_legend, labels, look, plain
from spag.report.html import role_color, spaced
from spag.report.plot_files import INK, WIDTH
from spag.report.run_tables import OF_ROLE, training_figures
from spag.runs.records import OnlinePhase

Rows = Sequence[Mapping[str, Any]]
_POINTS = 300  # points of a curve; longer ones are shown as means
_SMOOTH = 5  # steps of the running mean drawn over the raw curve


def training_curves(title: str, rows: Rows, game: Game, *, online: bool = False) -> Figure:
    """Loss (with each role's), distances from the reference and the engine, gradient and learning rate."""
    figures = training_figures(online=online)
    of_training = {name: _points(rows, name, scale) for name, (_, scale, _) in figures.items()}
    shown = {name: points for name, points in of_training.items() if points.size}
    of_roles = {role: _points(rows, f"loss_{role}") for role in game.roles}
    has_roles = all(points.size for points in of_roles.values())  # a single role's loss is the total
    figure, grid = _grid(len(shown), title)
    for axes, (name, points) in zip(grid, shown.items(), strict=True):
        if name == "loss" and has_roles:
            for role, losses in of_roles.items():
                _draw(axes, losses, role_color(role, game), label=spaced(role), linewidth=1.1)
        _smoothed(axes, points, INK)
        _small(axes, figures[name][0])
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
    if has_roles:
        _legend(figure)
    return figure


def role_curves(rows: Rows, game: Game) -> Figure:
    """Metrics of each step's games, one line per role: raw, overlaid with the mean of five steps."""
    by_role = {
        title: [_points(rows, f"{game.name}/{role}/{name}", scale) for role in game.roles]
        for name, (title, scale, _) in OF_ROLE.items()
    }
    shown = {title: curves for title, curves in by_role.items() if any(points.size for points in curves)}
    figure, grid = _grid(len(shown), f"{game.title}: games of each step")
    for axes, (title, curves) in zip(grid, shown.items(), strict=True):
        for role, points in zip(game.roles, curves, strict=True):
            _smoothed(axes, points, role_color(role, game), spaced(role) if axes is grid[0] else "")
        _small(axes, title)
    _legend(figure)
    return figure


def evaluation_curves(evaluations: Rows, game: Game) -> Figure:
    """One plot per role: per cent of evaluation games that the policy wins, next to those that it loses by its own
    illegal move, one line per opponent. Bands are 95 % intervals.
    """
    opponents = labels(row["opponent"] for row in evaluations)
    rates = {"win": "wins, %", "violation": "breaks the rules, %"}
    shown = [(role, rate) for role in game.roles for rate in rates]
    figure, grid = _grid(len(shown), f"{game.title}: held-out tasks", height=1.7)
    for axes, (role, rate) in zip(grid, shown, strict=True):
        for number, (opponent, shown_as) in enumerate(opponents.items()):
            met = [row for row in evaluations if row["opponent"] == opponent]
            points = [(row["step"], own[rate]) for row in met for own in row["roles"] if own["role"] == role]
            label = f"against {shown_as}" if axes is grid[0] else ""
            _banded(axes, [(step, rate) for step, rate in points if rate["total"]], *look(number + 1), label)
        axes.set_ylim(-3, 103)
        _small(axes, f"as {spaced(role)}: {rates[rate]}")
    _legend(figure)
    return figure


def exact_curves(evaluations: Rows, game: Game, known: Mapping[str, Mapping[str, float]], phase: OnlinePhase) -> Figure:
    """The exact metrics of a solved game at every evaluation of ``phase``.

    ``known``: metrics of models by name; those of the phase's first model are drawn as lines, those of its final one as
    points at the last step.
    """
    start, final = phase.model.start, phase.name
    exact = {row["step"]: _rounded(row["exact"]) for row in evaluations}  # the same in the row of each opponent
    known = {name: _rounded(figures) for name, figures in known.items()}
    names = list(dict.fromkeys(name for figures in exact.values() for name in figures))
    figure, grid = _grid(len(names), f"{game.title}: exact metrics{scored_how(thinking=phase.thinks)}")
    for axes, name in zip(grid, names, strict=True):
        first = name == names[0]
        points = _points([{"step": step, **figures} for step, figures in exact.items()], name)
        _draw(axes, points, INK, label="policy" * first)
        if is_number(known.get(start, {}).get(name)):
            axes.axhline(known[start][name], color=look(1)[0], linestyle="--", label=plain(start) * first)
        if is_number(known.get(final, {}).get(name)):
            color, marker = look(3)
            axes.plot(evaluations[-1]["step"], known[final][name], marker, color=color, label="final policy" * first)
        _small(axes, name.replace("_", " "))
    _legend(figure)
    return figure


def _rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics without the noise of summation, which would fill the axes where nothing changed."""
    return {name: round(value, 6) if is_number(value) else value for name, value in figures.items()}


def _grid(count: int, title: str, *, height: float = 1.55) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` small axes in two columns."""
    lines = max(1, -(-count // 2))
    figure = Figure(figsize=(WIDTH, 0.55 + height * lines))
    figure.suptitle(plain(title, 60), x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure, [figure.add_subplot(lines, 2, place + 1) for place in range(count)]


def _legend(figure: Figure) -> None:
    """Draw the legend below the axes; the title is above them."""
    if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
        add_legend(figure, 3, loc="outside lower left", fontsize=9, handlelength=1.4)


def _small(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, fontweight="normal")
    axes.grid(axis="y")
    axes.tick_params(labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _points(rows: Rows, key: str, scale: float = 1) -> Floats:
    """Return step and value of the rows that have a number, shape (points, 2)."""
    points = [(row["step"], scale * row[key]) for row in rows if is_number(row.get(key))]
    return np.array(points, dtype=np.float64).reshape(-1, 2)


def _draw(axes: Axes, points: Floats, color: str, **options: Any) -> None:
    if not points.size:
        return
    step = -(-len(points) // _POINTS)
    means = [points[start : start + step].mean(axis=0) for start in range(0, len(points), step)]
    axes.plot(*np.transpose(means), color=color, marker="o" if len(means) == 1 else "", **{"linewidth": 1.6, **options})


def _smoothed(axes: Axes, points: Floats, color: str, label: str = "") -> None:
    """Draw a thin curve, and the mean of ``_SMOOTH`` steps above it."""
    _draw(axes, points, color, linewidth=0.8, alpha=0.35)
    half = _SMOOTH // 2
    means = [(step, points[max(0, at - half) : at + half + 1, 1].mean()) for at, (step, _) in enumerate(points)]
    _draw(axes, np.array(means), color, label=label or None)


def _banded(axes: Axes, points: Sequence[tuple[int, Mapping[str, float]]], color: str, marker: str, label: str) -> None:
    steps = [step for step, _ in points]
    value, low, high = ([100 * rate[name] for _, rate in points] for name in ("rate", "low", "high"))
    axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(steps, value, color=color, marker=marker, markersize=4, label=label or None)
