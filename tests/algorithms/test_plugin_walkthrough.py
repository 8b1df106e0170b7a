"""docs/algorithms.md as a reader follows it: the package that it shows trains, is killed, resumes and is reported."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spag import algorithms

PAGE = (Path(__file__).parent.parent.parent / "docs" / "algorithms.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WALK_THROUGH = PAGE.partition("## Write an algorithm of your own")[2]
NAMES = re.findall(r"^`([\w.]+)` ", WALK_THROUGH, re.MULTILINE)  # such a paragraph stands before the file's text
TEXTS = (text for language, text in BLOCK.findall(WALK_THROUGH) if language)
FILES = dict(zip(NAMES, TEXTS, strict=False))
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, and what an installer would write beside them."""
    folder = tmp_path_factory.mktemp("rejection")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    installed = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    entries = project["entry-points"]["spag.algorithms"].items()
    (installed / "entry_points.txt").write_text(
        "[spag.algorithms]\n" + "".join(f"{name} = {target}\n" for name, target in entries)
    )
    return folder


def spag(package: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(SOURCE)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from spag.cli import main; main()", *command],
        cwd=package,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_page_names_every_algorithm_and_shows_a_whole_package() -> None:
    assert list(FILES) == ["pyproject.toml", "rejection.py", "run.yaml"]
    for name in algorithms.names():
        assert f"| `{name}` |" in PAGE


@pytest.mark.slow
def test_the_algorithm_trains_resumes_and_is_reported(package: Path, model_folder: Path) -> None:
    shown = spag(package, "config", "show", "run.yaml")
    assert "least_reward: 0.1" in shown
    model = (f"model.name={model_folder}", "model.dtype=float32", "model.device=cpu")
    command = ["run", "run.yaml", "--output", "out", *(part for one in model for part in ("--set", one))]
    spag(package, *command)
    phase = package / "out" / "1-rejection"
    rows = [json.loads(line) for line in (phase / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[-1]["kept"] >= rows[0]["kept"]
    assert (phase / "checkpoint" / "model.safetensors").is_file()
    again = spag(package, *command)
    assert "done before" in again or "complete" in again
    spag(package, "report", "out")
    assert "rejection" in (package / "out" / "report" / "index.html").read_text()
