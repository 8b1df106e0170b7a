"""Inputs of the rules against evasions: the forms of a target, and one reading of an utterance."""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from spag.text.english import ENGLISH
from spag.text.folding import fold, readings
from spag.text.lexicon import Lexicon
from spag.text.matching import Target, target_of, words_of

LETTERS = re.compile(r"[^\W\d_]+")

_DOUBLED = re.compile(r"(.)\1+")


class Reading:
    """One folded reading of ``text``, with its distinct words; rules may ask for its capitals."""

    def __init__(self, low: str, text: str, letters: str = "") -> None:
        self.low, self._text, self._letters = low, text, letters
        self.words = words_of(low)

    @cached_property
    def cased(self) -> str:
        """The same with capital letters, character by character; without them where folding changes the length."""
        cased = (one for one in readings(self._text, self._letters, str) if len(one) == len(self.low))
        return next((one for one in cased if fold(one, self._letters) == self.low), self.low)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The forms that ``target`` may take, written as one word of two letters or more.

    ``forms`` are strings that may be a form of it; ``is_form`` decides, but is slower. ``backwards`` are those of four
    letters or more, reversed. ``squeezed`` maps their letters, with each run as one letter, to both; ``beginnings`` are
    the beginnings of its keys.
    """

    target: Target
    forms: frozenset[str]
    backwards: frozenset[str]
    squeezed: dict[str, tuple[str, ...]]
    beginnings: frozenset[str]
    letters: frozenset[str]
    by_length: dict[int, list[str]]

    @property
    def lexicon(self) -> Lexicon:
        return self.target.lexicon

    def is_form(self, letters: str) -> bool:
        """Tell whether ``letters``, of ``forms`` or ``backwards``, are a form of the target in either direction."""
        return self.target.is_form(letters[::-1] if letters in self.backwards else letters)


def squeezed(letters: str) -> str:
    """Return ``letters`` with each run of a letter as one letter."""
    return _DOUBLED.sub(r"\1", letters) if _DOUBLED.search(letters) else letters


@lru_cache(maxsize=2048)  # as many games may be in flight
def shapes_of(target_word: str, lexicon: Lexicon = ENGLISH) -> Shapes:
    """Return the shapes of ``target_word``; none if it is matched as a substring, or too long for a word."""
    target = target_of(target_word, lexicon)
    words = target.letters()
    forms = frozenset(form for word in words for form in lexicon.forms(word) if form.isalpha() and len(form) > 1)
    reversible = {form for word in words for form in (word, word + "s") if len(word) > 3 and form in forms}
    backwards = frozenset(form[::-1] for form in reversible) - forms
    by_letters: dict[str, tuple[str, ...]] = {}
    by_length: dict[int, list[str]] = {}
    for form in (*forms, *backwards):
        key = squeezed(form)
        by_letters[key] = (*by_letters.get(key, ()), form)
        by_length.setdefault(len(form), []).append(form)
    beginnings = frozenset(key[:end] for key in by_letters for end in range(1, len(key) + 1))
    return Shapes(target, forms, backwards, by_letters, beginnings, frozenset().union(*forms), by_length)
