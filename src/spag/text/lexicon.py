"""Lexicons: which inflections a word has, and which letters make a word, in one language.

``english.py`` holds the English one. ``lexicon_of`` makes one for any language that ``simplemma`` (inflection) and
``wordfreq`` (frequency) cover, from the letters described in a language file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import simplemma

from spag.text.folding import fold

LONGEST_WORD = 64  # characters; a longer token is compared unchanged and never looked up
_RARE, _RARE_SHORT = 3.0, 5.0  # Zipf frequency (base-10 logarithm of uses in a billion words) of the rarest words


@dataclass(frozen=True, eq=False, slots=True)
class Lexicon:
    """What the rules need of a language. All functions take lower-case words without accents other than ``letters``.

    ``bases`` gives the base forms that a word may be an inflection of, itself included; ``target_bases`` the same for a
    target; ``forms`` all strings that may be an inflection of a word; ``is_word`` tells whether people write a string
    as a word, ``is_known`` whether the dictionary has it; ``frequency`` is Zipf's.
    """

    language: str
    letters: str
    bases: Callable[[str], frozenset[str]]
    target_bases: Callable[[str], frozenset[str]]
    forms: Callable[[str], set[str]]
    is_known: Callable[[str], bool]
    is_word: Callable[[str], bool]
    frequency: Callable[[str], float]


def frequency_in(language: str, word: str) -> float:
    """Return the Zipf frequency of ``word``, 0 for never."""
    from wordfreq import zipf_frequency  # noqa: PLC0415 - its tables load slowly, and few utterances need them

    return float(zipf_frequency(word, language, wordlist="best"))


def with_sharp_s(word: str) -> list[str]:
    """Return the spellings of ``word`` with one ss as ß."""
    return [f"{word[:at]}ß{word[at + 2 :]}" for at in range(len(word) - 1) if word.startswith("ss", at)]


@dataclass(frozen=True, eq=False)
class _Dictionary:
    """The functions of a ``Lexicon`` for a language that ``simplemma`` and ``wordfreq`` know."""

    language: str
    letters: str
    endings: tuple[str, ...]
    plurals: Mapping[str, str] = field(default_factory=dict)
    short_words: str = ""
    spellings: Mapping[str, str] = field(default_factory=dict)
    capitalised_nouns: bool = False

    @lru_cache(maxsize=1 << 17)  # noqa: B019  # a language is never thrown away
    def lemmas(self, word: str) -> frozenset[str]:
        """Return the lemmas of a folded word, none if it is unknown. Folded, Füße is füsse."""
        if len(word) > LONGEST_WORD:
            return frozenset()
        known = self._known(word) or [case for spelling in with_sharp_s(word) for case in self._known(spelling)]
        return frozenset(fold(simplemma.lemmatize(case, lang=self.language), self.letters) for case in known)

    def _known(self, word: str) -> list[str]:
        cases = (word, word.capitalize()) if self.capitalised_nouns else (word,)
        return [case for case in cases if simplemma.is_known(case, lang=self.language)]

    def is_known(self, word: str) -> bool:
        return bool(self.lemmas(word))

    def bases(self, token: str) -> frozenset[str]:
        *before, last = token.split("'")
        parts = {token, last, *(word for word in before if len(word) > 1)}  # l'eau; m' is not a metre
        bases = {base for word in parts for base in (word, *(self.lemmas(word) or self._respelled(word)))}
        return frozenset(bases.union(*map(self._singulars, parts)))

    def _singulars(self, word: str) -> set[str]:
        """Return the singulars of ``word`` by ``plurals`` (ciudades: ciudad); none if the dictionary gives one."""
        nouns = {word.removesuffix(plural) + end for plural, end in self.plurals.items() if word.endswith(plural)}
        if not self.lemmas(word).isdisjoint({word, *nouns}):
            return set()
        return {noun for noun in nouns - {""} if noun in self.lemmas(noun)}

    def _respelled(self, word: str) -> set[str]:
        """Return the bases of an unknown word that may have lost its accents."""
        accented, plain = word, fold(word)
        for letter, spelling in self.spellings.items():
            accented = accented.replace(spelling, letter)
        endings = {*self.endings}
        if self.is_word(word):  # France is not a feminine form, près has its accent; idees may be a plural
            common = partial(frequency_in, self.language)
            kept = {end for end in endings if end in self.plurals or common(plain.removesuffix(end)) >= common(word)}
            endings = kept if plain == word else set()
        stems = {plain, *(plain.removesuffix(ending) for ending in endings)} if not self.is_known(plain) else set()
        return {*stems, *self.lemmas(accented)}

    def target_bases(self, word: str) -> frozenset[str]:
        headwords = {word} if word in self.lemmas(word) else {word, *self.lemmas(word)}
        return frozenset(headwords | {fold(one) for one in headwords if not self.is_known(fold(one))})

    def forms(self, word: str) -> set[str]:
        return {word, *(word + ending for ending in self.endings)}

    def is_word(self, word: str) -> bool:
        if len(word) == 1:
            return word in self.short_words
        return frequency_in(self.language, word) >= (_RARE_SHORT if len(word) == 2 else _RARE)


def lexicon_of(language: str, letters: str, endings: str, **more: Any) -> Lexicon:
    """Return the lexicon of ``language`` from the ``lexicon`` section of its file.

    ``letters``: accented letters that tell words apart; ``endings``: what inflection appends to a word; ``plurals``:
    their endings and those of the singular, or of a verb with a pronoun and the verb; ``short_words``: the words of one
    letter; ``spellings``: how a letter is written where a keyboard lacks it (ä: ae). A word that the dictionary lacks
    may be one without its accents.
    """
    of = _Dictionary(language, letters, tuple(endings.split()), **more)
    bases, is_word = lru_cache(maxsize=1 << 17)(of.bases), lru_cache(maxsize=4096)(of.is_word)
    frequency = partial(frequency_in, language)
    return Lexicon(language, letters, bases, of.target_bases, of.forms, of.is_known, is_word, frequency)
