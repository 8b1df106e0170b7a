"""Target words: the shipped list, the frequency list, or a file.

The paper draws 50,000 words from CoCA's frequency list, which cannot be shipped. ``common_words`` makes a similar
list from the package ``wordfreq`` (offline; data CC BY-SA 4.0), most frequent first. A word is kept if it

- is written with three or more letters a-z, a vowel among them: no contractions, numbers, or initialisms;
- is known to ``simplemma`` and is its own lemma, in lower case: no inflected duplicates, and few names;
- is on none of the lists in ``text/data``: stop words, names, offensive words, and fragments.

41,790 of wordfreq's 320,000 entries are kept: the rest are names, inflections, misspellings and other languages.
``docs/prompts.md`` gives the source and licence of each list.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path

from simplemma.strategies import DEFAULT_DICTIONARY_FACTORY

from spag.core.errors import DataError
from spag.games.taboo.languages import language_data, language_of
from spag.storage.jsonfile import read_text
from spag.text.english import ENGLISH, listed
from spag.text.lexicon import with_sharp_s
from spag.text.words import parse_words

SHIPPED = "shipped"
FREQUENCY = "frequency"
EXCLUDED_LISTS = ("stopwords", "names", "offensive", "fragments")
_FUNCTION_WORDS = 300  # most frequent words that are left out if there is no list of stop words
_WORDFREQ_SIZE = 400_000  # more than its size: all of it
_WRITTEN = re.compile(r"(?=.*[aeiouy])[a-z]{3,}")


def load_words(source: str, top: int, language: str = "en") -> list[str]:
    """Return at most ``top`` words of ``source``: ``shipped``, ``frequency``, or a file. Raises ``DataError``."""
    if source == SHIPPED:
        return shipped_words()[:top]
    if source == FREQUENCY:
        return list(common_words(top, language))
    words = parse_words(read_text(Path(source)).splitlines(), source)
    if not words:
        raise DataError(f"{source}: no words; write one word per line")
    return words[:top]


def shipped_words() -> list[str]:
    """Return the 2,000 everyday words of ``data/words.txt``, most frequent first."""
    return (resources.files("spag.games.taboo.data") / "words.txt").read_text(encoding="utf-8").split()


@cache
def common_words(top: int, language: str = "en") -> tuple[str, ...]:
    """Return the ``top`` most frequent playable words, or all of them, most frequent first."""
    entry = DEFAULT_DICTIONARY_FACTORY.get_dictionary(language).get  # a fifth of the time of is_known and lemmatize
    lemmas = (next((word for word in cases if entry(word) == word), "") for cases in _candidates(language))
    return tuple(islice(filter(None, lemmas), top))


def _candidates(language: str) -> Iterator[list[str]]:
    """Yield the spellings of each frequent word, the most frequent word first.

    English is filtered by lists. Elsewhere, words have three letters or more, and the very most frequent are left out,
    which are function words; if nouns are capitalised, names stay. A negation and the word for "word" are left out,
    because a plain announcement of them names nothing: "Es ist niemals!"
    """
    from wordfreq import top_n_list  # noqa: PLC0415  # its tables take a while to load

    if language == ENGLISH.language:
        excluded, words = listed(*EXCLUDED_LISTS), top_n_list(language, _WORDFREQ_SIZE, wordlist="large")
        return ([word] for word in words if _WRITTEN.fullmatch(word) and word not in excluded)
    capitals = language_data(language)["lexicon"].get("capitalised_nouns", False)
    spoken = language_of(language)
    return (
        [case for each in (word, *with_sharp_s(word)) for case in ((each, each.capitalize()) if capitals else (each,))]
        for word in top_n_list(language, _WORDFREQ_SIZE, wordlist="best")[_FUNCTION_WORDS:]
        if word.isalpha() and len(word) > 2 and word != spoken.word and not spoken.negation.fullmatch(word)
    )
