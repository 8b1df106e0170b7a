"""Lists of target words: the shipped one, the frequency list, or a file.

The paper draws 50,000 words from CoCA's frequency list, which cannot be shipped. ``common_words`` makes a like list from the package
``wordfreq`` (offline; data CC BY-SA 4.0), most frequent first. A word stays when it

- is written with three or more letters a-z, a vowel among them: no contractions, numbers, or initialisms;
- is known to ``simplemma`` and is its own lemma, in lower case: no inflected duplicates, and few names;
- is on none of the lists in ``spag/data``: stop words, names, offensive words, and fragments (abbreviations, clippings, scraps
  of other languages).

Far fewer than the 320,000 entries of wordfreq survive, 41,790 in all: the rest are names, inflections, misspellings and other languages.
``docs/prompts.md`` says where each list comes from, and under what licence.
"""

import re
from functools import cache
from importlib import resources
from pathlib import Path

from simplemma import is_known, lemmatize

from spag.core.errors import DataError
from spag.games.taboo.promptfile import read_text
from spag.games.taboo.words import parse_words

SHIPPED = "shipped"
FREQUENCY = "frequency"
EXCLUDED_LISTS = ("stopwords", "names", "offensive", "fragments")
_WORDFREQ_SIZE = 400_000  # more than it has: all of it
_WRITTEN = re.compile(r"(?=.*[aeiouy])[a-z]{3,}")


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
    """Return the 2,000 everyday words of ``spag/data/words.txt``, most frequent first."""
    return _data_lines("words")


def common_words(top: int) -> list[str]:
    """Return the ``top`` most frequent English words that one can play with, or all there are, most frequent first."""
    return list(_all_common_words()[:top])


@cache
def _all_common_words() -> tuple[str, ...]:
    from wordfreq import top_n_list  # noqa: PLC0415  # its tables take a while to load, and only this list needs them

    excluded = {word for name in EXCLUDED_LISTS for word in _data_lines(name)}
    listed = top_n_list("en", _WORDFREQ_SIZE, wordlist="large")
    return tuple(word for word in listed if _WRITTEN.fullmatch(word) and word not in excluded and _is_headword(word))


def _is_headword(word: str) -> bool:
    return bool(is_known(word, lang="en") and lemmatize(word, lang="en") == word)


def _data_lines(name: str) -> list[str]:
    return (resources.files("spag.games.taboo.data") / f"{name}.txt").read_text(encoding="utf-8").split()
