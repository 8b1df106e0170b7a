"""Prompt files: a ``PromptSet`` as JSON on disk, and upstream's templates, read out of its Python source.

    {"rules": ["... {max_turns} ...", ...],
     "instructions": {"attacker": "... {target_word} ...", "defender": "..."},
     "header": "\\n\\nThe conversation so far:\\n", "line": "- {role}: {content}\\n", "cue": "{role} says:\\n"}

``header``, ``line`` and ``cue`` may be left out.

Upstream's ``utils.py`` assigns two literals: ``GAME_RULE_PROMPTS``, a list of paraphrases of the rules, and ``INSTRUCT_PROMPTS``, a dict
from role to instruction, both with ``str.format`` fields. Its prompt of play is the first paraphrase, the history as ``  - role: text``
lines, and the instruction. The file is parsed and never run, and its texts are not copied into this project.
"""

import ast
import json
from pathlib import Path
from typing import Any

from spag.core.errors import DataError
from spag.core.store import write_atomically
from spag.games.taboo.prompts import PromptSet

RULES_NAME = "GAME_RULE_PROMPTS"
INSTRUCTIONS_NAME = "INSTRUCT_PROMPTS"


def load_prompts(path: str | Path) -> PromptSet:
    """Read a prompt file. Raises ``DataError`` naming the file, the field and the fix."""
    path = Path(path)
    text = read_text(path)
    try:
        return PromptSet.parse(json.loads(text))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def save_prompts(prompts: PromptSet, path: str | Path) -> None:
    """Write a prompt file that ``load_prompts`` reads back. Raises ``StorageError``."""
    write_atomically(Path(path), json.dumps(prompts.dump(), ensure_ascii=False, indent=2) + "\n")


def import_upstream_prompts(path: str | Path) -> PromptSet:
    """Read the templates from upstream's ``utils.py`` by parsing it; the file is never run. Raises ``DataError``."""
    return parse_upstream_prompts(read_text(Path(path)), str(path))


def parse_upstream_prompts(source: str, place: str = "upstream's prompts") -> PromptSet:
    """Return the prompts that the Python text ``source`` assigns. Raises ``DataError`` as ``place:line: ...``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = getattr(error, "lineno", None) or 1
        raise DataError(f"{place}:{line}: not Python: {error.args[0]}; give upstream's utils.py") from error
    rules_line, rules = _literal(tree, RULES_NAME, place)
    instructions_line, instructions = _literal(tree, INSTRUCTIONS_NAME, place)
    if not isinstance(rules, (list, tuple)):
        raise DataError(f"{place}:{rules_line}: {RULES_NAME} is a {type(rules).__name__}; it must be a list of texts")
    data = {"rules": list(rules), "instructions": instructions, "header": "\n", "line": "  - {role}: {content}\n", "cue": ""}
    try:
        return PromptSet.parse(data)
    except DataError as error:
        line, name = (rules_line, RULES_NAME) if str(error).startswith("rules") else (instructions_line, INSTRUCTIONS_NAME)
        raise DataError(f"{place}:{line}: {name}: {error}") from error


def read_text(path: Path) -> str:
    """Return a UTF-8 text file's content, a byte-order mark dropped. Raises ``DataError``."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error


def _literal(tree: ast.Module, name: str, place: str) -> tuple[int, Any]:
    """Return (line, value) of the last top-level assignment to ``name``."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    found = [
        (node.lineno, node.value)
        for node in assigned
        if node.value and name in map(ast.unparse, node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    if not found:
        raise DataError(f"{place}: no assignment to {name} at the top level; give upstream's utils.py")
    line, value = found[-1]
    try:
        return line, ast.literal_eval(value)
    except (ValueError, TypeError) as error:  # TypeError: an unhashable key
        raise DataError(f"{place}:{line}: {name} is not made of plain literals (f-strings, names and calls are not run)") from error
