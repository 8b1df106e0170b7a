"""Records a command as a terminal shows it, and draws the recording as an animated SVG that loops.

    python scripts/record_run.py record run.jsonl spag run nim
    python scripts/record_run.py draw run.jsonl docs/run.svg --seconds 14

``record`` runs the command in a terminal of its own and writes a row for each piece of output: ``[seconds, text]``. The
first row holds the command and the size of the terminal. ``draw`` plays all of it at one speed, which the picture's
title says, and then shows the end for a while. It understands what rich writes, no other movements of the cursor.
"""

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from itertools import groupby
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.console import Console
from rich.terminal_theme import TerminalTheme

COLUMNS, ROWS = 108, 30
FRAMES_S = 6
HELD_S = 7.0
CELL, LINE, FONT, MARGIN, BAR = 8.0, 17, 13, 14, 30
PAPER, INK, QUIET = "#16181d", "#d4d7dd", "#8a8f9c"
THEME = TerminalTheme(
    (22, 24, 29),
    (212, 215, 221),
    [(60, 64, 74), (224, 108, 117), (126, 192, 110), (214, 174, 98), (97, 155, 224), (192, 130, 214), (86, 182, 194),
     (212, 215, 221)],
)  # fmt: skip
CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?25[lh]|\r\n|\r|\n")


def record(command: Sequence[str], target: Path) -> int:
    """Run a command in a terminal of ``ROWS`` by ``COLUMNS``, write what it prints, and return its exit status."""
    started = time.monotonic()
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    looks = {"TERM": "xterm-256color", "COLORTERM": "", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    decoder = codecs.getincrementaldecoder("utf-8")()
    with (
        subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=os.environ | looks) as running,
        target.open("w", encoding="utf-8") as rows,
    ):
        os.close(inside)
        rows.write(json.dumps({"command": shlex.join(command), "columns": COLUMNS, "rows": ROWS}) + "\n")
        for data in _read(terminal):
            rows.write(json.dumps([round(time.monotonic() - started, 2), decoder.decode(data)]) + "\n")
    os.close(terminal)
    return running.returncode


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other side has closed
            return
        if not data:
            return
        yield data


class Screen:
    """The lines that a terminal shows, as text with colour codes. rich rewrites whole lines, so no cell is tracked."""

    def __init__(self, first: str) -> None:
        self.lines, self.row = [first, ""], 1

    def write(self, text: str) -> None:
        at = 0
        for found in CONTROL.finditer(text):
            if found[2] == "m":
                continue
            self.lines[self.row] += text[at : found.start()]
            at = found.end()
            if found[0].endswith("\n"):
                self.row += 1
                self.lines += [""] * (self.row == len(self.lines))
            elif found[2] == "A":
                self.row -= int(found[1] or 1)
            elif found[2] == "K":
                self.lines[self.row] = ""
            elif found[2]:
                raise ValueError(f"rich does not write {found[0]!r}")
        self.lines[self.row] += text[at:]


def screens(path: Path, seconds: float) -> tuple[str, tuple[int, int], float, list[list[str]]]:
    """Return the command, the terminal's columns and rows, the command's seconds, and the visible lines at each
    frame.
    """
    head, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lasted = rows[-1][0]
    times = [time for time, _ in rows]
    screen, shown, frames = Screen(f"$ {head['command']}"), 0, []
    count = round(seconds * FRAMES_S)
    for frame in range(1, count + 1):
        until = bisect_right(times, lasted * frame / count) if frame < count else len(rows)
        screen.write("".join(text for _, text in rows[shown:until]))
        shown = until
        used = screen.lines[:-1] if not screen.lines[-1] else screen.lines
        frames.append(used[-head["rows"] :])
    return head["command"], (head["columns"], head["rows"]), lasted, frames


@dataclass(frozen=True)
class Shown:
    """A line on the screen, from one frame up to another, which no longer shows it."""

    row: int
    line: str
    first: int
    end: int


def changes(frames: list[list[str]]) -> list[Shown]:
    """Return what each row of the screen shows and how long, so that a line that stays is drawn once."""
    found = []
    for row in range(max(map(len, frames))):
        lines = [frame[row] if row < len(frame) else "" for frame in frames]
        for line, run in groupby(enumerate(lines), key=lambda one: one[1]):
            places = [at for at, _ in run]
            if line:
                found.append(Shown(row, line, places[0], places[-1] + 1))
    return found


def draw_line(line: str, console: Console) -> str:
    """Return a line as SVG. Every piece has its place and width, so columns are straight in any font."""
    [text] = AnsiDecoder().decode(line)
    pieces, column = [], 0
    for segment in text.render(console):
        for word in re.finditer(r"\S+(?: \S+)*", segment.text):
            style = segment.style or console.get_style("none")
            colour = style.color.get_truecolor(THEME).hex if style.color and not style.color.is_default else INK
            looks = f' fill="{QUIET if style.dim else colour}"' if style.dim or colour != INK else ""
            looks += ' font-weight="bold"' * bool(style.bold) + ' font-style="italic"' * bool(style.italic)
            x, width = MARGIN + (column + word.start()) * CELL, cell_len(word[0]) * CELL
            pieces.append(f'<tspan x="{x:g}" textLength="{width:g}"{looks}>{escape(word[0], quote=False)}</tspan>')
        column += segment.cell_length
    return "".join(pieces)


def draw(path: Path, seconds: float) -> str:
    """Return the recording at ``path`` as an SVG that plays for ``seconds``, shows the end, and begins again."""
    command, size, lasted, frames = screens(path, seconds)
    console = Console(width=size[0], force_terminal=True, color_system="truecolor")
    total, count = seconds + HELD_S, len(frames)
    width, height = 2 * MARGIN + size[0] * CELL, BAR + 2 * MARGIN + size[1] * LINE
    rules: dict[tuple[int, int], str] = {}
    lines = []
    for one in changes(frames):
        times = one.first, one.end
        name = rules.setdefault(times, f"t{len(rules)}") if times != (0, count) else ""
        attributes = f' class="{name}"' * bool(name) + ' visibility="hidden"' * (one.end < count)
        y = BAR + MARGIN + (one.row + 0.75) * LINE
        lines.append(f'<text y="{y:g}"{attributes}>{draw_line(one.line, console)}</text>')
    moves = []
    for (first, end), name in rules.items():
        start, stop = (100 * at / FRAMES_S / total for at in (first, end))
        states = ["0%{visibility:hidden}"] * (first > 0) + [f"{start:.2f}%{{visibility:visible}}"]
        states += [f"{stop:.2f}%{{visibility:hidden}}"] * (end < count)
        moves.append(f".{name}{{animation-name:{name}}}@keyframes {name}{{{''.join(states)}}}")
    speed = f"{timedelta(seconds=round(lasted))} in {seconds:g} s"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="{FONT}">',
        f"<title>{escape(command)}, {speed}</title>",
        f"<style>text{{animation:{total:g}s step-end infinite}}{''.join(moves)}",
        "@media(prefers-reduced-motion:reduce){text[class]{animation:none}}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
        f'<text x="{MARGIN}" y="22" fill="{QUIET}">{escape(command)}</text>',
        f'<text x="{width - MARGIN:g}" y="22" fill="{QUIET}" text-anchor="end">{speed}</text>',
        f'<path d="M0 {BAR}H{width:g}" stroke="#2c3038"/><g fill="{INK}">',
        *lines,
        "</g></svg>\n",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = parser.add_subparsers(required=True, dest="job")
    recording = jobs.add_parser("record", help="run a command and write its recording")
    recording.add_argument("recording", type=Path)
    recording.add_argument("command", nargs=argparse.REMAINDER)
    drawing = jobs.add_parser("draw", help="draw a recording")
    drawing.add_argument("recording", type=Path)
    drawing.add_argument("picture", type=Path)
    drawing.add_argument("--seconds", type=float, default=14, help="how long it plays before the end is shown")
    given = parser.parse_args()
    if given.job == "record":
        sys.exit(record(given.command, given.recording))
    given.picture.write_text(draw(given.recording, given.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
