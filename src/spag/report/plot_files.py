"""A common style for all plots, and saving them. Colors of models are distinguishable for color-blind readers (Okabe
and Ito's).

A plot is saved as PNG and SVG on white, for papers and slides, and as an inline SVG without background whose lines and
letters take the page's colors, legible in light and dark. Nothing in them depends on the time or on the reader's
settings.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from spag.storage.disk import storage_errors
from spag.storage.store import write_atomically

INK, GRID = "#33363f", "#d3d7de"
MODELS = ("#8d93a1", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
WIDTH = 5.2
"""Inches: at 72 points per inch about the width of a phone, so that letters keep their size there."""
_LARGEST = 1.45  # how many times its size a plot grows on a wide screen
_PLOTS = ("ratings", "win-matrix", "reasoning-", "outcomes", "online-", "training-")  # names, or their beginnings
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib, so it is the same everywhere
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


@contextmanager
def plot_style() -> Iterator[None]:
    """Draw and save in the common style, ignoring the user's matplotlibrc."""
    import matplotlib.style  # noqa: PLC0415 - only here

    with rc_context(), matplotlib.style.context(["default", _STYLE]), catch_warnings():
        filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a Chinese name: boxes in the PNG, whole in the SVG
        yield


def save_plot(figure: Figure, name: str, says: str, folder: Path) -> Markup:
    """Write ``folder/name.png`` and ``.svg``, within ``plot_style``, and return an inline SVG labelled with ``says``.

    Raises ``StorageError``.
    """
    with rc_context({"figure.constrained_layout.use": False}):
        layout: Any = figure.get_layout_engine()
        layout.execute(figure)
        figure.set_layout_engine(None)  # with one, each save would lay it out again, or draw it once more for nothing
        png = _saved(figure, name, "png", dpi=200, metadata={"Software": None})
        svg = _saved(figure, name, "svg", metadata={"Date": None}, transparent=True).decode()
    on_white = svg.replace("fill: none", "fill: #ffffff", 1)  # the first shape is the background
    write_atomically(folder / f"{name}.png", png)
    write_atomically(folder / f"{name}.svg", on_white.encode())
    return Markup(_inlined(svg, name, says))  # matplotlib's own markup, with texts escaped


def remove_others(folder: Path, names: Collection[str]) -> None:
    """Remove the plots of an earlier report that are not among ``names``. Raises ``StorageError``."""
    with storage_errors(folder):
        for path in (*folder.glob("*.png"), *folder.glob("*.svg")):
            if path.stem not in names and path.stem.startswith(_PLOTS):
                path.unlink(missing_ok=True)


def _saved(figure: Figure, name: str, kind: str, **options: Any) -> bytes:
    stream = BytesIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(stream, format=kind, **options)
    return stream.getvalue()


def _inlined(svg: str, name: str, says: str) -> str:
    """Return an SVG document as an element of a page: no prolog, unique ids, the page's colors and fonts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    width, height = (float(size) for size in re.findall(r'(?:width|height)="([\d.]+)pt"', svg)[:2])
    head = Markup('<svg class="chart" viewBox="0 0 {:g} {:g}" style="max-width:{:.0f}px" role="img" aria-label="{}">')
    head = head.format(width, height, _LARGEST * width, says)
    svg = re.sub(r"<svg[^>]*>", lambda _: str(head), svg, count=1)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font: ([\w ]*?)([\d.]+)px [^;\"]*", r"font: \1\2px var(--sans)", svg)
    return svg.replace(INK, "currentColor").replace(GRID, "var(--line)")
