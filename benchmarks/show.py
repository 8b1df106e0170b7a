"""Results as a table on the terminal and as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Curve, Measured, Result

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#888888"


def print_results(results: Sequence[Result]) -> None:
    """Print one line a contest: medians of both sides, the median ratio of pairs with its extremes, and the target."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("contest", "unit", "baseline", "ours", "ratio", "min-max", "target"):
        table.add_column(title, justify="left" if title in ("contest", "unit") else "right")
    for result in results:
        target = f"{result.target:g}" if result.target else ""
        spread = f"{min(result.ratios):.2f}-{max(result.ratios):.2f}"
        medians = (f"{result.median(side):,.3g}" for side in ("baseline", "ours"))
        table.add_row(result.name, result.unit, *medians, f"{result.ratio:.2f}", spread, target)
    Console(width=140).print(table)


def print_figures(figures: Sequence[Measured]) -> None:
    """Print one line a figure: its value, what it is compared with, their ratio, the goal, or why it was left out."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("shape", "figure", "unit", "value", "beside", "", "ratio", "goal", "note"):
        table.add_column(title, justify="right" if title in ("value", "beside", "ratio") else "left")
    for one in figures:
        value, beside = ("" if number is None else f"{number:,.3g}" for number in (one.value, one.beside))
        ratio = f"{one.value / one.beside:.2f}" if one.value is not None and one.beside else ""
        table.add_row(one.shape, one.name, one.unit, value, beside, one.label, ratio, one.goal, one.note)
    Console(width=180).print(table)


def plot_results(results: Sequence[Result], curves: Sequence[Curve], path: Path) -> None:
    """Draw ratios as bars (median, whiskers to the extremes, a tick at the target), and the curves beside them."""
    panels = sorted({curve.x_label for curve in curves})
    figure = Figure(figsize=(9 + 4 * len(panels), 1.2 + 0.45 * max(len(results), 5)), layout="constrained")
    axes = figure.subplots(1, 1 + len(panels), squeeze=False, width_ratios=[2, *[1] * len(panels)])[0]
    bars = axes[0]
    for row, result in enumerate(reversed(results)):
        bars.barh(row, result.ratio, height=0.6, color=BLUE)
        bars.plot([min(result.ratios), max(result.ratios)], [row, row], color="black", linewidth=1.5)
        if result.target:
            bars.plot([result.target] * 2, [row - 0.4, row + 0.4], color=ORANGE, linewidth=2.5)
        bars.text(max(result.ratios), row, f"  {result.ratio:.2f}", va="center")
    bars.set_yticks(range(len(results)), [result.name for result in reversed(results)])
    bars.axvline(1, color=GREY, linewidth=1)
    bars.set_xlabel("times the baseline (line: all pairs; orange: target)")
    for panel, label in zip(axes[1:], panels, strict=True):
        for curve, colour in zip([curve for curve in curves if curve.x_label == label], (BLUE, ORANGE), strict=False):
            panel.plot(curve.x, curve.y, marker="o", color=colour, label=curve.name)
            panel.set_ylabel(curve.y_label)
        panel.set_xlabel(label)
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
