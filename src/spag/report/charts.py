"""The plots of the report. Each function takes plain numbers and returns a matplotlib figure; call them within
``plot_files.plot_style``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from spag.games.base import Game
from spag.report.html import spaced
from spag.report.plot_files import GRID, INK, MARKERS, MODELS, WIDTH
from spag.runs.records import SelfPlay

_DARK = "#111318"
_LEVEL_LABELS = 4  # players of the heat map up to which the names of columns do not touch


def outcome_shares(plays: Sequence[SelfPlay], game: Game) -> Figure:
    """A stacked bar of outcomes for each iteration, the first on top."""
    shown = [one for one in game.outcomes.values() if any(play.outcomes[one.name] for play in plays)]
    figure = Figure(figsize=(WIDTH, 0.7 + 0.18 * (len(shown) + 1) + 0.42 * len(plays)))
    axes = figure.add_subplot()
    lefts = np.zeros(len(plays))
    for outcome in shown:
        shares = np.array([100 * play.outcomes[outcome.name] for play in plays])
        axes.barh(range(len(plays)), shares, 0.72, lefts, color=outcome.color, label=plain(outcome.label, 40))
        for row, (left, share) in enumerate(zip(lefts, shares, strict=True)):
            if share >= 6:
                axes.text(left + share / 2, row, f"{share:.0f}", ha="center", va="center", color=_on(outcome.color))
        lefts += shares
    _name_rows(axes, [play.name for play in plays])
    axes.set(xlim=(0, 100), xlabel="% of self-play games")
    axes.spines["left"].set_visible(False)
    add_legend(figure, 2, loc="outside upper left", handlelength=1, handleheight=0.9)
    return figure


def _name_rows(axes: Axes, names: Iterable[str]) -> None:
    """Label the rows of a chart, the first on top."""
    texts = [*labels(names).values()]
    axes.set(ylim=(len(texts) - 0.5, -0.5), yticks=range(len(texts)), yticklabels=texts)
    axes.tick_params(axis="y", length=0)


def _on(color: str) -> str:
    """Return a legible text color for ``color``: dark on light colors, by relative luminance, else white."""
    red, green, blue = (channel**2.2 for channel in to_rgb(color))
    return _DARK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"


def ratings(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Elo points with their intervals, one line per player."""
    figure = Figure(figsize=(WIDTH, 0.85 + 0.36 * len(rows)))
    axes = figure.add_subplot()
    axes.axvline(0, color=GRID, linewidth=1.2)
    for place, row in enumerate(rows):
        color, marker = look(place)
        axes.plot([row["low"], row["high"]], [place, place], color=color, linewidth=2.4, solid_capstyle="round")
        axes.plot(row["points"], place, marker, color=color, markersize=8)
    _name_rows(axes, [row["name"] for row in rows])
    axes.set_xlabel(f"Elo points over {plain(rows[0]['name'])}, 95 % interval")
    axes.spines["left"].set_visible(False)
    return figure


def win_matrix(cells: Sequence[Mapping[str, Any]], game: Game) -> Figure:
    """A heat map of first role (row) against second (column): per cent of games that the first role wins."""
    names = list(dict.fromkeys(name for cell in cells for name in cell["players"]))
    size, (first, second) = len(names), map(spaced, game.roles)
    scale = min(1, 6 / size)
    won = [name for name, outcome in game.outcomes.items() if game.roles[0] in outcome.winners]
    shares = np.full((size, size), np.nan)
    figure = Figure(figsize=(WIDTH, 1.1 + 0.5 * size))
    axes = figure.add_subplot()
    large: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 13 * scale, "fontweight": "bold"}
    for cell in cells:
        row, column = map(names.index, cell["players"])
        shares[row, column] = share = 100 * sum(cell["outcomes"].get(name, 0) for name in won) / cell["games"]
        axes.text(column, row, f"{share:.0f}", color="#ffffff" if share < 50 else _DARK, **large)
    edges = np.arange(size + 1) - 0.5
    axes.pcolormesh(edges, edges, shares, cmap="cividis", vmin=0, vmax=100)
    texts = [*labels(names, 24 if size <= _LEVEL_LABELS else 18).values()]
    axes.set(xticks=range(size), yticks=range(size), xticklabels=texts, yticklabels=texts, ylabel=first)
    axes.set_xlabel(second, labelpad=8)
    axes.invert_yaxis()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelsize=max(7.5, 10.5 * scale))
    if size > _LEVEL_LABELS:
        axes.tick_params(axis="x", rotation=90)
    axes.spines[:].set_visible(False)
    return figure


def reasoning_bars(tasks: Mapping[str, str], figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """Scores in % by task and model, with 95 % intervals (1.96 standard errors): ``value``, ``se`` by model, task."""
    models, texts = len(figures), labels(figures)
    figure = Figure(figsize=(WIDTH, 0.95 + len(tasks) * (0.2 + 0.19 * models)))
    axes = figure.add_subplot()
    height = 0.84 / models
    for place, (name, by_task) in enumerate(figures.items()):
        where = [row - 0.42 + height * (place + 0.5) for row in range(len(tasks))]
        values = [100 * by_task[task]["value"] for task in tasks]
        errors = [196 * (by_task[task]["se"] or 0.0) for task in tasks]
        whiskers = {"ecolor": INK, "capsize": 2, "linewidth": 1}
        axes.barh(where, values, height * 0.9, xerr=errors, error_kw=whiskers, color=look(place)[0], label=texts[name])
    _name_rows(axes, tasks.values())
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    axes.set_xlabel("score, % (bars: 95 % interval)")
    add_legend(figure, min(3, models), loc="outside upper left", handlelength=1, handleheight=0.9)
    return figure


def add_legend(figure: Figure, columns: int, **options: Any) -> None:
    """Draw a legend outside the axes in at most ``columns`` columns, fewer if it would be wider than the figure."""
    for count in range(columns, 0, -1):
        legend = figure.legend(ncols=count, columnspacing=1.2, **options)
        if count > 1 and legend.get_window_extent().width > figure.bbox.width:
            legend.remove()
        else:
            return


def look(place: int) -> tuple[str, str]:
    """Return the colour and marker for a position in the list of models; colours return with another marker."""
    return MODELS[place % len(MODELS)], MARKERS[(place + place // len(MODELS)) % len(MARKERS)]


def labels(names: Iterable[str], longest: int = 24) -> dict[str, str]:
    """Return the labels of names. Where labels would be equal, they show only the parts that differ, or their ends."""
    found = {name: plain(name, longest) for name in names}
    for label in set(found.values()):
        equal = [name for name in found if found[name] == label]
        if len(equal) > 1:
            parts = [plain(name, len(name) + 1).split("/") for name in equal]
            start, end = (_shared(one) for one in (parts, [own[::-1] for own in parts]))
            texts = ("/".join(own[start : len(own) - end]) or own[-1] for own in parts)
            shown = {name: f"…{text}" for name, text in zip(equal, texts, strict=True)}
            found |= {name: text if len(text) <= longest else f"…{text[1 - longest :]}" for name, text in shown.items()}
    return found


def _shared(parts: Sequence[Sequence[str]]) -> int:
    """Return how many of the first parts are equal in all of ``parts``."""
    differs = (at for at, own in enumerate(zip(*parts, strict=False)) if len(set(own)) > 1)
    return next(differs, min(map(len, parts)))


def plain(name: str, longest: int = 24) -> str:
    """Return a name as a label, without line breaks and not too long. Legends leave out what begins with ``_``."""
    name = " ".join("".join(char if char.isprintable() else " " for char in name).split())
    name = f" {name}" if name.startswith("_") else name
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
