"""Results as a table on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result


def print_results(results: Sequence[Result]) -> None:
    """Print one line a contest: medians of both sides, the median ratio of pairs with its extremes, and the target."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("contest", "unit", "baseline", "ours", "ratio", "min-max", "target"):
        table.add_column(title, justify="left" if title in ("contest", "unit") else "right")
    for result in results:
        target = f"{result.target:g}" if result.target else ""
        spread = f"{min(result.ratios):.2f}-{max(result.ratios):.2f}"
        table.add_row(
            result.name,
            result.unit,
            f"{result.median('baseline'):,.3g}",
            f"{result.median('ours'):,.3g}",
            f"{result.ratio:.2f}",
            spread,
            target,
        )
    Console(width=140).print(table)
