"""Strict word matching: whether a text says a word, in any inflection, and where.

The paper's judge looks for ``w``, ``w+ing``, ``w+ed`` and the plural as substrings, so ``cat`` fires in ``category``
and ``mice`` passes for ``mouse``. Here words are compared as words, by their sets of base forms: the lemma of the
``simplemma`` dictionaries, the few rules and irregular forms that it lacks, and the word itself. Derived words
(``teacher`` of ``teach``) and compounds in one word (``sunflower`` of ``sun``) are other words; the parts of a
hyphenated or spaced compound are words of their own.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise

from spag.text.english import ENGLISH, NOUNS_TOO
from spag.text.folding import fold, readings, unmasked
from spag.text.lexicon import LONGEST_WORD, Lexicon

TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*(?:\+\+|[+#](?![\w+#]))?")
_QUOTED = 60  # characters of an utterance quoted in a reason
_WORDS_AFTER = 4  # words compared to tell one of several places from the others
_GLUE = frozenset(" \t\n\r-_'\"*`/")
# Contexts in which a noun is not the past tense of the verb: a bit, a bit of it. Wound is a verb only in "wound up"
# etc.
_NOUN_AFTER = re.compile(
    r"\b(?:an?|the|this|my|your|his|her|its|our|their|every|each|no|some|any|another|little|tiny|small|good|single|"
    r"last|drill|\d+)[ -]$"
)
_NOUN_BEFORE = re.compile(r"[ -](?:of|by|rate|depth|more|less)\b")
_WOUND_UP = re.compile(r" (?:up|down|around|round|through|along|back|tight|tightly|its way|their way)\b")


@dataclass(frozen=True, slots=True)
class Target:
    """A target word prepared for matching.

    ``words`` holds the base forms of each word of ``word``; ``whole`` those of all of them written together (empty for
    an acronym: ``U.S.`` is not ``us``); ``glue`` is what may separate its words; ``literal`` is set for a target that
    is not a sequence of spaced words (Chinese, Thai, emoji) and is matched as a substring; ``acronym`` is the capital
    letters of ``U.S.``-like targets.
    """

    word: str
    words: tuple[frozenset[str], ...]
    whole: frozenset[str]
    glue: frozenset[str]
    literal: str
    acronym: str
    lexicon: Lexicon

    def letters(self) -> frozenset[str]:
        """Return the forms of the whole target written as one word; none for a target matched as a substring."""
        return self.whole or frozenset({self.acronym.casefold()} if self.acronym else ())

    def is_form(self, letters: str) -> bool:
        """Tell whether ``letters``, written together, are a form of the whole target."""
        return 1 < len(letters) <= LONGEST_WORD and not self.letters().isdisjoint(self.lexicon.bases(letters))


@lru_cache(maxsize=4096)
def target_of(target_word: str, lexicon: Lexicon = ENGLISH) -> Target:
    """Return ``target_word`` prepared for matching. A target without any visible character matches nothing."""
    folded = fold(target_word, lexicon.letters).strip()
    tokens = TOKEN.findall(folded)
    marks = frozenset(char for char in folded if not char.isalnum())
    if not tokens or (not folded.isascii() and any(map(_unspaced, folded))):
        return Target(target_word, (), frozenset(), marks, folded, "", lexicon)
    acronym = "".join(tokens) if len(tokens) > 1 and all(len(token) == 1 for token in tokens) else ""
    words = tuple(lexicon.target_bases(token) for token in tokens)
    joined = "".join(tokens).replace("'", "")
    if acronym:
        whole = frozenset[str]()
    elif len(tokens) > 1:
        whole = frozenset((joined,))
    else:
        whole = words[0] if lexicon.is_known(joined) else words[0] | {joined}  # I'll is not ill
    return Target(target_word, words, whole, _GLUE | marks, "", acronym.upper(), lexicon)


def _unspaced(char: str) -> bool:
    """Scripts without spaces, with attached particles, or with vowel signs, which ``\\w`` does not match."""
    if char.isascii():
        return False
    scripts = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR")
    return unicodedata.category(char)[0] == "M" or unicodedata.name(char, "").startswith(scripts)


def find_form(text: str, target_word: str, lexicon: Lexicon = ENGLISH) -> str | None:
    """Return the first form of ``target_word`` said in ``text``, folded, or ``None``."""
    target = target_of(target_word, lexicon)
    for reading in readings(text, lexicon.letters):
        if (found := _find_in(reading, target)) is not None:
            return found
    if not target.acronym or not any(map(str.islower, text)):  # GIVE US BREAD names no country
        return None
    return target.acronym if re.search(rf"(?<!\w){re.escape(target.acronym)}(?!\w)", text) else None


@lru_cache(maxsize=8)  # one utterance is searched several times
def words_of(reading: str) -> tuple[str, ...]:
    """Return the distinct words of a folded reading, in order."""
    return tuple(dict.fromkeys(TOKEN.findall(reading)))


def _find_in(reading: str, target: Target) -> str | None:
    if target.literal:
        return target.literal if target.literal in reading else None
    whole, bases = target.whole, target.lexicon.bases
    said = (word for word in words_of(reading) if not whole.isdisjoint(bases(word)))
    found = next((word for word in said if word not in NOUNS_TOO or word in whole or _is_verb(word, reading)), None)
    return found if found is not None or len(target.words) < 2 else _find_phrase(reading, target)


def _is_verb(word: str, reading: str) -> bool:
    """Tell whether a past tense that is also a noun is a verb anywhere in ``reading``."""
    places = re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", reading)
    if word == "wound":
        return any(_WOUND_UP.match(reading, place.end()) for place in places)
    return not all(
        _NOUN_AFTER.search(reading[max(0, place.start() - 12) : place.start()])
        or _NOUN_BEFORE.match(reading, place.end())
        for place in places
    )


def _find_phrase(reading: str, target: Target) -> str | None:
    tokens = list(TOKEN.finditer(reading))
    size = len(target.words)
    for start in range(len(tokens) - size + 1):
        window = tokens[start : start + size]
        if not _is_phrase(reading, window, target):
            continue
        after = tokens[start + size] if start + size < len(tokens) else None
        if target.acronym and after and len(after.group()) == 1 and reading[window[-1].end() : after.start()] == ".":
            continue  # U.S.A. is not U.S.
        return reading[window[0].start() : window[-1].end()]
    return None


def _is_phrase(reading: str, window: list[re.Match[str]], target: Target) -> bool:
    words = zip(window, target.words, strict=True)
    if any(bases.isdisjoint(target.lexicon.bases(token.group())) for token, bases in words):
        return False
    gaps = (reading[left.end() : right.start()] for left, right in pairwise(window))
    return all(len(gap) <= 8 and target.glue.issuperset(gap) for gap in gaps)


def phrase_end(text: str, target: Target) -> int | None:
    """Return where a form of the target that opens the folded ``text`` ends, ``None`` if another word opens it."""
    if target.literal:
        return len(target.literal) if text.startswith(target.literal) else None
    window = list(islice(TOKEN.finditer(text), max(1, len(target.words))))
    start = len(text) - len(text.lstrip())
    if not window or window[0].start() != start:
        return None
    if not target.whole.isdisjoint(target.lexicon.bases(window[0].group())):
        return window[0].end()
    if len(window) == len(target.words) and _is_phrase(text, window, target):
        return window[-1].end()
    return start + len(target.acronym) if target.acronym and text.startswith(target.acronym.casefold(), start) else None


def find_span(text: str, piece: str, after: str | None = None) -> tuple[int, int] | None:
    """Return the position of the folded ``piece`` in ``text``: (start, end) in characters.

    Whole words are preferred to parts of words; among several places, the one whose line continues with ``after``.
    """
    pattern = r"[\s\"]+".join(r"[*_~`]*".join(map(re.escape, word)) for word in fold(piece).split())
    readings = (fold, lambda char: unmasked(char)[:2][-1], lambda char: unmasked(char)[-1])  # as is, by look, by sound
    for folded in readings if pattern else ():
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
