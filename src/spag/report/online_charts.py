"""The plots of online training, by step. As in ``charts``, each function takes plain figures and returns a matplotlib figure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from spag.display.html import role_color, spaced
from spag.games.base import Game
from spag.report.charts import draw_curve, is_number, look, plain
from spag.report.plots import INK, WIDTH

Rows = Sequence[Mapping[str, Any]]
_SMOOTH = 5  # steps of the mean that is drawn over the raw curve
_BY_ROLE = {  # figure of a role: its title and scale
    "reward": ("reward", 1),
    "win": ("wins, %", 100),
    "illegal": ("breaks the rules, %", 100),
    "entropy": ("entropy, nats a token", 1),
    "length": ("tokens an utterance", 1),
    "no_advantage": ("without advantage, %", 100),
}
_DISTANCES = {
    "kl": "KL to the reference",
    "mismatch_kl": "KL of engine and trainer",
    "clip_fraction": "clipped, %",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "learning_rate": "learning rate",
}


def role_curves(rows: Rows, game: Game) -> Figure:
    """Small multiples over the steps, a line for each role: raw, and above it the mean of five steps."""
    shown = [name for name in _BY_ROLE if any(is_number(row.get(f"{game.name}/{role}/{name}")) for row in rows for role in game.roles)]
    figure, grid = _grid(len(shown), f"{game.title}: games of each step")
    for axes, name in zip(grid, shown, strict=True):
        title, scale = _BY_ROLE[name]
        for role in game.roles:
            _smoothed(axes, rows, f"{game.name}/{role}/{name}", role_color(role, game), scale, spaced(role) if name == shown[0] else "")
        _small(axes, title)
    figure.legend(loc="outside upper right", ncols=2, fontsize=9, handlelength=1.2, columnspacing=1)
    return figure


def distances(rows: Rows) -> Figure:
    """Small multiples over the steps: how far the policy is from the reference and from its engine, loss, gradient, learning rate."""
    shown = [name for name in _DISTANCES if any(is_number(row.get(name)) for row in rows)]
    figure, grid = _grid(len(shown), "Training")
    for axes, name in zip(grid, shown, strict=True):
        _smoothed(axes, rows, name, INK, 100 if name == "clip_fraction" else 1)
        _small(axes, _DISTANCES[name])
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
    return figure


def evaluation_curves(evaluations: Rows, game: Game) -> Figure:
    """A line for each role: per cent of evaluation games that the policy wins in it, and beside them those it loses by its own illegal
    move, a line for each opponent. Bands are 95 % intervals.
    """
    opponents = list(dict.fromkeys(row["opponent"] for row in evaluations))
    figure, grid = _grid(2 * len(game.roles), f"{game.title}: held-out tasks", by_role=True)
    for place, role in enumerate(game.roles):
        for column, (rate, title) in enumerate({"win": "wins, %", "violation": "breaks the rules, %"}.items()):
            axes = grid[2 * place + column]
            for number, opponent in enumerate(opponents):
                points = [(row["step"], own[rate]) for row in evaluations if row["opponent"] == opponent for own in _in_role(row, role)]
                _banded(axes, points, *look(number + 1), f"against {plain(opponent)}" if not place and not column else "")
            axes.set_ylim(-3, 103)
            _small(axes, f"as {spaced(role)}: {title}")
    figure.legend(loc="outside upper right", ncols=2, fontsize=9, handlelength=1.2, columnspacing=1)
    return figure


def exact_curves(evaluations: Rows, game: Game, start: str, known: Mapping[str, Mapping[str, float]], final: str) -> Figure:
    """The exact figures of a solved game at every evaluation.

    ``known``: those of models by name; ``start``'s are drawn as lines, ``final``'s as a point at the last step.
    """
    names = list(dict.fromkeys(name for row in evaluations for name in row["exact"]))
    figure, grid = _grid(len(names), f"{game.title}: exact figures")
    for axes, name in zip(grid, names, strict=True):
        first = name == names[0]
        draw_curve(axes, [{"step": row["step"], name: row["exact"].get(name)} for row in evaluations], name, INK, label="policy" * first)
        if is_number(known.get(start, {}).get(name)):
            axes.axhline(known[start][name], color=look(1)[0], linestyle="--", label=plain(start) * first)
        if is_number(known.get(final, {}).get(name)):
            color, marker = look(3)
            axes.plot(evaluations[-1]["step"], known[final][name], marker, color=color, label="final policy" * first)
        _small(axes, name.replace("_", " "))
    figure.legend(loc="outside lower left", ncols=3, fontsize=9, handlelength=1.6, columnspacing=1)
    return figure


def _grid(count: int, title: str, *, by_role: bool = False) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` small axes in two columns."""
    lines = max(1, -(-count // 2))
    figure = Figure(figsize=(WIDTH, 0.55 + (1.7 if by_role else 1.55) * lines))
    figure.suptitle(plain(title, 60), x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure, [figure.add_subplot(lines, 2, place + 1) for place in range(count)]


def _small(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, fontweight="normal")
    axes.grid(axis="y")
    axes.tick_params(labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _smoothed(axes: Axes, rows: Rows, key: str, color: str, scale: float, label: str = "") -> None:
    draw_curve(axes, rows, key, color, scale, linewidth=0.8, alpha=0.35)
    points = [(row["step"], row[key]) for row in rows if is_number(row.get(key))]
    parts = [points[max(0, place - _SMOOTH // 2) : place + _SMOOTH // 2 + 1] for place in range(len(points))]
    means = [{"step": step, key: float(np.mean([value for _, value in part]))} for (step, _), part in zip(points, parts, strict=True)]
    draw_curve(axes, means, key, color, scale, label=label or None)


def _in_role(row: Mapping[str, Any], role: str) -> Iterable[Mapping[str, Any]]:
    return (own for own in row["roles"] if own["role"] == role and own["games"])


def _banded(axes: Axes, points: Sequence[tuple[int, Mapping[str, float]]], color: str, marker: str, label: str) -> None:
    steps = [step for step, _ in points]
    value, low, high = ([100 * rate[name] for _, rate in points] for name in ("rate", "low", "high"))
    axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(steps, value, color=color, marker=marker, markersize=4, label=label or None)
