"""What the rules against evasions compare: the forms of a target, and one reading of an utterance."""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from spag.games.taboo.judge.folding import cased_readings, fold
from spag.games.taboo.judge.lexicon import forms_of
from spag.games.taboo.judge.matching import is_whole_form, whole_forms, words_of

LETTERS = re.compile(r"[^\W\d_]+")

_DOUBLED = re.compile(r"(.)\1+")


class Reading:
    """One folded reading of ``text``, with its distinct words and fragments, and its capital letters where a rule asks for them."""

    def __init__(self, low: str, text: str) -> None:
        self.low, self._text = low, text
        self.words = words_of(low)

    @cached_property
    def parts(self) -> list[str]:
        """The fragments of those words that are not letters alone."""
        return [part for word in self.words if not word.isalpha() for part in LETTERS.findall(word)]

    @cached_property
    def cased(self) -> str:
        """The same with capital letters, character by character; without them where folding changes the length."""
        return next((cased for cased in cased_readings(self._text) if len(cased) == len(self.low) and fold(cased) == self.low), self.low)


@dataclass(frozen=True, slots=True)
class Shapes:
    """What ``target_word`` may look like, written as one word of two letters or more.

    ``forms`` are letters that may be a form of it; ``is_form`` tells, which takes longer. ``backwards`` are these backwards, from four
    letters on. ``squeezed`` gives both for their letters with each run as one letter, ``beginnings`` the beginnings of its keys.
    """

    target_word: str
    forms: frozenset[str]
    backwards: frozenset[str]
    squeezed: dict[str, tuple[str, ...]]
    beginnings: frozenset[str]
    initials: frozenset[str]
    letters: frozenset[str]
    by_length: dict[int, list[str]]

    def is_form(self, letters: str) -> bool:
        """Tell whether ``letters``, of ``forms`` or ``backwards``, are a form of the target in either direction."""
        return is_whole_form(letters[::-1] if letters in self.backwards else letters, self.target_word)


def squeezed(letters: str) -> str:
    """Return ``letters`` with each run of a letter as one letter."""
    return _DOUBLED.sub(r"\1", letters) if _DOUBLED.search(letters) else letters


@lru_cache(maxsize=512)
def shapes_of(target_word: str) -> Shapes:
    """Return the shapes of ``target_word``; none for a target that is looked for as a substring, or too long to be a word."""
    words = whole_forms(target_word)
    forms = frozenset(form for word in words for form in forms_of(word) if form.isalpha() and len(form) > 1)
    backwards = frozenset(form[::-1] for word in words for form in (word, word + "s") if len(word) > 3 and form in forms) - forms
    by_letters: dict[str, tuple[str, ...]] = {}
    by_length: dict[int, list[str]] = {}
    for form in (*forms, *backwards):
        key = squeezed(form)
        by_letters[key] = (*by_letters.get(key, ()), form)
        by_length.setdefault(len(form), []).append(form)
    beginnings = frozenset(key[:end] for key in by_letters for end in range(1, len(key) + 1))
    initials = frozenset(key[0] for key in by_letters)
    return Shapes(target_word, forms, backwards, by_letters, beginnings, initials, frozenset().union(*forms), by_length)
