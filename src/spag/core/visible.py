"""Text from models and files made visible: invisible characters, and those that control the display, appear as codes.

Terminal, web page and report treat the same characters as hidden: controls (an escape clears a screen or retitles a
window), C1 controls, marks that turn the direction of writing, zero-width and other blank characters, line separators,
lone surrogates.
"""

import re
import unicodedata
from collections.abc import Iterator

BLANKS = "\u115f\u1160\u3164\uffa0\u2800\u034f"
_SUSPECT = re.compile(rf"[^\x09\x0a\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff]|[{BLANKS}]")
_JOINERS = "\u200c\u200d"  # part of emoji, and of Persian and Indic spelling


def hidden(text: str) -> Iterator[int]:
    """Yield the positions of hidden characters in order; tabs and line feeds are not hidden."""
    return (found.start() for found in _SUSPECT.finditer(text) if _is_hidden(text, found.start()))


def code(char: str) -> str:
    """Return a character's code as people write it: ``U+200B``."""
    return f"U+{ord(char):04X}"


def visible_text(text: str, *, lines: bool = False) -> str:
    """Return ``text`` for a terminal, hidden characters as ``<U+001B>``.

    Line feeds are shown by their code too, so that no text can forge a following line, unless ``lines`` keeps them.
    """
    pieces, end = [], 0
    for start in hidden(text):
        pieces += [text[end:start], f"<{code(text[start])}>"]
        end = start + 1
    shown = "".join((*pieces, text[end:]))
    return shown if lines else shown.replace("\n", "<U+000A>")


def counted(count: int, what: str) -> str:
    """Return a number with its noun: ``1 game``, ``1,200 games``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def _is_hidden(text: str, position: int) -> bool:
    char = text[position]
    if char in _JOINERS:
        return position == 0 or text[position - 1].isascii()
    return char in BLANKS or unicodedata.category(char) in ("Cf", "Cc", "Cs", "Zl", "Zp")
