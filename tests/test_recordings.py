"""The recordings of README.md: what a terminal shows becomes a picture of the same lines, and the shipped ones are
small and name no folder of a machine.
"""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
MOST_BYTES = 400_000
PROGRAM = """
import time
from rich.console import Console
from rich.progress import Progress
console = Console()
with Progress(console=console) as bars:
    bar = bars.add_task("play", total=4)
    for _ in range(4):
        time.sleep(0.15)
        bars.advance(bar)
console.print("[red]a < b[/] & done")
raise SystemExit(3)
"""


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("record_run", ROOT / "scripts" / "record_run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_run"] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_recording_ends_with_what_the_terminal_showed(script: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    recording = tmp_path / "run.jsonl"
    assert script.record([sys.executable, str(tmp_path / "program.py")], recording) == 3
    picture = ElementTree.fromstring(script.draw(recording, 300.0))  # some frames of each bar, if Python starts slowly
    lines = [text for text in picture.iterfind(".//{*}text") if text.get("y") != "22"]
    left = ["".join(text.itertext()) for text in lines if text.get("visibility") != "hidden"]
    assert len(left) == 3
    assert left[0].startswith("$ ") and "100%" in left[1] and left[2] == "a < b& done"  # columns keep them apart
    assert any(re.search(r"\b(25|50|75)%", "".join(text.itertext())) for text in lines)
    [red] = [one for one in lines[-1].iterfind("{*}tspan") if one.get("fill")]
    assert red.text == "a < b"


def test_each_line_is_drawn_once_for_as_long_as_it_stays(script: Any) -> None:
    frames = [["a"], ["a", "b"], ["a", "c"], ["a", "b"]]
    shown = [(one.row, one.line, one.first, one.end) for one in script.changes(frames)]
    assert shown == [(0, "a", 0, 4), (1, "b", 1, 2), (1, "c", 2, 3), (1, "b", 3, 4)]


def test_movements_that_rich_does_not_make_are_refused(script: Any) -> None:
    screen = script.Screen("$ x")
    screen.write("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2K1\r\n")
    assert screen.lines == ["$ x", "1", "", ""][: len(screen.lines)]
    with pytest.raises(ValueError, match="does not write"):
        screen.write("\x1b[3G")


@pytest.mark.parametrize("name", ["run.svg", "page.webp"])
def test_the_shipped_recordings_are_small(name: str) -> None:
    assert (ROOT / "docs" / name).stat().st_size < MOST_BYTES
    assert f"docs/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_shipped_terminal_names_no_folder_of_a_machine() -> None:
    text = (ROOT / "docs" / "run.svg").read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert "This run is complete" in text
