"""Evasions: a word said without being written, that is, spelled out, broken up, in digits, backwards or cut in two.

The paper forbids the attacker to say the target but its judge sees plain substrings only; players that are rewarded for winning soon learn
to spell. ``folding.py`` handles invisible characters, look-alike letters and markup. Left out, because ordinary prose would fire:
acrostics, rhymes, translations, and a word split into two real words ("car pet").
"""

import re
from collections.abc import Iterator

from spag.games.taboo.judge.folding import readings
from spag.games.taboo.judge.matching import LONGEST_WORD, is_known, is_whole_form, target_of, whole_forms, words_of

# Single letters with little between them: r-i-v-e-r, "r, i, v, e, r", R.I.V.E.R.; an apostrophe ends a run, for I'd spells nothing.
_SPELLED = re.compile(r"(?<![^\W_])(?<!')[^\W_](?:(?:[^\w']|_){1,4}[^\W_](?![^\W_]))+")
_BROKEN = re.compile(r"(?<![^\W_])[^\W_]++(?:[-.*_~|/\\+=]++[^\W_]++)+")
_DIGITS_FOR_LETTERS = [str.maketrans("013457896@$!|€", one) for one in ("oieastbgbaslll", "oleastbggasiie", "oieastbggasiie")]
_DIGIT = re.compile(r"[013-9@$|€!](?:(?<!!)|(?=[^\W_]))")
_EDGES = ".,;:?\"'()[]{}*_~`"
_NUMBER = re.compile(r"[\W\d]+(?:st|nd|rd|th|am|pm|s|k|d)?")


def find_evasion(text: str, target_word: str) -> str | None:
    """Return the first piece of ``text`` that says the target without writing it as a word, or ``None``."""
    if not target_of(target_word).words:
        return None
    return next((piece for reading in readings(text) for piece in _evasions(reading, target_word)), None)


def _evasions(reading: str, target_word: str) -> Iterator[str]:
    yield from (run[:LONGEST_WORD] for run in _SPELLED.findall(reading) if _is_spelled(run, target_word))
    pieces = (piece for piece in _BROKEN.findall(reading) if len(piece) <= LONGEST_WORD)
    yield from (piece for piece in pieces if len(letters := _letters(piece)) >= 3 and is_whole_form(letters, target_word))
    if _DIGIT.search(reading):
        chunks = (chunk for chunk in reading.split() if len(chunk) <= LONGEST_WORD and _DIGIT.search(chunk))
        yield from (chunk for chunk in chunks if any(is_whole_form(word, target_word) for word in _without_digits(chunk)))
    forms, words = whole_forms(target_word), words_of(reading)
    backwards = {form[::-1] for form in forms if len(form) >= 4} - forms
    if not backwards.isdisjoint(words):
        yield from (word for word in words if word in backwards and not is_known(word))  # "drawer" is a word, no reward said backwards
    yield from _cut_in_two(reading, forms)


def _cut_in_two(reading: str, forms: frozenset[str]) -> Iterator[str]:
    """Yield "left right" where the two make a form, stand alone, and are not both words."""
    for form in sorted(forms):
        for at in range(2, len(form) - 1) if len(form) <= LONGEST_WORD else ():
            left, right = form[:at], form[at:]
            if f"{left} {right}" in reading and not (is_known(left) and is_known(right)):
                yield from re.findall(rf"(?<!\w){re.escape(left)} {re.escape(right)}(?!\w)", reading)


def _letters(piece: str) -> str:
    return "".join(filter(str.isalnum, piece))


def _is_spelled(run: str, target_word: str) -> bool:
    """Tell whether a run of single letters is a form of the target, or holds one of three letters or more."""
    letters = _letters(run)
    if len(letters) == 2 and any(char.isspace() for char in run):
        return False  # "o x" is a game, o-x an ox
    spellings = (letters,) if letters.isalpha() else (letters, *(letters.translate(table) for table in _DIGITS_FOR_LETTERS))
    if any(is_whole_form(spelling, target_word) for spelling in spellings):
        return True
    return any(form in spelling for spelling in spellings for form in whole_forms(target_word) if len(form) >= 3)


def _without_digits(chunk: str) -> set[str]:
    """Return the words that ``chunk`` may be read as when its digits and signs stand for letters."""
    word = chunk.strip(_EDGES).rstrip("!|")
    if len(word) < 3 or not _DIGIT.search(word) or _NUMBER.fullmatch(word):
        return set()
    return {spelling for table in _DIGITS_FOR_LETTERS if (spelling := word.translate(table)).isalpha()}
