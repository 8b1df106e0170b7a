"""Saying a word without writing it: spelled out, broken up, in digits, or backwards.

The paper forbids the attacker to say the target but its judge sees plain substrings only; players that are rewarded for winning soon learn
to spell. Invisible characters, look-alike letters and markup are dealt with in ``folding.py``. Left out, because ordinary prose would fire:
acrostics, rhymes, translations, and a word split into two real words ("car pet").

Nearly every utterance does none of this, so each way has a cheap test that must pass before its expensive one is made.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from spag.games.taboo.judge.folding import readings
from spag.games.taboo.judge.matching import is_known, target_of, word_bases, words_of

# Single letters with little between them: r-i-v-e-r, "r, i, v, e, r", R.I.V.E.R.; an apostrophe ends a run, for I'd spells nothing.
_SPELLED = re.compile(r"(?<![^\W_])(?<!')[^\W_](?:(?:[^\w']|_){1,4}[^\W_](?![^\W_]))+")
_MAY_BE_SPELLED = re.compile(r"[\W_][^\W_][\W_]{1,4}[^\W_](?![^\W_])")
_BROKEN = re.compile(r"(?<![^\W_])[^\W_]++(?:[-.*_~|/\\+=]++[^\W_]++)+")
_DIGITS_FOR_LETTERS = [str.maketrans("013457896@$!|€", one) for one in ("oieastbgbaslll", "oleastbggasiie", "oieastbggasiie")]
_DIGITS_OF = {
    letter: {chr(code) for table in _DIGITS_FOR_LETTERS for code, other in table.items() if chr(other) == letter} for letter in "abegilost"
}
_LEET_MARK = re.compile(r"[013-9@$|€!](?:(?<!!)|(?=[^\W_]))")
_EDGES = ".,;:?\"'()[]{}*_~`"
_NUMBER = re.compile(r"[\W\d]+(?:st|nd|rd|th|am|pm|s|k|d)?")
_LONGEST = 64


def find_evasion(text: str, target_word: str) -> str | None:
    """Return the first piece of ``text`` that says the target without writing it as a word, or ``None``."""
    if not target_of(target_word).words:
        return None
    return next((piece for reading in readings(text) for piece in _evasions(reading, target_word)), None)


@dataclass(frozen=True, slots=True)
class Clues:
    """What some evasions of a target must have: a word that begins with one of ``initials``, or in digits with one of ``leet_initials``;
    one of the words in ``backwards``; one of the pairs in ``halves``. ``forms`` are those of the whole target."""

    forms: frozenset[str]
    initials: tuple[str, ...]
    leet_initials: str
    backwards: frozenset[str]
    halves: tuple[tuple[str, str], ...]


@lru_cache(maxsize=4096)
def clues_of(target_word: str) -> Clues:
    """Return what to look for before looking closely."""
    forms = whole_forms(target_word)
    initials = frozenset(form[0] for form in forms)
    digits = frozenset().union(*(_DIGITS_OF.get(letter, ()) for letter in initials))
    long = [form for form in forms if len(form) >= 4]
    return Clues(
        forms=forms,
        initials=tuple(sorted(initials)),
        leet_initials="".join(sorted(initials | digits)),
        backwards=frozenset(form[::-1] for form in long if form != form[::-1]),
        halves=tuple((form[:at], form[at:]) for form in long for at in range(2, len(form) - 1)),
    )


def _evasions(reading: str, target_word: str) -> Iterator[str]:
    clues = clues_of(target_word)
    words = words_of(reading)
    if list(map(len, words)).count(1) > 1 and _MAY_BE_SPELLED.search(f" {reading}"):
        runs = (match.group() for match in _SPELLED.finditer(reading))
        yield from (run[:_LONGEST] for run in runs if _is_spelled(run, target_word))
    if clues.initials and _may_be_broken(clues.initials).search(reading):
        pieces = (piece for piece in _BROKEN.findall(reading) if piece.startswith(clues.initials) and len(piece) <= _LONGEST)
        yield from (piece for piece in pieces if _is_broken(piece, target_word))
    if clues.initials and _may_be_leet(clues.leet_initials).search(reading):
        chunks = (chunk for chunk in reading.split() if len(chunk) <= _LONGEST and _LEET_MARK.search(chunk))
        yield from (chunk for chunk in chunks if _is_leet(chunk, clues.initials, target_word))
    if not clues.backwards.isdisjoint(words):  # "drawer" is a word, not a reward said backwards
        yield from (word for word in words if word in clues.backwards and not is_known(word))
    if any(f"{left} {right}" in reading for left, right in clues.halves):
        yield from _split_in_two(reading, words, clues.forms)


@lru_cache(maxsize=1024)
def _may_be_broken(initials: tuple[str, ...]) -> re.Pattern[str]:
    first = f"[{re.escape(''.join(initials))}]"
    return re.compile(rf"{first}(?<![^\W_]{first})[^\W_]*+[-.*_~|/\\+=]++[^\W_]")


@lru_cache(maxsize=1024)
def _may_be_leet(initials: str) -> re.Pattern[str]:
    first, edges, marks = f"[{re.escape(initials)}]", re.escape(_EDGES), r"013-9@$|€!"
    return re.compile(rf"{first}(?<![^\s{edges}]{first})(?:(?<=[{marks}])|[^\s{marks}]*+[{marks}])")


def _split_in_two(reading: str, words: tuple[str, ...], forms: frozenset[str]) -> Iterator[str]:
    """Yield "left right" where the two make a form, stand alone, and are not both words."""
    openings = tuple({form[:2] for form in forms if len(form) >= 4})
    for left in words:
        for form in forms if len(left) > 1 and left.startswith(openings) else ():
            right = form.removeprefix(left)
            if 1 < len(right) < len(form) and not (is_known(left) and is_known(right)):
                match = re.search(rf"(?<!\w){re.escape(left)} {re.escape(right)}(?!\w)", reading)
                if match:
                    yield match.group()
                    break


def joined_forms(joined: str, target_word: str) -> bool:
    """Tell whether letters written together are a form of the whole target."""
    if not 1 < len(joined) <= _LONGEST:
        return False
    return not whole_forms(target_word).isdisjoint(word_bases(joined))


@lru_cache(maxsize=4096)
def whole_forms(target_word: str) -> frozenset[str]:
    """The forms of the whole target written as one word; none for a target that is looked for as a substring."""
    target = target_of(target_word)
    if len(target.words) == 1:
        return target.words[0] | target.joined
    return target.joined or frozenset({target.acronym.casefold()} if target.acronym else ())


def _letters(piece: str) -> str:
    return "".join(filter(str.isalnum, piece))


def _is_spelled(run: str, target_word: str) -> bool:
    """Tell whether a run of single letters is a form of the target, or holds one of three letters or more."""
    letters = _letters(run)
    if len(letters) == 2 and any(char.isspace() for char in run):
        return False  # "o x" is a game, o-x an ox
    spellings = spellings_of(letters)
    if any(joined_forms(spelling, target_word) for spelling in spellings):
        return True
    return any(form in spelling for spelling in spellings for form in whole_forms(target_word) if len(form) >= 3)


def spellings_of(letters: str) -> tuple[str, ...]:
    """Return what single letters, some of them perhaps digits, may be read as."""
    return (letters,) if letters.isalpha() else (letters, *(letters.translate(table) for table in _DIGITS_FOR_LETTERS))


def _is_broken(piece: str, target_word: str) -> bool:
    letters = _letters(piece)
    return len(letters) >= 3 and joined_forms(letters, target_word)


def _is_leet(chunk: str, initials: tuple[str, ...], target_word: str) -> bool:
    spellings = _leet_spellings(chunk)
    return any(spelling.startswith(initials) and joined_forms(spelling, target_word) for spelling in spellings)


def _leet_spellings(chunk: str) -> list[str]:
    word = chunk.strip(_EDGES).rstrip("!|")
    if len(word) < 3 or not _LEET_MARK.search(word) or _NUMBER.fullmatch(word):
        return []
    if not word.translate(_DIGITS_FOR_LETTERS[0]).isalpha():  # and so in no other table, for all have the same marks
        return []
    return list({word.translate(table) for table in _DIGITS_FOR_LETTERS})


def hidden_spellings(reading: str) -> Iterator[str]:
    """Yield what broken pieces and digits of a folded reading without spaces spell, whatever the target."""
    yield from (_letters(piece) for piece in _BROKEN.findall(reading) if len(piece) <= _LONGEST)
    if _LEET_MARK.search(reading):
        for chunk in reading.split():
            if len(chunk) <= _LONGEST and _LEET_MARK.search(chunk):
                yield from _leet_spellings(chunk)


def single_letters(reading: str) -> Iterator[str]:
    """Yield the letters of each run of single letters in a folded reading."""
    return map(_letters, _SPELLED.findall(reading))
