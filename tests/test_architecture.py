"""The house rules, held by machine: imports go one way, torch stays in its rooms, help is fast, library code does not print."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "spag"

# Each room imports only from rooms above it (docs/architecture.md).
ROOMS = [
    {"errors", "seeding", "progress"},
    {"config", "configfile"},
    {"game"},
    {"episodes", "store", "wordlist", "promptfile"},
    {"upstream", "sft", "manifest"},
    {"engines.base", "engines.scripted", "engines.pricing"},
    {"models"},
    {"engines"},
    {"selfplay"},
    {"collect", "rewards"},
    {"training"},
    {"evaluation"},
    {"cluster"},
    {"launch"},
    {"stages"},
    {"pipeline"},
    {"planning"},
    {"doctor"},
    {"web.verdicts", "web.render"},
    {"report"},
    {"exporting"},
    {"web"},
    {"console", "tables"},
    {"cli"},
]
TORCH_ROOMS = (
    "models",
    "engines.transformers",
    "engines.slots",
    "engines.drawing",
    "engines.vllm",
    "training",
    "evaluation.reasoning",
    "cluster.train",
    "exporting.weights",
    "doctor.machine",
    "planning.reading",
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> int:
    matches = [(len(name), index) for index, room in enumerate(ROOMS) for name in room if module == name or module.startswith(f"{name}.")]
    assert matches, f"{module} has no room; give it one here and in docs/architecture.md"
    return max(matches)[1]


def imports_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return found | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


MODULES = sorted(path for path in SRC.rglob("*.py") if module_name(path) not in ("__init__", "__main__", "data", "presets"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_one_way(path: Path) -> None:
    here = room_of(module_name(path))
    for name in imports_of(path):
        if name.startswith("spag."):
            assert room_of(name.removeprefix("spag.")) <= here, f"{module_name(path)} imports {name}, a room below it"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_torch_stays_in_its_rooms(path: Path) -> None:
    heavy = {name.partition(".")[0] for name in imports_of(path)} & {"torch", "transformers", "peft", "accelerate"}
    assert not heavy or module_name(path).startswith(TORCH_ROOMS)


@pytest.mark.parametrize("path", [p for p in MODULES if module_name(p).startswith("game")], ids=module_name)
def test_the_game_is_pure(path: Path) -> None:
    assert not imports_of(path) & {"os", "io", "pathlib", "time", "datetime", "logging", "socket", "subprocess", "msgspec", "json"}


def test_help_answers_without_heavy_imports() -> None:
    code = "import sys, spag.cli; print(sorted({'torch', 'transformers', 'pydantic', 'scipy', 'rich', 'msgspec'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
