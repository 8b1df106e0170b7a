"""The house rules, held by machine: imports go one way between folders, torch stays in its rooms, games are pure, help
is fast.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "spag"

# A room is a folder. Each imports only from rooms before it, or from itself (docs/architecture.md). The root, spag
# itself, comes last.
ROOMS = (
    "core", "storage", "text", "games", "algorithms", "config", "models", "engines", "rollout", "evaluation",
    "learning",
    "training", "runs", "planning", "report", "web", "export", "adapters", "serve", "cli", "",
)  # fmt: skip
TORCH_ROOMS = ("models", "engines/transformers", "engines/vllm", "learning", "training", "evaluation/reasoning")
TORCH = {"torch", "transformers", "peft", "accelerate", "vllm"}
IMPURE = {"os", "io", "time", "datetime", "logging", "socket", "subprocess", "threading", "asyncio", "numpy"} | TORCH

FILES = sorted(SRC.rglob("*.py"))


def folder_of(path: Path) -> str:
    return path.parent.relative_to(SRC).as_posix().removeprefix(".")


def room_of(module: str) -> int:
    """The room of ``spag.ROOM.more``, or of a name in the root."""
    first = module.removeprefix("spag").lstrip(".").partition(".")[0]
    return ROOMS.index(first if (SRC / first).is_dir() and first else "")


def imports_of(path: Path, *, only_at_import: bool = False) -> set[str]:
    """Every module that a file imports; ``only_at_import``: those that importing the file imports, for types left
    out.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes: list[ast.AST] = list(_executed(tree)) if only_at_import else list(ast.walk(tree))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {
                f"{node.module}.{alias.name}" for alias in node.names if node.module == "spag"
            }  # from spag import games
    return found


def _executed(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return []
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return []
    return [node, *(found for child in ast.iter_child_nodes(node) for found in _executed(child))]


def test_every_folder_is_a_room() -> None:
    folders = {folder_of(path).partition("/")[0] for path in FILES}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    here = ROOMS.index(room)
    for path in FILES:
        if folder_of(path).partition("/")[0] == room:
            later = {name for name in imports_of(path) if name.partition(".")[0] == "spag" and room_of(name) > here}
            assert not later, f"{path.relative_to(SRC)} imports {sorted(later)}, from rooms that come after {room}/"


@pytest.mark.slow
def test_torch_stays_in_its_rooms() -> None:
    for path in FILES:
        if not folder_of(path).startswith(TORCH_ROOMS):
            heavy = {name.partition(".")[0] for name in imports_of(path, only_at_import=True)} & TORCH
            assert not heavy, f"{path.relative_to(SRC)} imports {sorted(heavy)} when it is imported"


@pytest.mark.slow
def test_games_are_pure() -> None:
    for path in FILES:
        if folder_of(path).startswith(("games", "text")):
            found = {name.partition(".")[0] for name in imports_of(path)} & IMPURE
            assert not found, f"{path.relative_to(SRC)} imports {sorted(found)}"


@pytest.mark.slow
def test_a_game_reaches_into_no_other_game() -> None:
    games = {path.parent.name for path in (SRC / "games").glob("*/__init__.py")} - {"conformance"}
    for path in FILES:
        room = folder_of(path).split("/")
        if room[0] == "games" and len(room) > 1:
            others = {
                name for name in imports_of(path) for game in games - {room[1]} if name.startswith(f"spag.games.{game}")
            }
            assert not others, f"{path.relative_to(SRC)} imports {sorted(others)}"


def test_only_games_know_their_roles_outcomes_and_tasks() -> None:
    """What is said of one game outside its folder would have to be said again of the next."""
    own = (
        "attacker_wins",
        "defender_wins",
        "attacker_violation",
        "Role.",
        "Outcome.ATTACKER",
        "questioner",
        "player_0",
    )
    for path in FILES:
        if not folder_of(path).startswith("games"):
            code = path.read_text(encoding="utf-8")
            assert not [word for word in own if word in code], path.relative_to(SRC)


def test_home_folders_are_expanded_in_one_place() -> None:
    """Elsewhere ``~nosuchuser`` would end in a traceback."""
    own = Path("storage/home.py")
    assert [path.relative_to(SRC) for path in FILES if "expanduser" in path.read_text(encoding="utf-8")] == [own]


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SRC)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


@pytest.mark.slow
def test_help_answers_without_heavy_imports() -> None:
    code = (
        "import sys, spag.cli; "
        "print(sorted({'torch', 'transformers', 'pydantic', 'scipy', 'rich', 'msgspec'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
