"""Ways of saying a word without writing it as a word: spelled out, split, reversed, digits for letters.

All work on normalised text (``matching.normalise`` already undoes invisible characters, look-alike letters and markup).
"""

import re
from collections.abc import Iterator
from itertools import product

import simplemma

from spag.game.matching import LANGUAGE, is_form, target_tokens

_SHORTEST = 3  # shorter targets would be found by chance
_SHORTEST_REVERSED = 4
_GAP = r"[\s.,\-_*/|~+:;·]"
_SPELLED = re.compile(rf"(?<!\w)[^\W_](?:{_GAP}{{1,4}}[^\W_](?!\w))+")
_CHUNK = re.compile(r"\S+")
_LEET = {"0": "o", "1": "il", "3": "e", "4": "a", "5": "s", "7": "t", "8": "b", "@": "a", "$": "s", "!": "i", "|": "il"}
_MOST_LEET = 6  # symbols a chunk may have before its readings are too many to try


def find_evasion(normalised: str, target: str) -> str | None:
    """Return how a normalised text hides ``target`` (``spelled out as "r-i-v-e-r"``), or ``None``."""
    word = "".join(target_tokens(target))
    if len(word) < _SHORTEST or not word.isalnum():
        return None
    for match in _SPELLED.finditer(normalised):
        if word in re.sub(r"[\W_]+", "", match.group()):
            return f'spelled out as "{match.group()[:60]}"'
    for match in _CHUNK.finditer(normalised):
        chunk = match.group()
        if len(chunk) > 4 * len(word) + 16:
            continue
        if _is_split(chunk, target):
            return f'split as "{chunk}"'
        if any(is_form((reading,), target) for reading in _leet_readings(chunk)):
            return f'written with symbols as "{chunk}"'
        if _is_reversed(chunk, word):
            return f'reversed as "{chunk}"'
    return None


def _is_split(chunk: str, target: str) -> bool:
    pieces = re.findall(r"[^\W_]+", chunk)
    return len(pieces) > 1 and is_form(("".join(pieces),), target)


def _leet_readings(chunk: str) -> Iterator[str]:
    """Yield what a chunk of letters and symbols may be read as, without the punctuation around it."""
    core = chunk.strip(".,;:?!\"'()[]{}")
    symbols = sum(char in _LEET for char in core)
    if not 0 < symbols <= _MOST_LEET or not any(char.isalpha() for char in core):
        return
    for letters in product(*(_LEET.get(char, char) for char in core)):
        yield "".join(letters)


def _is_reversed(chunk: str, word: str) -> bool:
    letters = re.sub(r"[\W_]+", "", chunk)
    if len(word) < _SHORTEST_REVERSED or letters != word[::-1] or letters == word:
        return False
    return not simplemma.is_known(letters, lang=LANGUAGE)  # `drawer` is a word, not `reward` reversed
