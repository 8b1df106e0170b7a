"""Draws exact figures of several runs by online step: a panel for each game, a thin line for each seed.

    python scripts/draw_exact_curves.py docs/curves.json docs/curves.svg

The JSON file lists the panels. ``start`` is the figure before the first online step, ``random`` that of a player who
picks any legal move:

    [{"title": "Kuhn poker", "figure": "exploitability", "random": 0.458,
      "runs": [{"start": 0.5, "steps": [[20, 0.2]]}]}]

With ``--read`` the paths are run folders, and the ``runs`` of a panel are printed:

    python scripts/draw_exact_curves.py --read --figure exploitability runs/kuhn-0 runs/kuhn-1
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

INK, ACCENT, QUIET = "#33363f", "#0072b2", "#8a8f9c"


def read_run(folder: Path, figure: str) -> dict[str, Any]:
    """Return the figure of the start policy and of every evaluation in the last online phase of ``folder``."""
    [*_, evaluations] = sorted(folder.glob("*/evaluations.jsonl"))
    rows = [json.loads(line) for line in evaluations.read_text(encoding="utf-8").splitlines()]
    steps = {row["step"]: row["exact"][figure] for row in rows if figure in row.get("exact", {})}
    arena = json.loads((folder / "arena" / "results.json").read_text(encoding="utf-8"))
    start = next(figures[figure] for figures in arena["exact_metrics"].values() if figure in figures)
    return {"start": start, "steps": sorted(steps.items())}


def draw(panels: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(3.1 * len(panels), 2.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for run in panel["runs"]:
            points = [(0, run["start"]), *run["steps"]]
            axes.plot(*zip(*points, strict=True), color=ACCENT, linewidth=1.1, marker="o", markersize=2)
        axes.axhline(panel["random"], color=QUIET, linewidth=1, linestyle="--")
        axes.annotate("random play", (1, panel["random"]), xycoords=("axes fraction", "data"), color=QUIET,
                      fontsize=7, ha="right", va="bottom")  # fmt: skip
        axes.set_title(panel["title"], fontsize=9, color=INK, loc="left")
        axes.set_xlabel("online step", fontsize=8, color=INK)
        axes.set_ylabel(panel["figure"].replace("_", " "), fontsize=8, color=INK)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--read", action="store_true", help="the paths are run folders: print the runs of a panel")
    parser.add_argument("--figure", help="the exact figure to read")
    given = parser.parse_args()
    if given.read:
        json.dump([read_run(folder, given.figure) for folder in given.paths], sys.stdout)
        return
    panels, picture = given.paths
    draw(json.loads(panels.read_text(encoding="utf-8"))).savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
