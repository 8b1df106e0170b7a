"""What can be seen of an utterance at a glance, so that nearly all of them need no closer look.

Strict judging is slow where it must be careful: markup, look-alike letters, inflections, spelling out. But an utterance is a sequence of
chunks with space between them, and chunks come again and again. So each is looked at closely once, and what it could possibly say is
remembered; a glance at an utterance then puts that together. It errs on one side only: ``may_say`` and ``may_guess`` are false only where
``find_form``, ``find_evasion`` and ``find_guess`` find nothing, which ``tests/game/test_glance.py`` checks on hostile texts.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from spag.game.evasions import clues_of, hidden_spellings
from spag.game.folding import unmasked, without_markup
from spag.game.matching import target_of, word_bases, words_of

_UNCLEAR = "\0unclear"  # says more together with its neighbours than alone, or is too long to remember
_WORD = "\0word"  # holds "word", as every announcement of a guess does
_LONGEST = 64
_BEFORE, _AFTER = '*_~`".,;:?([-', '*_~`".,;:?)]-!'  # mean nothing at the edges of a chunk; a "!" before letters may be an i
_RUN = re.compile(r"'?[^\W_]+")
_BEFORE_MARK = re.compile(r"[^\W_]+(?=['+#])")


def may_say(text: str, target_word: str) -> bool:
    """Tell whether ``text`` may say the target, openly or not."""
    target, clues = target_of(target_word), clues_of(target_word)
    if target.literal or target.acronym or not all(map(str.isalnum, clues.forms)):
        return True
    hints = _glance(text)
    if _UNCLEAR in hints or not hints.isdisjoint(clues.forms):
        return True
    if target.words and not hints.isdisjoint(target.words[0]):
        return True
    return any(left in hints and right in hints for left, right in clues.halves)


def may_guess(text: str) -> bool:
    """Tell whether ``text`` may announce a guess."""
    return _WORD in _glance(text)


@lru_cache(maxsize=8)
def _glance(text: str) -> frozenset[str]:
    """Return the base forms of all that ``text`` could say in any reading."""
    chunks = text.split()
    if not chunks:
        return frozenset()
    if max(map(len, chunks)) > _LONGEST:
        return frozenset((_UNCLEAR, _WORD))
    hints, singles = zip(*map(_chunk, chunks), strict=True)
    return frozenset().union(*hints, (_UNCLEAR,) if "111" in "".join(singles) else ())


@lru_cache(maxsize=1 << 16)
def _chunk(chunk: str) -> tuple[frozenset[str], str]:
    """Return what a chunk could say, and how its words may take part in spelling.

    The latter is "1" for a single letter and "0" for a longer word, those in the middle left out.
    """
    core = chunk.lstrip(_BEFORE).rstrip(_AFTER)
    if core.isascii() and core.isalpha():
        return _word(core.lower()), "1" if len(core) == 1 else "0"
    masked = unmasked(chunk)
    readings = dict.fromkeys((*masked, *map(without_markup, masked)))
    if any(reading.rfind("<") > reading.rfind(">") for reading in readings):  # a tag that the next chunk may end
        return frozenset((_UNCLEAR, _WORD)), ""
    word = (_WORD,) if any("word" in reading for reading in masked) else ()
    return frozenset().union(word, *(hints for reading in readings for hints in _reading(reading))), _singles(readings)


def _singles(readings: Iterable[str]) -> str:
    shapes = {"".join("1" if len(run) == 1 else "0" for run in _RUN.findall(reading)) for reading in readings}
    if len(shapes) > 1 and not all("0" in shape for shape in shapes):
        return "111"
    first, last = max(shape.partition("0")[0] for shape in shapes), max(shape.rpartition("0")[2] for shape in shapes)
    return f"{first}0{last}" if "0" in max(shapes, key=len) else first


def _reading(reading: str) -> Iterator[frozenset[str]]:
    for word in words_of(reading):
        yield word_bases(word) | {word[::-1]}
    yield frozenset(_BEFORE_MARK.findall(reading))
    for spelling in hidden_spellings(reading):
        yield word_bases(spelling)


@lru_cache(maxsize=1 << 16)
def _word(word: str) -> frozenset[str]:
    return word_bases(word) | {word[::-1]} | ({_WORD} if "word" in word else set())
