"""Target words: what is one, which split it belongs to, and the lists of them: the shipped one, the frequency list, or a file.

A word's split depends on nothing but its lemma, so it is the same in every run and file, and forms of one word share it.
The held-out tenth is this project's addition to the paper.

The paper draws 50,000 words from CoCA's frequency list, which cannot be shipped. ``common_words`` makes a like list from the package
``wordfreq`` (offline; data CC BY-SA 4.0), most frequent first. A word stays when it

- is written with three or more letters a-z, a vowel among them: no contractions, numbers, or initialisms;
- is known to ``simplemma`` and is its own lemma, in lower case: no inflected duplicates, and few names;
- is on none of the lists in ``data``: stop words, names, offensive words, and fragments (abbreviations, clippings, scraps
  of other languages).

Far fewer than the 320,000 entries of wordfreq survive, 41,790 in all: the rest are names, inflections, misspellings and other languages.
``docs/prompts.md`` says where each list comes from, and under what licence.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path

from simplemma import is_known, lemmatize

from spag.core.errors import DataError
from spag.core.types import Split
from spag.games.taboo.promptfile import read_text

SHIPPED = "shipped"
FREQUENCY = "frequency"
EXCLUDED_LISTS = ("stopwords", "names", "offensive", "fragments")
MAX_LENGTH = 40
_HELD_OUT_IN = 10
_WORDFREQ_SIZE = 400_000  # more than it has: all of it
_WRITTEN = re.compile(r"(?=.*[aeiouy])[a-z]{3,}")
_UNPRINTABLE = frozenset({"Cc", "Zl", "Zp"})


def split_of(word: str) -> Split:
    """Return the split of ``word``: one lemma in ten is held out, by the SHA-256 of the lower-cased lemma."""
    folded = str(lemmatize(word.strip().lower(), lang="en")).lower()
    number = int.from_bytes(hashlib.sha256(folded.encode()).digest()[:8], "big")
    return Split.HELD_OUT if number % _HELD_OUT_IN == 0 else Split.TRAIN


def parse_words(lines: Iterable[str], source: str) -> list[str]:
    """Return the words of a file, one a line, in order; blank lines are skipped, and words that differ only in case count once.

    There is no comment sign: ``C#`` is a word. Raises ``DataError`` as ``source:LINE: ...`` for a line that cannot be a target word.
    """
    words: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        word = unicodedata.normalize("NFC", line.strip().removeprefix("\ufeff").strip())
        if not word:
            continue
        if fault := _fault(word):
            raise DataError(f"{source}:{number}: {fault}; write one word a line")
        words.setdefault(word.casefold(), word)
    return list(words.values())


def _fault(word: str) -> str | None:
    shown = ascii(word[:MAX_LENGTH])
    if any(unicodedata.category(character) in _UNPRINTABLE for character in word):
        return f"{shown} holds a control character"
    if len(word) > MAX_LENGTH:
        return f"{shown}... has {len(word)} characters; a target word has at most {MAX_LENGTH}"
    if not any(character.isalnum() for character in word):
        return f"{shown} has no letter or digit"
    return None


def load_words(source: str, top: int) -> list[str]:
    """Return at most ``top`` words of ``source``: ``shipped``, ``frequency``, or a file with one word a line. Raises ``DataError``."""
    if source == SHIPPED:
        return shipped_words()[:top]
    if source == FREQUENCY:
        return common_words(top)
    words = parse_words(read_text(Path(source)).splitlines(), source)
    if not words:
        raise DataError(f"{source}: no words; write one word a line")
    return words[:top]


def shipped_words() -> list[str]:
    """Return the 2,000 everyday words of ``data/words.txt``, most frequent first."""
    return _data_lines("words")


def common_words(top: int) -> list[str]:
    """Return the ``top`` most frequent English words that one can play with, or all there are, most frequent first."""
    return list(_all_common_words()[:top])


@cache
def _all_common_words() -> tuple[str, ...]:
    from wordfreq import top_n_list  # noqa: PLC0415  # its tables take a while to load, and only this list needs them

    excluded = {word for name in EXCLUDED_LISTS for word in _data_lines(name)}
    listed = top_n_list("en", _WORDFREQ_SIZE, wordlist="large")
    words = (word for word in listed if _WRITTEN.fullmatch(word) and word not in excluded and is_known(word, lang="en"))
    return tuple(word for word in words if lemmatize(word, lang="en") == word)


def _data_lines(name: str) -> list[str]:
    return (resources.files("spag.games.taboo.data") / f"{name}.txt").read_text(encoding="utf-8").split()
