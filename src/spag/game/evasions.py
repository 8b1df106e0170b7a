"""Saying a word without writing it: spelled out, broken up, in digits, or backwards.

The paper forbids the attacker to say the target but its judge sees plain substrings only; players that are rewarded for winning soon learn
to spell. Invisible characters, look-alike letters and markup are dealt with in ``folding.py``. Left out, because ordinary prose would fire:
acrostics, rhymes, translations, and a word split into two real words ("car pet").
"""

import re
from collections.abc import Iterator
from functools import lru_cache

import simplemma

from spag.game.folding import readings
from spag.game.matching import target_of, word_bases, words_of

# Single letters with little between them: r-i-v-e-r, "r, i, v, e, r", R.I.V.E.R.; an apostrophe ends a run, for I'd spells nothing.
_SPELLED = re.compile(r"(?<![^\W_])(?<!')[^\W_](?:(?:[^\w']|_){1,4}[^\W_](?![^\W_]))+")
_BROKEN = re.compile(r"[^\W_]++(?:[-.*_~|/\\+=]++[^\W_]++)+")
_INNER_MARK = re.compile(r"[-.*_~|/\\+=][^\W_]")
_DIGITS_FOR_LETTERS = [str.maketrans("013457896@$!|€", one) for one in ("oieastbgbaslll", "oleastbggasiie", "oieastbggasiie")]
_LEET_MARK = re.compile(r"[013-9@$|€]|![^\W_]")
_NUMBER = re.compile(r"[\W\d]+(?:st|nd|rd|th|am|pm|s|k|d)?")
_LONGEST = 64


def find_evasion(text: str, target_word: str) -> str | None:
    """Return the first piece of ``text`` that says the target without writing it as a word, or ``None``."""
    if not target_of(target_word).words:
        return None
    return next((piece for reading in readings(text) for piece in _evasions(reading, target_word)), None)


def _evasions(reading: str, target_word: str) -> Iterator[str]:
    forms = _whole_forms(target_word)
    initials = tuple({form[0] for form in forms})
    words = words_of(reading)
    if [len(word) for word in words].count(1) > 1:
        runs = (match.group() for match in _SPELLED.finditer(reading))
        yield from (run[:_LONGEST] for run in runs if _is_spelled(run, target_word))
    if _INNER_MARK.search(reading):
        pieces = (piece for piece in _BROKEN.findall(reading) if piece.startswith(initials) and len(piece) <= _LONGEST)
        yield from (piece for piece in pieces if _is_broken(piece, target_word))
    if _LEET_MARK.search(reading):
        chunks = (chunk for chunk in reading.split() if len(chunk) <= _LONGEST and _LEET_MARK.search(chunk))
        yield from (chunk for chunk in chunks if _is_leet(chunk, initials, target_word))
    backwards = _backwards(target_word)
    if not backwards.isdisjoint(words):
        yield from (word for word in words if word in backwards)
    openings = tuple({form[:2] for form in forms if len(form) >= 4})
    halves = (_halves(word, forms, reading) for word in words if len(word) > 1 and word.startswith(openings))
    yield from filter(None, halves)


@lru_cache(maxsize=4096)
def _backwards(target_word: str) -> frozenset[str]:
    """The target's forms read backwards, where that is no other word (``drawer``) or the form itself (``level``)."""
    long = (form for form in _whole_forms(target_word) if len(form) >= 4)
    return frozenset(form[::-1] for form in long if form != form[::-1] and not _is_word(form[::-1]))


def _halves(left: str, whole: frozenset[str], reading: str) -> str | None:
    for form in whole:
        right = form.removeprefix(left)
        if 1 < len(right) < len(form) and not (_is_word(left) and _is_word(right)):
            match = re.search(rf"(?<!\w){re.escape(left)} {re.escape(right)}(?!\w)", reading)
            if match:
                return match.group()
    return None


def joined_forms(joined: str, target_word: str) -> bool:
    """Tell whether letters written together are a form of the whole target."""
    if not 1 < len(joined) <= _LONGEST:
        return False
    return not _whole_forms(target_word).isdisjoint(word_bases(joined))


@lru_cache(maxsize=4096)
def _whole_forms(target_word: str) -> frozenset[str]:
    """The forms of the whole target written as one word; none for a target that is looked for as a substring."""
    target = target_of(target_word)
    if len(target.words) == 1:
        return target.words[0] | target.joined
    return target.joined or frozenset({target.acronym.casefold()} if target.acronym else ())


def _is_word(text: str) -> bool:
    return bool(simplemma.is_known(text, lang="en"))


def _letters(piece: str) -> str:
    return "".join(filter(str.isalnum, piece))


def _is_spelled(run: str, target_word: str) -> bool:
    """Tell whether a run of single letters is a form of the target, or holds one of three letters or more."""
    letters = _letters(run)
    if len(letters) == 2 and any(char.isspace() for char in run):
        return False  # "o x" is a game, o-x an ox
    spellings = (letters,) if letters.isalpha() else (letters, *(letters.translate(table) for table in _DIGITS_FOR_LETTERS))
    if any(joined_forms(spelling, target_word) for spelling in spellings):
        return True
    return any(form in spelling for spelling in spellings for form in _whole_forms(target_word) if len(form) >= 3)


def _is_broken(piece: str, target_word: str) -> bool:
    letters = _letters(piece)
    return len(letters) >= 3 and joined_forms(letters, target_word)


def _is_leet(chunk: str, initials: tuple[str, ...], target_word: str) -> bool:
    word = chunk.strip(".,;:?\"'()[]{}*_~`").rstrip("!|")
    if len(word) < 3 or not _LEET_MARK.search(word) or _NUMBER.fullmatch(word):
        return False
    spellings = {word.translate(table) for table in _DIGITS_FOR_LETTERS}
    return any(spelling.startswith(initials) and spelling.isalpha() and joined_forms(spelling, target_word) for spelling in spellings)
