"""Pieces of utterances: quoted in a reason, and found in the text as written where only their folded text (no case,
accents, invisible characters, look-alikes) is known.
"""

import re

from spag.text.folding import fold, unmasked
from spag.text.matching import TOKEN

_QUOTED = 60  # characters of an utterance quoted in a reason
_WORDS_AFTER = 4  # words compared to tell one of several places from the others


def find_span(text: str, piece: str, after: str | None = None) -> tuple[int, int] | None:
    """Return the position of the folded ``piece`` in ``text``: (start, end) in characters.

    Whole words are preferred to parts of words; among several places, the one whose line continues with the words of
    ``after``.
    """
    pattern = r"[\s\"]+".join(r"[*_~`]*".join(map(re.escape, word)) for word in fold(piece).split())
    for folded in (fold, lambda char: unmasked(char)[-1]) if pattern else ():
        origins = [(char, position) for position, original in enumerate(text) for char in folded(original)]
        plain = "".join(char for char, _ in origins)
        places = [*re.finditer(rf"(?<!\w){pattern}(?!\w)", plain)] or [*re.finditer(pattern, plain)]
        if places:
            wanted = None if after is None else TOKEN.findall(fold(after))[:_WORDS_AFTER]
            rest = (TOKEN.findall(plain[place.end() :].partition("\n")[0])[:_WORDS_AFTER] for place in places)
            place = next((place for place, words in zip(places, rest, strict=True) if words == wanted), places[0])
            return origins[place.start()][1], origins[place.end() - 1][1] + 1
    return None


def quoted(piece: str) -> str:
    """Return ``piece`` quoted for a reason: on one line, truncated."""
    piece = " ".join(piece.split())
    return f'"{piece}"' if len(piece) <= _QUOTED else f'"{piece[: _QUOTED - 3]}..."'
