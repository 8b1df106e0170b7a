"""Strict word matching: whether a text says a word, in any inflection.

The paper's judge looks for ``w``, ``w+ing``, ``w+ed`` and the plural as substrings, so ``cat`` fires in ``category`` and ``mice`` passes
for ``mouse``. Here words are compared as words, by their sets of base forms: the lemma of the ``simplemma`` dictionaries, the few rules and
irregular forms that it lacks, and the word itself. Derived words (``teacher`` of ``teach``) and compounds in one word (``sunflower`` of
``sun``) are other words; the parts of a hyphenated or spaced compound are words of their own.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from spag.games.taboo.judge.folding import fold, readings
from spag.games.taboo.judge.lexicon import LONGEST_WORD, NOUNS_TOO, is_known, target_bases, word_bases

TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*(?:\+\+|[+#](?![\w+#]))?")
_GLUE = frozenset(" \t\n\r-_'\"*`/")
# Where a word that is both is a noun, so no form of the verb: a bit, a bit of it. Wound is a verb only in "wound up" and the like.
_NOUN_AFTER = re.compile(
    r"\b(?:an?|the|this|my|your|his|her|its|our|their|every|each|no|some|any|another|little|tiny|small|good|single|last|drill|\d+)[ -]$"
)
_NOUN_BEFORE = re.compile(r"[ -](?:of|by|rate|depth|more|less)\b")
_WOUND_UP = re.compile(r" (?:up|down|around|round|through|along|back|tight|tightly|its way|their way)\b")


@dataclass(frozen=True, slots=True)
class Target:
    """A target word prepared for matching.

    ``words`` holds the base forms of each of its words; ``joined`` those of all of them written together (empty for an acronym: ``U.S.`` is
    not ``us``); ``glue`` is what may stand between its words; ``literal`` is set for a target that is no sequence of spaced words (Chinese,
    Thai, emoji) and is then looked for as a substring; ``acronym`` is the capital letters of ``U.S.``-like targets.
    """

    words: tuple[frozenset[str], ...]
    joined: frozenset[str]
    glue: frozenset[str]
    literal: str
    acronym: str


@lru_cache(maxsize=4096)
def target_of(target_word: str) -> Target:
    """Return ``target_word`` prepared for matching. A target without any visible character matches nothing."""
    folded = fold(target_word).strip()
    tokens = TOKEN.findall(folded)
    marks = frozenset(char for char in folded if not char.isalnum())
    if not tokens or (not folded.isascii() and any(map(_unspaced, folded))):
        return Target((), frozenset(), marks, folded, "")
    acronym = "".join(tokens) if len(tokens) > 1 and all(len(token) == 1 for token in tokens) else ""
    joined = "".join(tokens).replace("'", "")
    keeps = len(tokens) > 1 or not is_known(joined)  # I'll is not ill
    return Target(
        words=tuple(target_bases(token) for token in tokens),
        joined=frozenset((joined,)) if keeps and not acronym else frozenset(),
        glue=_GLUE | marks,
        literal="",
        acronym=acronym.upper(),
    )


@lru_cache(maxsize=4096)
def whole_forms(target_word: str) -> frozenset[str]:
    """Return the forms of the whole target written as one word; none for a target that is looked for as a substring."""
    target = target_of(target_word)
    if len(target.words) == 1:
        return target.words[0] | target.joined
    return target.joined or frozenset({target.acronym.casefold()} if target.acronym else ())


def is_whole_form(letters: str, target_word: str) -> bool:
    """Tell whether ``letters``, written together, are a form of the whole target."""
    return 1 < len(letters) <= LONGEST_WORD and not whole_forms(target_word).isdisjoint(word_bases(letters))


def _unspaced(char: str) -> bool:
    """Scripts written without spaces, with particles attached, or with vowel signs that a regular expression does not count as letters."""
    if char.isascii():
        return False
    name = unicodedata.name(char, "")
    return unicodedata.category(char)[0] == "M" or name.startswith(
        ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR")
    )


def find_form(text: str, target_word: str) -> str | None:
    """Return the first form of ``target_word`` said in ``text``, folded, or ``None``."""
    target = target_of(target_word)
    for reading in readings(text):
        if (found := _find_in(reading, target)) is not None:
            return found
    if target.acronym and re.search(rf"(?<!\w){re.escape(target.acronym)}(?!\w)", text):
        return target.acronym
    return None


@lru_cache(maxsize=8)
def words_of(reading: str) -> tuple[str, ...]:
    """Return the distinct words of a folded reading, in order. Cached because one utterance is searched several times."""
    return tuple(dict.fromkeys(TOKEN.findall(reading)))


def _find_in(reading: str, target: Target) -> str | None:
    if target.literal:
        return target.literal if target.literal in reading else None
    single = target.joined if len(target.words) != 1 else target.words[0] | target.joined
    said = (word for word in words_of(reading) if not single.isdisjoint(word_bases(word)))
    found = next((word for word in said if word not in NOUNS_TOO or word in single or _is_verb(word, reading)), None)
    return found if found is not None or len(target.words) < 2 else _find_phrase(reading, target)


def _is_verb(word: str, reading: str) -> bool:
    """Tell whether a past tense that is also a noun is a verb anywhere in ``reading``."""
    places = re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", reading)
    if word == "wound":
        return any(_WOUND_UP.match(reading, place.end()) for place in places)
    return not all(
        _NOUN_AFTER.search(reading[max(0, place.start() - 12) : place.start()]) or _NOUN_BEFORE.match(reading, place.end())
        for place in places
    )


def _find_phrase(reading: str, target: Target) -> str | None:
    tokens = list(TOKEN.finditer(reading))
    size = len(target.words)
    for start in range(len(tokens) - size + 1):
        window = tokens[start : start + size]
        if target.words[0].isdisjoint(word_bases(window[0].group())):
            continue
        if not _is_phrase(reading, window, target):
            continue
        after = tokens[start + size] if start + size < len(tokens) else None
        if target.acronym and after and len(after.group()) == 1 and reading[window[-1].end() : after.start()] == ".":
            continue  # U.S.A. is not U.S.
        return reading[window[0].start() : window[-1].end()]
    return None


def _is_phrase(reading: str, window: list[re.Match[str]], target: Target) -> bool:
    words = zip(window, target.words, strict=True)
    if any(bases.isdisjoint(word_bases(token.group())) for token, bases in words):
        return False
    gaps = (reading[left.end() : right.start()] for left, right in pairwise(window))
    return all(len(gap) <= 8 and target.glue.issuperset(gap) for gap in gaps)


def phrase_end(text: str, target: Target) -> int | None:
    """Return where a form of the target that opens the folded ``text`` ends, or ``None`` when the text opens with something else."""
    if target.literal:
        return len(target.literal) if text.startswith(target.literal) else None
    window = []
    for token in TOKEN.finditer(text):
        window.append(token)
        if len(window) == max(1, len(target.words)):
            break
    if not window or window[0].start() != len(text) - len(text.lstrip()):
        return None
    whole = target.joined if len(target.words) != 1 else target.words[0] | target.joined
    if not whole.isdisjoint(word_bases(window[0].group())):
        return window[0].end()
    if len(window) == len(target.words) and _is_phrase(text, window, target):
        return window[-1].end()
    bare = text.strip()[: len(target.acronym)]
    return len(text) - len(text.lstrip()) + len(bare) if target.acronym and bare == target.acronym.casefold() else None
