"""What the docstrings of public functions say: something, and the shape of every tensor that they take."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "spag"
Function = ast.FunctionDef | ast.AsyncFunctionDef
ARRAY = re.compile(r"\b(Tensor|Floats|Ints|ndarray)\b")
WEIGHTS = re.compile(r"\[str, (torch\.)?Tensor\]")  # by name, each of its own shape
SIZE = r"(?:\w+(?: [-+*/] \w+)*|\.\.\.)"
SHAPE = re.compile(rf"\({SIZE}(?:, {SIZE})+\)|\({SIZE},\)|\([A-Z]\)|\bshapes?\b|\bscalars?\b")


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield public functions of modules, and methods of public classes."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")
            else:
                yield prefix + node.name, node


def unclear_tensors(function: Function) -> list[str]:
    """Return the arguments with tensors that the docstring does not name, or all where it has no shape."""
    given = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    kinds = {one.arg: ast.unparse(one.annotation) for one in given if one.annotation is not None}
    tensors = [name for name, kind in kinds.items() if ARRAY.search(kind) and not WEIGHTS.search(kind)]
    doc = " ".join((ast.get_docstring(function) or "").split())
    named = [name for name in tensors if f"``{name}``" in doc]
    return [name for name in tensors if name not in named or not SHAPE.search(doc)]


MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def test_tensor_arguments_have_a_shape() -> None:
    functions = [(path, name, node) for path, tree in MODULES.items() for name, node in public(tree.body)]
    unclear = {f"{path.relative_to(SOURCE)}: {name}": unclear_tensors(node) for path, name, node in functions}
    assert {where: names for where, names in unclear.items() if names} == {}
    assert sum("Tensor" in ast.unparse(node.args) for _, _, node in functions) > 30


def test_public_functions_and_classes_have_docstrings() -> None:
    """Methods may leave it to the class or interface that they implement; checks of games are named by a sentence."""
    bare = [
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path, tree in MODULES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef | Function)
        and not node.name.startswith(("_", "check_"))
        and not any(ast.unparse(one) == "overload" for one in node.decorator_list)
        and not ast.get_docstring(node)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("source", "unclear"),
    [
        ('def f(x: Tensor):\n    """Return ``x``, (B, T + 1)."""', []),
        ('def f(x: Tensor, n: int):\n    """Return ``x`` plus ``n`` (a number)."""', ["x"]),
        ('def f(x: "Tensor", y: Tensor):\n    """Return ``y``, (B,)."""', ["x"]),
        ("def f(weights: dict[str, Tensor]): ...", []),
    ],
)
def test_what_counts_as_a_shape(source: str, unclear: list[str]) -> None:
    [function] = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef) and unclear_tensors(function) == unclear
