"""What can be seen of an utterance at a glance, so that nearly all of them need no closer look.

Strict judging is slow where it must be careful: markup, look-alike letters, inflections, spelling out. But an utterance is a sequence of
chunks with space between them, and chunks come again and again. So each is looked at closely once, and what it could possibly say is
remembered; a glance at an utterance then puts that together. It errs on one side only: ``may_say`` and ``may_guess`` are false only where
``find_form``, ``find_evasion`` and ``find_guess`` find nothing, which ``tests/game/test_glance.py`` checks on hostile texts.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import combinations

from spag.games.taboo.judge.evasions import hidden_spellings, joined_forms, single_letters, spellings_of, whole_forms
from spag.games.taboo.judge.folding import unmasked, without_markup
from spag.games.taboo.judge.matching import target_of, word_bases, words_of

# What was seen of a chunk: the hints are the base forms of all that it could say, the letters how its words may take part in spelling.
Hints = frozenset[str]
Seen = tuple[Hints, str]

# A hint that begins with _HIDDEN is letters that may hide a word, or the first of them alone: few have the target's initial, so base forms
# wait. On its own it says that a chunk says more together with its neighbours than alone, or is too long to remember.
_HIDDEN = "\0"
_UNCLEAR = frozenset((_HIDDEN,))
# A single letter stands for itself, a longer word for one of the first two of these; readings of a chunk may differ in their letters.
_WORD, _ANNOUNCING, _ANY_LETTER = " ", "!", "?"  # every announcement of a guess holds "word"
_WORDS, _SPELLING = re.compile("[ !]"), re.compile("[^ !]{3,}")  # two letters with a space between them spell nothing
_MOST_LETTERS = 8
_CANNOT_TELL = (_UNCLEAR, _ANNOUNCING)
_LONGEST = 64
_REMEMBERED = 1 << 16  # chunks, and as many from before
# These mean nothing at the edges of a chunk; a "!" before letters may be an i.
_BEFORE, _AFTER = "*_~`\".,;:?([-'“‘…—", "*_~`\".,;:?)]-!'”’…—\u200b"
_RUN = re.compile(r"'?[^\W_]+")
_ODD = re.compile(r"[013-9@$|€+#]|!(?=[^\W_])")  # may be part of a word
_BEFORE_MARK = re.compile(r"[^\W_]+(?=['+#])")


def may_say(text: str, target_word: str) -> bool:
    """Tell whether ``text`` may say the target, openly or not."""
    wanted, openly = _wanted(target_word)
    if not wanted:
        return True
    hints, letters = _glance(text)
    spellings = _SPELLING.findall(letters)
    if spellings:
        hints = (*hints, *map(_spelled, spellings))
    if all(map(wanted.isdisjoint, hints)):
        return False
    found = frozenset[str]().union(*hints)
    if not openly.isdisjoint(found):
        return True
    forms, begun = whole_forms(target_word), wanted & found
    if any(form.removeprefix(left) in found for left in begun for form in forms):
        return True
    hidden = any(left.startswith(_HIDDEN) for left in begun)
    return hidden and any(hint.startswith(_HIDDEN) and joined_forms(hint[1:], target_word) for hint in found)


def may_guess(text: str) -> bool:
    """Tell whether ``text`` may announce a guess."""
    return _ANNOUNCING in _glance(text)[1]


@lru_cache(maxsize=4096)
def _wanted(target_word: str) -> tuple[Hints, Hints]:
    """Return the hints that may call for a closer look, and those of them that do so openly.

    The others are beginnings of forms, which do so when the rest is there too. Nothing when every utterance needs a closer look.
    """
    target, forms = target_of(target_word), whole_forms(target_word)
    if target.literal or target.acronym or not all(map(str.isalnum, forms)):
        return frozenset(), frozenset()
    openly = forms.union(_UNCLEAR, *target.words[:1])
    halves = [form[:at] for form in forms for at in range(2, len(form) - 1)]
    return openly.union(halves, [_HIDDEN + form[0] for form in forms]), openly


@lru_cache(maxsize=8)
def _glance(text: str) -> tuple[Sequence[Hints], str]:
    """Return what was seen of all chunks of ``text``."""
    seen = list(map(_CHUNKS.__getitem__, text.split()))
    return [hints for hints, _ in seen], "".join([letters for _, letters in seen])


class _Chunks(dict[str, Seen]):
    """What ``_chunk`` saw, remembered. When full, what is not asked for again before it is full once more is forgotten.

    Most chunks never come again, and the fewer are kept, the nearer they lie. Faster than ``lru_cache``.
    """

    def __init__(self) -> None:
        self._before: dict[str, Seen] = {}

    def __missing__(self, chunk: str) -> Seen:
        if len(chunk) > _LONGEST:
            return _CANNOT_TELL
        if len(self) >= _REMEMBERED:
            self._before = dict(self)
            self.clear()
        self[chunk] = seen = self._before.get(chunk) or _chunk(chunk)
        return seen


_CHUNKS = _Chunks()


def _chunk(chunk: str) -> Seen:
    """Look at a chunk closely, in all its readings."""
    core = chunk.lstrip(_BEFORE).rstrip(_AFTER)
    if core.isascii() and core.isalpha():
        return _word(core.lower())
    masked = unmasked(chunk)
    readings = dict.fromkeys((*masked, *map(without_markup, masked)))
    if any(reading.rfind("<") > reading.rfind(">") for reading in readings):  # a tag that the next chunk may end
        return _CANNOT_TELL
    seen = list(map(_reading, readings))
    if len(seen) == 1:
        return seen[0]
    return frozenset().union(*(hints for hints, _ in seen)), _common({letters for _, letters in seen})


def _reading(reading: str) -> Seen:
    runs = _RUN.findall(reading)
    odd = _ODD.search(reading) is not None
    if len(runs) == 1 and not odd:
        return _word(runs[0].lstrip("'"))
    plain = not odd and "'" not in reading
    hints = set().union(*[_word(word)[0] for word in (runs if plain else words_of(reading))])
    if not plain:
        hints.update(_BEFORE_MARK.findall(reading))
    for hidden in hidden_spellings(reading):
        hints.update((_HIDDEN + hidden[0], _HIDDEN + hidden))
    letters = "".join([run if len(run) == 1 else _ANNOUNCING if "word" in run else _WORD for run in runs])
    first, *rest = _WORDS.split(letters)
    if len(letters) - len(rest) > 1:
        hints.update(*map(_spelled, single_letters(reading)))
    if rest:  # letters in the middle are in the hints
        letters = f"{first}{_ANNOUNCING if _ANNOUNCING in letters else _WORD}{rest[-1]}"
    return frozenset(hints), letters


def _common(letters: Collection[str]) -> str:
    """Return what stands for the ``letters`` of all readings of a chunk."""
    if len(letters) == 1:
        return next(iter(letters))
    word = _ANNOUNCING if any(_ANNOUNCING in each for each in letters) else _WORD
    parts = [_WORDS.split(each) for each in letters]
    if not all(len(each) == 2 for each in parts):
        return _ANY_LETTER * 3 + word if word == _ANNOUNCING else _ANY_LETTER * max(1, *map(len, letters))
    before, after = (max(side, key=len) for side in zip(*parts, strict=True))
    if not all(before.startswith(first) and after.endswith(last) for first, last in parts):
        before, after = _ANY_LETTER * len(before), _ANY_LETTER * len(after)
    return f"{before}{word}{after}"


@lru_cache(maxsize=4096)
def _spelled(letters: str) -> Hints:
    """Return the base forms of all that single letters in a row could spell."""
    if len(letters) > _MOST_LETTERS or _ANY_LETTER in letters:
        return _UNCLEAR
    parts = (spelling[start:end] for spelling in spellings_of(letters) for start, end in combinations(range(len(spelling) + 1), 2))
    return frozenset().union(*(word_bases(part) for part in parts if len(part) > 1))


@lru_cache(maxsize=1 << 16)
def _word(word: str) -> Seen:
    letters = word if len(word) == 1 else _ANNOUNCING if "word" in word else _WORD
    return word_bases(word) | {word[::-1]}, letters
