"""Word lists: which words are valid, and which split a word belongs to."""

import hashlib
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from simplemma import is_known, lemmatize

from spag.core.errors import DataError
from spag.core.types import Split

MAX_LENGTH = 40
_HELD_OUT_IN = 10
_CAPITALISES_NOUNS = frozenset({"de"})
_UNPRINTABLE = frozenset({"Cc", "Zl", "Zp"})


@lru_cache(maxsize=65_536)  # a whole list is split again for every phase and plan
def split_of(word: str, language: str = "en") -> Split:
    """Return the split of ``word``: one lemma in ten is held out, by the SHA-256 of its lower-cased lemma.

    It depends on nothing else, so it is the same in every run and file, and forms of one word share it.
    """
    folded = word.strip().lower()
    lemma = _lemma(folded, language) if folded else ""  # simplemma refuses empty words, which only bad files have
    number = int.from_bytes(hashlib.sha256(lemma.encode()).digest()[:8], "big")
    return Split.HELD_OUT if number % _HELD_OUT_IN == 0 else Split.TRAIN


def _lemma(folded: str, language: str) -> str:
    """Return the lower-cased lemma of a word in lower case.

    In lower case a German noun may be a form of a verb (haus: hausen), so a noun in its base form takes precedence. The
    dictionary has ß and ss.
    """
    found = str(lemmatize(folded, lang=language))
    if language in _CAPITALISES_NOUNS and not folded.startswith(found.lower()):
        noun = folded.capitalize()
        found = noun if is_known(noun, lang=language) and lemmatize(noun, lang=language) == noun else found
    return found.lower() if language == "en" else found.lower().replace("ß", "ss")


def parse_words(lines: Iterable[str], source: str) -> list[str]:
    """Return the words of a file, one per line, in order; blank lines and repetitions, in any case, are skipped.

    There are no comments: ``C#`` is a word. Raises ``DataError`` as ``source:LINE: ...`` for a line that cannot be a
    target word.
    """
    words: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not (word := _tidied(line)):
            continue
        if fault := _fault(word):
            raise DataError(f"{source}:{number}: {fault}; write one word per line")
        words.setdefault(word.casefold(), word)
    return list(words.values())


def typed_word(text: str, what: str) -> str:
    """Return the word that a person typed; ``what`` is what errors call it. Raises ``DataError``."""
    word = _tidied(text)
    if fault := _fault(word) if word else f"your {what} is empty":
        raise DataError(f"{fault}; type another {what}")
    return word


def _tidied(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip().removeprefix("\ufeff").strip())


def _fault(word: str) -> str | None:
    shown = ascii(word[:MAX_LENGTH])
    if any(unicodedata.category(character) in _UNPRINTABLE for character in word):
        return f"{shown} contains a control character"
    if len(word) > MAX_LENGTH:
        return f"{shown}... has {len(word)} characters; a target word has at most {MAX_LENGTH}"
    if not any(character.isalnum() for character in word):
        return f"{shown} has no letter or digit"
    return None
