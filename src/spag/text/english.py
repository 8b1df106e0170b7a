"""The English lexicon.

Base forms are the lemma of the ``simplemma`` dictionary, the few rules and irregular forms that it lacks, and the word
itself; ``forms_of`` goes the other way. ``is_word`` also asks the lists in ``data`` and ``wordfreq``, because the
dictionary has fragments that nobody uses (``rive``, ``ther``), and lacks some words (``her``).
"""

from collections import defaultdict
from functools import cache, lru_cache, partial
from importlib import resources

import simplemma
from simplemma.strategies import DEFAULT_DICTIONARY_FACTORY

from spag.text.folding import fold
from spag.text.lexicon import LONGEST_WORD, Lexicon, frequency_in

_VOWELS = frozenset("aeiouy")
frequency = partial(frequency_in, "en")

# What simplemma 1.1 to 2.0 gets wrong or leaves out. The left-hand words of _HOMOGRAPHS are headwords too: as a target
# each stands for itself only.
_HOMOGRAPHS = {
    "bore": "bear", "bit": "bite", "bound": "bind", "broke": "break", "data": "datum", "dove": "dive", "drunk": "drink",
    "felt": "feel", "fell": "fall", "found": "find", "ground": "grind", "lay": "lie", "left": "leave",
    "people": "person", "rose": "rise", "rung": "ring", "saw": "see", "shot": "shoot", "smelt": "smell",
    "spelt": "spell", "thought": "think", "wound": "wind", "being": "be",
}  # fmt: skip
_IRREGULAR = {
    "attaches": "attach attache", "awoken": "awake", "axes": "axe ax axis", "bases": "base basis",
    "bathing": "bath bathe", "bent": "bend", "calves": "calf calve", "ceramics": "ceramic",
    "diagnoses": "diagnosis diagnose", "gone": "go", "grannies": "granny", "halves": "half halve",
    "housewives": "housewife", "leaves": "leaf leave", "lenses": "lens", "lives": "life live", "loaves": "loaf",
    "masses": "mass masse", "mechanics": "mechanic", "mimicked": "mimic", "mimicking": "mimic", "nannies": "nanny",
    "overlying": "overlie", "panicked": "panic", "panicking": "panic", "secreted": "secrete", "secreting": "secrete",
    "sheaves": "sheaf", "shelves": "shelf shelve", "shied": "shy", "shook": "shake", "singed": "singe",
    "skies": "sky ski", "slew": "slay", "staves": "staff stave", "swore": "swear", "thieves": "thief", "trod": "tread",
    "weeds": "weed", "wives": "wife", "won": "win", "worse": "bad", "bigger": "big", "closer": "close",
    "cooler": "cool", "dimmer": "dim", "fatter": "fat", "flatter": "flat", "further": "far", "hotter": "hot",
    "sadder": "sad", "thinner": "thin", "wetter": "wet", "clothing": "clothe",
}  # fmt: skip
# "the found", "a cooler": not forms of a verb there
NOUNS_TOO = _HOMOGRAPHS.keys() - {"people", "data"} | {"closer", "cooler", "dimmer"}
# As a target, each stands for itself only: cool does not give a cooler away. But shake gives shook away, big bigger,
# and mechanic mechanics.
_HEADWORDS = _HOMOGRAPHS.keys() | {"closer", "clothing", "cooler", "dimmer", "flatter", "slew"}
# Headwords that only look like an inflection of another word: evening is not even+ing for any reader.
_NO_INFLECTION = frozenset([
    "bare", "corps", "evening", "gas", "herring", "inning", "lens", "morning", "news", "notting", "pudding", "redding",
    "series", "species", "sterling", "tanner", "weed", "yes",
])  # fmt: skip
_SHORT_WORDS = frozenset([
    "a", "i", "ah", "am", "an", "as", "at", "be", "by", "do", "eh", "go", "ha", "he", "hi", "ho", "if", "in", "is",
    "it", "me", "my", "no", "of", "oh", "ok", "on", "or", "ow", "ox", "so", "to", "uh", "um", "up", "us", "we", "ye",
    "yo",
])  # fmt: skip
_RARE = 3.0  # once in a million words
_LIKELIER = 2.0  # how much more common, in powers of ten, a stem must be than the dictionary's lemma
_NOUN_PLURAL = 2.0  # how much less common, in powers of ten, a noun's plural may be
_ADJECTIVE_SUFFIXES = ("ous", "able", "ible", "ful", "less", "ive")
# Adjectives that the rules of ``is_adjective`` miss and that people use to describe a word or a thing.
_ADJECTIVES = frozenset([
    "awesome", "bad", "big", "boring", "challenging", "clear", "cold", "common", "complex", "confusing", "difficult",
    "exciting", "excellent", "fake", "familiar", "fantastic", "fascinating", "fine", "forbidden", "fun", "gone", "good",
    "hidden", "interesting", "known", "long", "misleading", "missing", "new", "old", "plain", "right", "secret",
    "short", "silly", "simple", "smart", "special", "sweet", "tempting", "tricky", "ugly", "unknown", "warm", "wrong",
])  # fmt: skip


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
    bases = {token, word, lemma, lemma[:-1] if over else lemma}
    return frozenset(bases | _likelier(word, lemma, bases))


def _likelier(word: str, lemma: str, bases: set[str]) -> set[str]:
    """Return stems outside ``bases`` much more common than a rare ``lemma``: the dictionary has growing -> growe."""
    stems = {*_stems(word)}
    if word.endswith(("ies", "ied")):
        stems.add(word[:-3] + "y")
    elif word.endswith(("cking", "cked")):
        stems.add(word.removesuffix("ing").removesuffix("ed")[:-1])
    stems = {stem for stem in stems - bases if is_known(stem) and _lemma(stem) == stem}
    if not stems or frequency(lemma) >= _RARE:  # hissing is of hiss, not of his
        return set()
    return {stem for stem in stems if frequency(stem) - frequency(lemma) >= _LIKELIER}


def _stems(word: str) -> tuple[str, ...]:
    """Undo -s, -ing and -ed for words the dictionary does not reduce: ``tiktoks``, ``building``, ``americans``."""
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


def target_bases(word: str) -> frozenset[str]:
    """Return the base forms of a target. A headword has only its own: ``leave`` does not say ``left``."""
    regular = word not in _IRREGULAR and word == _lemma(word[:LONGEST_WORD]) and is_known(word)
    return frozenset((word,)) if word in _HEADWORDS or regular else word_bases(word)


@cache
def _irregular_forms() -> dict[str, list[str]]:
    """The forms that do not begin like their lemma: mouse has mice. Takes a third of a second, once per process."""
    dictionary = DEFAULT_DICTIONARY_FACTORY.get_dictionary("en")
    found = defaultdict(list)
    for form in dictionary:
        lemma = dictionary[form]
        if form.isalpha() and form.islower() and not form.startswith(lemma[: max(2, len(lemma) - 1)]):
            found[lemma].append(form)
    for form, lemmas in (_HOMOGRAPHS | _IRREGULAR).items():
        for lemma in lemmas.split():
            found[lemma].append(form)
    return dict(found)


def forms_of(word: str) -> set[str]:
    """Return ``word`` and what may be an inflection of it (``word_bases`` tells); nothing if it is too long."""
    if len(word) > LONGEST_WORD:
        return set()
    stem, last = word[:-1], word[-1:]
    forms = {word, word + "s", *_irregular_forms().get(word, ())}
    if last in "sxzho":
        forms.add(word + "es")
    if last == "e":
        forms |= {word + "d", stem + "ing", word + "r", word + "st"}
    elif last == "y":
        forms |= {word + "ed", word + "ing", stem + "ies", stem + "ied", stem + "ier", stem + "iest"}
    else:
        forms |= {word + ending for ending in ("ed", "ing", "er", "est")}
    if last == "f":
        forms.add(stem + "ves")
    elif last in "bdgklmnprtvz" and word[-2:-1] in _VOWELS:
        forms |= {word + last + ending for ending in ("ed", "ing", "er", "est")}
    return forms


@cache
def listed(*names: str) -> frozenset[str]:
    """Return the words of lists in ``data``: stopwords, names, offensive, fragments (abbreviations and clippings)."""
    folder = resources.files("spag.text.data")
    return frozenset(word for name in names for word in (folder / f"{name}.txt").read_text(encoding="utf-8").split())


@lru_cache(maxsize=4096)
def is_word(letters: str) -> bool:
    """Tell whether folded ``letters`` are a word that people write; few words have one or two letters."""
    if len(letters) < 3:
        return letters in _SHORT_WORDS
    known = letters in listed("stopwords") or (is_known(letters) and letters not in listed("names", "fragments"))
    return known and frequency(letters) >= _RARE


@lru_cache(maxsize=4096)
def is_adjective(word: str) -> bool:
    """Tell whether folded ``word`` is more likely an adjective, a participle or an adverb than a noun.

    No dictionary here knows parts of speech. A noun has a plural that people use; an adjective has an adverb in -ly or
    forms in -est, or a typical suffix.
    """
    if word in _ADJECTIVES or (word.endswith("ed") and _lemma(word) != word):
        return True
    stem = word[:-1]
    plurals = (word + "s", word + "es", stem + "ies" if word.endswith("y") else word + "s")
    if frequency(word) - max(map(frequency, plurals)) < _NOUN_PLURAL:
        return False
    derived = {"y": (stem + "ily", stem + "iest"), "e": (word + "ly", stem + "ly", word + "st")}
    forms = derived.get(word[-1:], (word + "ly", word + "est"))
    is_adverb = word.endswith("ly") and is_word(word.removesuffix("ly"))
    return is_adverb or word.endswith(_ADJECTIVE_SUFFIXES) or any(map(is_word, forms))


ENGLISH = Lexicon("en", "", word_bases, target_bases, forms_of, is_known, is_word, frequency)
