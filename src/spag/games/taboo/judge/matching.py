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

import simplemma

from spag.games.taboo.judge.folding import fold, readings

TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*(?:\+\+|[+#](?![\w+#]))?")
_GLUE = frozenset(" \t\n\r-_'\"*`/")
_VOWELS = frozenset("aeiouy")
LONGEST_WORD = 64  # characters; a longer token is compared as it stands and never looked up

# What simplemma 1.1 to 2.0 gets wrong or leaves out. The left-hand words of _HOMOGRAPHS are headwords too: as a target each stands for
# itself only.
_HOMOGRAPHS = {
    "bore": "bear", "born": "bear", "bit": "bite", "bound": "bind", "broke": "break", "data": "datum", "dove": "dive", "drunk": "drink",
    "felt": "feel", "fell": "fall", "found": "find", "ground": "grind", "lay": "lie", "left": "leave", "people": "person",
    "rose": "rise", "rung": "ring", "saw": "see", "shot": "shoot", "smelt": "smell", "spelt": "spell", "thought": "think",
    "wound": "wind", "being": "be",
}  # fmt: skip
_IRREGULAR = {
    "awoken": "awake", "axes": "axe ax axis", "bases": "base basis", "bent": "bend", "calves": "calf calve", "gone": "go",
    "halves": "half halve", "leaves": "leaf leave", "lenses": "lens", "lives": "life live", "loaves": "loaf", "mimicked": "mimic",
    "mimicking": "mimic", "panicked": "panic", "panicking": "panic", "sheaves": "sheaf", "shelves": "shelf shelve", "shook": "shake",
    "slew": "slay", "staves": "staff stave", "swore": "swear", "thieves": "thief", "trod": "tread", "wives": "wife", "won": "win",
    "worse": "bad", "bigger": "big", "cleaner": "clean", "closer": "close", "cooler": "cool", "dimmer": "dim", "fatter": "fat",
    "flatter": "flat", "further": "far", "hotter": "hot", "sadder": "sad", "thinner": "thin", "wetter": "wet", "clothing": "clothe",
}  # fmt: skip
# Headwords that only look like an inflection of another word: evening is not even+ing for any reader.
_NO_INFLECTION = {
    "bare", "corps", "evening", "gas", "herring", "inning", "lens", "morning", "news", "pudding", "series", "species", "sterling", "tanner",
    "yes",
}  # fmt: skip


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


@lru_cache(maxsize=1 << 17)
def word_bases(token: str) -> frozenset[str]:
    """Return the base forms that a folded token may be an inflection of, itself included."""
    word = token.removesuffix("'s") or token
    if len(word) > LONGEST_WORD or word in _NO_INFLECTION:
        return frozenset((token, word))
    known = _HOMOGRAPHS.get(word) or _IRREGULAR.get(word)
    if known:
        return frozenset((token, word, *known.split()))
    lemma = _lemma(word)
    if lemma == word:
        return frozenset((token, word, *_stems(word)))
    # The dictionary has travelling -> travell, playing -> playe and fixed -> fixe.
    over = (len(lemma) > 5 and lemma.endswith("ll")) or lemma.endswith(("xe", "ye"))
    return frozenset((token, word, lemma, lemma[:-1] if over else lemma))


def _stems(word: str) -> tuple[str, ...]:
    """Undo English -s, -ing and -ed for words the dictionary does not reduce: ``tiktoks``, ``building``, ``americans``."""
    if len(word) < 3:
        return ()
    if word.endswith("s") and not word.endswith(("ss", "ics")):
        return (word[:-1], word[:-2]) if word.endswith(("xes", "ches", "shes", "sses", "zes")) else (word[:-1],)
    if not word.endswith(("ing", "ed")) or word.endswith("eed"):
        return ()
    stem = word[:-3] if word.endswith("ing") else word[:-2]
    if len(stem) < 2 or _VOWELS.isdisjoint(stem):
        return ()
    if len(stem) > 3 and stem[-1] == stem[-2]:
        return (stem, stem[:-1])
    short = len(stem) > 2 and stem[-1] not in "wxyaeiou" and stem[-2] in _VOWELS and _VOWELS.isdisjoint(stem[:-2])
    return (stem + "e",) if short else (stem, stem + "e")  # star gives starring, so staring is of stare


def _lemma(word: str) -> str:
    return fold(simplemma.lemmatize(word, lang="en"))


@lru_cache(maxsize=4096)
def is_known(word: str) -> bool:
    """Tell whether the dictionary has ``word``."""
    return bool(simplemma.is_known(word, lang="en"))


def _target_bases(word: str) -> frozenset[str]:
    """A target that is a headword of its own stands for itself: saying ``leave`` or ``build`` does not say ``left`` or ``building``."""
    own = word in _HOMOGRAPHS or (word not in _IRREGULAR and word == _lemma(word[:LONGEST_WORD]))
    if own and (word in _HOMOGRAPHS or is_known(word)):
        return frozenset((word,))
    return word_bases(word)


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
        words=tuple(_target_bases(token) for token in tokens),
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
    found = next((word for word in words_of(reading) if not single.isdisjoint(word_bases(word))), None)
    return found if found is not None or len(target.words) < 2 else _find_phrase(reading, target)


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
