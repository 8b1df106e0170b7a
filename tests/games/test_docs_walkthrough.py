"""docs/games.md as a reader follows it: the package that it shows is written out, tested and played."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import forked
from spag.games import get
from spag.games.registry import SHIPPED
from spag.storage.episodes import read_episodes
from walkthrough import blocks, files, page

PAGE = page("games.md")
WALK_THROUGH = PAGE.partition("## Write a game of your own")[2]
FILES = files(WALK_THROUGH)
COMMANDS = [line for text in blocks(WALK_THROUGH, "") for line in text.splitlines()]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, and what an installer would write beside them."""
    folder = tmp_path_factory.mktemp("dilemma")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    installed = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    entries = project["entry-points"]["spag.games"].items()
    (installed / "entry_points.txt").write_text(
        "[spag.games]\n" + "".join(f"{name} = {target}\n" for name, target in entries)
    )
    return folder


def spag(package: Path, *arguments: str) -> str:
    printed = package / "printed"
    process = forked.start(
        forked.printing, str(printed), forked.run_in, str(package), *arguments, environment={"COLUMNS": "120"}
    )
    assert forked.end(process) == 0, printed.read_text()
    return printed.read_text()


def test_the_page_shows_a_whole_package() -> None:
    assert list(FILES) == ["pyproject.toml", "dilemma.py", "test_dilemma.py"]
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 140
    assert [command.split()[0] for command in COMMANDS] == ["pip", "pytest", "spag", "spag", "spag"]


@pytest.mark.slow
def test_the_game_passes_the_suite(package: Path) -> None:
    [command] = [command for command in COMMANDS if command.startswith("pytest ")]
    paths = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "-q", "-p", "no:cacheprovider"],
        cwd=package,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and re.search(r"\b3\d passed", done.stdout), done.stdout + done.stderr


@pytest.mark.long
def test_the_game_is_listed_and_played(package: Path) -> None:
    typed = [command.split()[1:] for command in COMMANDS if command.startswith("spag ")]
    shown = {words[0]: spag(package, *words) for words in typed}
    assert "longest" in shown["games"] and "tit_for_tat" in shown["games"]
    assert "points per round" in shown["judge"]
    episodes = list(read_episodes(package / "d.jsonl"))
    assert len(episodes) == 10
    for episode in episodes:
        assert episode.game == "dilemma"
        assert [episode.players[role].model for role in ("player_0", "player_1")] == ["bot:tit_for_tat", "bot:random"]
        behind = (episode.rewards["player_1"] - episode.rewards["player_0"]) * episode.task.data["rounds"]
        assert round(behind, 9) in (0, 5)  # tit for tat is exploited once at most, and never exploits


@pytest.mark.long
def test_a_run_of_the_game_is_planned(package: Path) -> None:
    [config] = blocks(WALK_THROUGH, "yaml")
    (package / "dilemma.yaml").write_text(config)
    assert "2. reinforce: 40 online steps of 64 games of dilemma" in spag(package, "run", "dilemma.yaml", "--dry-run")


def test_the_page_describes_every_game_that_ships() -> None:
    for name in SHIPPED:
        game = get(name)
        assert f"| `{name}` | {', '.join(game.roles)} |" in PAGE
        assert f"\n## {game.title}\n" in PAGE


def test_python_blocks_are_valid() -> None:
    code = blocks(PAGE, "python")
    assert len(code) == 3
    for block in code:
        compile(block, "docs/games.md", "exec")
