"""Reading upstream's prompt templates out of its Python source, without running it and without copying its texts into this project.

Upstream's ``utils.py`` assigns two literals: ``GAME_RULE_PROMPTS``, a list of paraphrases of the rules, and ``INSTRUCT_PROMPTS``, a dict
from role to instruction, both with ``str.format`` fields. Its prompt of play is the first paraphrase, the history as ``  - role: text``
lines, and the instruction.
"""

import ast
from typing import Any

from spag.core.errors import DataError
from spag.games.taboo.prompts import PromptSet

RULES_NAME = "GAME_RULE_PROMPTS"
INSTRUCTIONS_NAME = "INSTRUCT_PROMPTS"


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


def _literal(tree: ast.Module, name: str, place: str) -> tuple[int, Any]:
    """Return (line, value) of the last top-level assignment to ``name``."""
    found = [
        (node, node.value) for node in tree.body if _assigns(node, name) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value
    ]
    if not found:
        raise DataError(f"{place}: no assignment to {name} at the top level; give upstream's utils.py")
    node, value = found[-1]
    try:
        return node.lineno, ast.literal_eval(value)
    except (ValueError, TypeError) as error:  # TypeError: an unhashable key
        raise DataError(f"{place}:{node.lineno}: {name} is not made of plain literals (f-strings, names and calls are not run)") from error


def _assigns(node: ast.stmt, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
