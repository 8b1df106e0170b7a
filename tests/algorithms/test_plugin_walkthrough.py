"""docs/algorithms.md as a reader follows it: the package that it shows trains a game of another package, is killed in
the middle of the phase, resumes and is reported.
"""

import json
import os
import signal
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
from outside import install, install_variety
from spag import algorithms
from spag.core.episodes import Episode
from spag.storage.episodes import read_episodes
from walkthrough import files, page, write_files

PAGE = page("algorithms.md")
WALK_THROUGH = PAGE.partition("## Write an algorithm of your own")[2]
FILES = files(WALK_THROUGH)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page and a game of another package, installed side by side."""
    folder = tmp_path_factory.mktemp("rejection")
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    install(folder, project["name"], "spag.algorithms", project["entry-points"]["spag.algorithms"], FILES)
    install_variety(folder)
    return folder


def dying(package: str, *command: str) -> None:
    """Do a command where the package is on the path; it is killed in the second step of the first phase."""
    sys.path.insert(0, package)
    import rejection

    class Dies(rejection.Rejection):  # type: ignore[misc]
        calls = 0

        def credit(self, *given: Any) -> Any:
            Dies.calls += 1
            if Dies.calls == 2:  # step 1 is trained and saved, the games of step 2 are on disk
                os.kill(os.getpid(), signal.SIGKILL)
            return super().credit(*given)

    rejection.Rejection = Dies
    forked.run_in(package, *command)


def start(package: Path, *command: str, target: Callable[..., None] = forked.run_in) -> tuple[int | None, str]:
    """Do a command in a process of its own; return its exit code and what it printed."""
    printed = package / "printed.txt"
    process = forked.start(forked.printing, str(printed), target, str(package), *command)
    return forked.end(process), printed.read_text()


def spag(package: Path, *command: str) -> str:
    code, printed = start(package, *command)
    assert code == 0, printed
    return printed


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def kept(games: list[Episode]) -> int:
    """What the page's ``credit`` counts: the utterances of players who won."""
    return sum(game.rewards[said.role] >= 0.5 for game in games for said in game.history)


def test_the_page_names_every_algorithm_and_shows_a_whole_package() -> None:
    assert list(FILES) == ["pyproject.toml", "rejection.py", "run.yaml"]
    for name in algorithms.SHIPPED:
        assert f"| `{name}` |" in PAGE


def test_pip_can_install_the_package(tmp_path: Path) -> None:
    """The fixture installs without a build, and hatchling must be told of a module that is not named as its project."""
    builders = pytest.importorskip("hatchling.builders.wheel", reason="pip install hatchling")
    write_files(WALK_THROUGH, tmp_path)
    [wheel] = builders.WheelBuilder(str(tmp_path)).build(directory=str(tmp_path / "dist"), versions=["standard"])
    with zipfile.ZipFile(wheel) as built:
        assert "rejection.py" in built.namelist()


@pytest.mark.slow
@pytest.mark.long
def test_the_algorithm_is_killed_resumes_with_its_state_and_is_reported(package: Path, model_folder: Path) -> None:
    shown = spag(package, "config", "show", "run.yaml")
    assert "least_reward: 0.1" in shown and "tic_tac_toe" in shown
    options = (
        f"model.name={model_folder}", "model.dtype=float32", "model.device=cpu",
        "game.name=variety",  # which an untrained model can win
    )  # fmt: skip
    command = ["run", "run.yaml", "--output", "out", *(part for one in options for part in ("--set", one))]
    phase = package / "out" / "1-rejection"
    code, printed = start(package, *command, target=dying)
    assert code == -signal.SIGKILL, printed
    [left] = phase.glob("state/checkpoint-*")
    saved = json.loads((left / "state.json").read_text())["algorithm"]
    games = [list(read_episodes(phase / "episodes" / f"step-0000{step}.jsonl")) for step in (1, 2)]
    assert saved == {"kept": kept(games[0])} and kept(games[0]) > 0 < kept(games[1])
    assert len(rows(phase / "metrics.jsonl")) == 1 and not (phase / "checkpoint").exists()

    spag(package, *command)
    # Had the state been lost, the second row would count the winners of its own games alone.
    counted = [(row["step"], row["kept"]) for row in rows(phase / "metrics.jsonl")]
    assert counted == [(1, kept(games[0])), (2, kept(games[0]) + kept(games[1]))]
    assert list(read_episodes(phase / "episodes" / "step-00002.jsonl")) == games[1]  # they were not played again
    assert (phase / "checkpoint" / "model.safetensors").is_file()
    again = spag(package, *command)
    assert "done before" in again or "complete" in again
    spag(package, "report", "out")
    page = (package / "out" / "report" / "index.html").read_text()
    assert "rejection" in page and "Variety" in page
