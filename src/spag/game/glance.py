"""What can be seen of an utterance at a glance, so that nearly all of them need no closer look.

Strict judging is slow where it must be careful: markup, look-alike letters, inflections, spelling out. But an utterance is a sequence of
chunks with space between them, and chunks come again and again. So each is looked at closely once, and what it could possibly say is
remembered; a glance at an utterance then puts that together. It errs on one side only: ``may_say`` and ``may_guess`` are false only where
``find_form``, ``find_evasion`` and ``find_guess`` find nothing, which ``tests/game/test_glance.py`` checks on hostile texts.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from spag.game.evasions import hidden_spellings, whole_forms
from spag.game.folding import unmasked, without_markup
from spag.game.matching import target_of, word_bases, words_of

_UNCLEAR = "\0unclear"  # says more together with its neighbours than alone, or is too long to remember
_CANNOT_TELL = (frozenset((_UNCLEAR,)), "w")
_LONGEST = 64
_REMEMBERED = 1 << 17  # chunks
_BEFORE, _AFTER = '*_~`".,;:?([-', '*_~`".,;:?)]-!'  # mean nothing at the edges of a chunk; a "!" before letters may be an i
_RUN = re.compile(r"'?[^\W_]+")
_BEFORE_MARK = re.compile(r"[^\W_]+(?=['+#])")


def may_say(text: str, target_word: str) -> bool:
    """Tell whether ``text`` may say the target, openly or not."""
    wanted, openly = _wanted(target_word)
    if not wanted:
        return True
    hints, letters = _glance(text)
    if "111" in letters:
        return True
    if all(map(wanted.isdisjoint, hints)):
        return False
    found = frozenset[str]().union(*hints)
    forms = whole_forms(target_word)
    return not openly.isdisjoint(found) or any(form.removeprefix(left) in found for left in wanted & found for form in forms)


def may_guess(text: str) -> bool:
    """Tell whether ``text`` may announce a guess."""
    return "w" in _glance(text)[1]


@lru_cache(maxsize=4096)
def _wanted(target_word: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the hints that may call for a closer look, and those of them that do so openly.

    The others are beginnings of forms, which do so when the rest is there too. Nothing when every utterance needs a closer look.
    """
    target, forms = target_of(target_word), whole_forms(target_word)
    if target.literal or target.acronym or not all(map(str.isalnum, forms)):
        return frozenset(), frozenset()
    openly = forms.union((_UNCLEAR,), *target.words[:1])
    return openly.union(form[:at] for form in forms for at in range(2, len(form) - 1)), openly


@lru_cache(maxsize=8)
def _glance(text: str) -> tuple[tuple[frozenset[str], ...], str]:
    """Return the base forms of all that each chunk of ``text`` could say in any reading, and the letters of all chunks."""
    chunks = text.split()
    if not chunks:
        return (), ""
    hints, letters = zip(*map(_CHUNKS.__getitem__, chunks), strict=True)
    return hints, "".join(letters)


class _Chunks(dict[str, tuple[frozenset[str], str]]):
    """What ``_chunk`` found, remembered; emptied when full. Faster than ``lru_cache``."""

    def __missing__(self, chunk: str) -> tuple[frozenset[str], str]:
        if len(chunk) > _LONGEST:
            return _CANNOT_TELL
        if len(self) >= _REMEMBERED:
            self.clear()
        self[chunk] = found = _chunk(chunk)
        return found


_CHUNKS = _Chunks()


def _chunk(chunk: str) -> tuple[frozenset[str], str]:
    """Return what a chunk could say, and how its words may take part in spelling.

    The latter is "1" for a single letter and "0" for a longer word, those in the middle left out; "w" for one that holds "word", as every
    announcement of a guess does.
    """
    core = chunk.lstrip(_BEFORE).rstrip(_AFTER)
    if core.isascii() and core.isalpha():
        core = core.lower()
        return _word(core), "1" if len(core) == 1 else "w" if "word" in core else "0"
    masked = unmasked(chunk)
    readings = dict.fromkeys((*masked, *map(without_markup, masked)))
    if any(reading.rfind("<") > reading.rfind(">") for reading in readings):  # a tag that the next chunk may end
        return _CANNOT_TELL
    letters = _letters(readings)
    if any("word" in reading for reading in masked):
        letters = letters.replace("0", "w", 1) if "0" in letters else f"{letters}w"
    return frozenset().union(*map(_reading, readings)), letters


def _letters(readings: Iterable[str]) -> str:
    shapes = {"".join("1" if len(run) == 1 else "0" for run in _RUN.findall(reading)) for reading in readings}
    if len(shapes) > 1 and not all("0" in shape for shape in shapes):
        return "111"
    first, last = max(shape.partition("0")[0] for shape in shapes), max(shape.rpartition("0")[2] for shape in shapes)
    return f"{first}0{last}" if "0" in max(shapes, key=len) else first


def _reading(reading: str) -> set[str]:
    core = reading.lstrip(_BEFORE).rstrip(_AFTER)
    if core.isascii() and core.isalpha():
        return set(_word(core))
    words = words_of(reading)
    says = {word[::-1] for word in words}
    says.update(_BEFORE_MARK.findall(reading))
    return says.union(*map(word_bases, words), *map(word_bases, hidden_spellings(reading)))


@lru_cache(maxsize=1 << 16)
def _word(word: str) -> frozenset[str]:
    return word_bases(word) | {word[::-1]}
