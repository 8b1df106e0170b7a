"""Pages of docs/ as a reader follows them: the files that they show, their code, and their commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`([\w.]+)` (?:(?!^```).)*?^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def files(text: str) -> dict[str, str]:
    """Return the files that a page shows: the block after a paragraph that begins with the file's name."""
    return dict(FILE.findall(text))


def blocks(text: str, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(text) if kind == language]


def write_files(text: str, folder: Path) -> None:
    for name, content in files(text).items():
        (folder / name).write_text(content, encoding="utf-8")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of every ``spag`` command of a page's code blocks, less those that show output too and begin with
    ``$`` (test_docs_output.py).
    """
    for block in blocks(text, ""):
        for line in block.replace("\\\n", " ").splitlines() if not block.startswith("$ ") else ():
            if line.startswith("spag "):
                yield shlex.split(line, comments=True)
