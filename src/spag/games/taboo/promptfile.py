"""Prompt files: a ``PromptSet`` as JSON on disk, and the import of upstream's templates.

    {"rules": ["... {max_turns} ...", ...],
     "instructions": {"attacker": "... {target_word} ...", "defender": "..."},
     "header": "\\n\\nThe conversation so far:\\n", "line": "- {role}: {content}\\n", "cue": "{role} says:\\n"}

``header``, ``line`` and ``cue`` may be left out. The texts live in the file, the rules of a template in ``game/prompts.py``.
"""

import json
from pathlib import Path

from spag.core.errors import DataError
from spag.core.store import write_atomically
from spag.games.taboo.prompts import PromptSet
from spag.games.taboo.upstream_prompts import parse_upstream_prompts


def load_prompts(path: str | Path) -> PromptSet:
    """Read a prompt file. Raises ``DataError`` naming the file, the field and the fix."""
    path = Path(path)
    text = read_text(path)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    try:
        return PromptSet.parse(data)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def save_prompts(prompts: PromptSet, path: str | Path) -> None:
    """Write a prompt file that ``load_prompts`` reads back. Raises ``StorageError``."""
    write_atomically(Path(path), json.dumps(prompts.dump(), ensure_ascii=False, indent=2) + "\n")


def import_upstream_prompts(path: str | Path) -> PromptSet:
    """Read the templates from upstream's ``utils.py`` by parsing it; the file is never run. Raises ``DataError``."""
    return parse_upstream_prompts(read_text(Path(path)), str(path))


def read_text(path: Path) -> str:
    """Return a UTF-8 text file's content, a byte-order mark dropped. Raises ``DataError``."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
