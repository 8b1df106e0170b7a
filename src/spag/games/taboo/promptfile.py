"""Prompt files: the prompts of a game as JSON, and upstream's templates, parsed from its Python source.

    {"rules": ["... {max_turns} ...", ...],
     "instructions": {"attacker": "... {target_word} ...", "defender": "..."},
     "header": "\\n\\nThe conversation so far:\\n", "line": "- {role}: {content}\\n", "cue": "{role} says:\\n"}

``header``, ``line`` and ``cue`` are optional. A file with ``"format": "upstream"`` has ``rules``, ``instructions`` (for
play) and ``player_instructions`` (for training), and is rendered like upstream.

Upstream's ``utils.py`` assigns these as three literals: ``GAME_RULE_PROMPTS``, a list of paraphrases of the rules, and
``INSTRUCT_PROMPTS`` and ``PLAYER_INSTRUCT_PROMPTS``, dicts from role to instruction, all with ``str.format`` fields.
The file is parsed and never run, and its texts are not copied into this project.
"""

import ast
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from spag.core.errors import DataError
from spag.core.options import fault_of
from spag.core.types import Observation, Utterance
from spag.games.taboo.prompts import Prompts, PromptSet
from spag.games.taboo.types import Role
from spag.games.taboo.upstream import Draws, UpstreamPrompts
from spag.storage.jsonfile import read_json, read_text
from spag.storage.store import write_atomically

LONGEST_FILE = 2**20
"""Bytes of a prompt file; upstream's prompts have 20 KB."""
LITERALS = {
    "rules": "GAME_RULE_PROMPTS",
    "instructions": "INSTRUCT_PROMPTS",
    "player_instructions": "PLAYER_INSTRUCT_PROMPTS",
}
"""Upstream's names for the fields of ``UpstreamPrompts``."""


def load_prompts(path: str | Path) -> Prompts:
    """Read a prompt file. Raises ``DataError`` naming the file, the field and the fix."""
    data = read_json(Path(path), object, longest=LONGEST_FILE)
    kind = UpstreamPrompts if isinstance(data, dict) and "format" in data else PromptSet
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise DataError(f"{path}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "prompts"
    if first["type"] == "extra_forbidden":
        return f"unknown field {field}; docs/prompts.md lists the fields"
    return f"{field}: {fault_of(first)}"


def save_prompts(prompts: Prompts, path: str | Path) -> None:
    """Write a prompt file that ``load_prompts`` reads back. Raises ``StorageError``."""
    write_atomically(Path(path), prompts.model_dump_json(exclude_none=True, indent=2) + "\n")


def upstream_prompt(
    prompts: str | Path,
    history: Sequence[Mapping[str, str]],
    target_word: str,
    max_turns: int,
    draws: Mapping[str, Any] | None = None,
) -> str:
    """Return a prompt as the paper's published code renders it, for the player who did not speak last.

    ``prompts`` is a file that ``spag import prompts`` wrote; ``history`` holds ``{"role", "content"}``. Without
    ``draws`` it is the prompt of play; with them, keyed as in ``tests/golden/upstream_prompts.json``, one of training.
    Raises ``DataError`` for a file of other prompts, an unknown role, and draws that are not upstream's.
    """
    texts = load_prompts(prompts)
    if not isinstance(texts, UpstreamPrompts):
        raise DataError(f"{prompts}: not upstream's prompts; make the file with spag import prompts")
    strange = [said["role"] for said in history if said["role"] not in set(Role)]
    if strange:
        raise DataError(f"history has the role {strange[0]!r}; the roles are {', '.join(Role)}")
    role = Role.DEFENDER if history and history[-1]["role"] == Role.ATTACKER else Role.ATTACKER
    said = tuple(Utterance(one["role"], one["content"]) for one in history)
    observation = Observation(role, said, {"max_turns": max_turns, "target_word": target_word})
    if draws is None:
        return texts.play(observation)
    try:
        return texts.drawn(observation, TypeAdapter(Draws).validate_python(draws))
    except ValidationError as error:
        raise DataError(f"draws.{_first_fault(error)}") from error


def import_upstream_prompts(path: str | Path) -> UpstreamPrompts:
    """Read the templates from upstream's ``utils.py``, which is parsed but never run. Raises ``DataError`` as
    ``path:line: ...``.
    """
    source = read_text(Path(path))
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes in strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # a null byte; code that is nested too deep
        line = getattr(error, "lineno", None) or 1
        what = error.args[0] if error.args else "nested too deep"
        raise DataError(f"{path}:{line}: not Python: {what}; give upstream's utils.py") from error
    found = {field: _literal(tree, name, path) for field, name in LITERALS.items()}
    try:
        return UpstreamPrompts.model_validate({field: value for field, (_, value) in found.items()})
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise DataError(f"{path}:{found[field][0]}: {LITERALS[field]}: {_first_fault(error)}") from error


def _literal(tree: ast.Module, name: str, path: str | Path) -> tuple[int, Any]:
    """Return (line, value) of the last top-level assignment to ``name``."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    found = [
        (node.lineno, node.value)
        for node in assigned
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if node.value and isinstance(target, ast.Name) and target.id == name
    ]
    if not found:
        raise DataError(f"{path}: no assignment to {name} at the top level; give upstream's utils.py")
    line, value = found[-1]
    try:
        return line, ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:  # TypeError: an unhashable key
        fault = f"{name} is not made of plain literals (f-strings, names and calls are not run)"
        raise DataError(f"{path}:{line}: {fault}") from error
