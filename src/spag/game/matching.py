"""Whether a text says a target word: in any inflection, as a word of its own, however it is written.

Texts are normalised first (compatibility forms, case, accents, invisible characters, look-alike letters, markup), then cut into tokens. A token says the target when
the two share a form: the word itself or its lemma, from simplemma's dictionary rather than from suffix rules, which see `art` in `party` and miss
`mice`. Derived words (`teacher` for `teach`) and closed compounds (`sunflower` for `sun`) are words of their own and do not count.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import simplemma

LANGUAGE = "en"

# Cyrillic and Greek letters that look like Latin ones, after case folding.
_LOOK_ALIKES = str.maketrans("авсԁеһіјкӏмнорԛѕтѵԝхуүαβεικνορτυχγ‘’ʼ`´‐‑‒–", "abcdehijklmhopqstvwxyyabeiknoptuxy'''''----")
_TAG = re.compile(r"</?[a-z][^<>]{0,40}>", re.IGNORECASE)
_MARKUP = re.compile(r"[*_~`]+")
# A word with inner apostrophes; C++ and C#; U.S. and other dotted letters.
_TOKEN = re.compile(r"[a-z]{1,2}(?:\+\+|#)(?!\w)|(?<!\w)[^\W\d_](?:\.[^\W\d_])+(?!\w)\.?|[^\W_]+(?:'[^\W_]+)*")

# Inflections that simplemma's dictionary gives to another word or to none.
_MORE_LEMMAS: dict[str, tuple[str, ...]] = {
    "left": ("leave",), "leaves": ("leaf", "leave"), "lives": ("life", "live"), "lay": ("lie",), "lain": ("lie",), "ground": ("grind",),
    "wound": ("wind",), "rose": ("rise",), "fell": ("fall",), "felt": ("feel",), "bore": ("bear",), "born": ("bear",), "bound": ("bind",),
    "found": ("find",), "saw": ("see",), "lit": ("light",), "bit": ("bite",), "shot": ("shoot",), "spoke": ("speak",), "thought": ("think",),
    "dice": ("die",), "data": ("datum",), "dove": ("dive",), "lead": ("lead",), "led": ("lead",), "best": ("good",), "worst": ("bad",),
    "more": ("much", "many"), "most": ("much", "many"), "axes": ("axe", "axis"), "bases": ("base", "basis"), "does": ("do",), "wives": ("wife",),
}  # fmt: skip
# Words that are inflections of one word and words of their own: as targets they do not stand for the other word (a saw is not "see").
_OWN_WORDS = frozenset(_MORE_LEMMAS) - {"leaves", "lives", "lain", "axes", "bases", "does", "wives", "led"}


def normalise(text: str) -> str:
    """Return ``text`` without what the eye does not see: compatibility forms, case, accents, invisible characters, look-alike letters, tags."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    kept = "".join(char for char in folded if unicodedata.category(char) not in ("Mn", "Me", "Cf"))
    return _TAG.sub("", kept.translate(_LOOK_ALIKES).replace("\u2022", "*")) if not kept.isascii() or "<" in kept or "`" in kept else kept


def tokens_of(normalised: str) -> list[str]:
    """Cut a normalised text into tokens."""
    return [token.rstrip(".") for token in _TOKEN.findall(normalised)]


@lru_cache(maxsize=1 << 16)
def lemmas_of(token: str) -> frozenset[str]:
    """Return the token itself and every word that it may be an inflection of."""
    bare = token.removesuffix("'s").rstrip("'") or token
    if not bare:
        return frozenset()
    found = {token, bare, simplemma.lemmatize(bare, lang=LANGUAGE).casefold(), *_MORE_LEMMAS.get(bare, ())}
    if not simplemma.is_known(bare, lang=LANGUAGE):
        found.update(_regular_lemmas(bare))
    return frozenset(unicodedata.normalize("NFKD", lemma) for lemma in found if lemma)


def _regular_lemmas(word: str) -> set[str]:
    """Regular endings, for words that no dictionary knows: `vlogging`, `gizmos`."""
    stems = set()
    for ending, least in (("s", 3), ("es", 3), ("ed", 3), ("ing", 3)):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= least:
            stems |= {stem, f"{stem}e"} if ending in ("ed", "ing") else {stem}
            if ending in ("ed", "ing") and stem[-1] == stem[-2]:
                stems.add(stem[:-1])
    return stems | ({f"{word[:-3]}y"} if word.endswith("ies") and len(word) > 5 else set())


@lru_cache(maxsize=1 << 14)
def target_tokens(target: str) -> tuple[str, ...]:
    """Return the tokens of a target word or phrase; a target of symbols alone is one token."""
    normalised = normalise(target)
    return tuple(tokens_of(normalised)) or (normalised.strip(),)


@lru_cache(maxsize=1 << 14)
def target_forms(target: str) -> frozenset[str]:
    """Return the lemmas that a token may share with ``target``'s last word."""
    last = target_tokens(target)[-1]
    return frozenset({last}) if last in _OWN_WORDS else lemmas_of(last)


def is_form(tokens: Sequence[str], target: str) -> bool:
    """Whether ``tokens`` as a whole are the target: its words, the last of them in any inflection; or the same written as one word."""
    wanted = target_tokens(target)
    if len(tokens) == len(wanted):
        return all(t == w or w in lemmas_of(t) for t, w in zip(tokens[:-1], wanted[:-1], strict=True)) and _same(tokens[-1], target)
    if len(tokens) == 1 and len(wanted) > 1:
        head = "".join(wanted[:-1])
        return tokens[0].startswith(head) and _same(tokens[0][len(head) :], target)
    return False


def _same(token: str, target: str) -> bool:
    return token == target_tokens(target)[-1] or not target_forms(target).isdisjoint(lemmas_of(token))


def find_target(normalised: str, target: str) -> str | None:
    """Return the first place where a normalised text says ``target``, or ``None``. Markup inside and around words is looked through."""
    if not _MARKUP.search(normalised):
        return _find(normalised, target)
    return _find(_MARKUP.sub("", normalised), target) or _find(_MARKUP.sub(" ", normalised), target)


def _find(normalised: str, target: str) -> str | None:
    tokens, size = tokens_of(normalised), len(target_tokens(target))
    if not _TOKEN.search(normalise(target)):  # a target of symbols alone
        return target if normalise(target).strip() in normalised else None
    for index in range(len(tokens)):
        for length in {1, size}:
            if is_form(tokens[index : index + length], target):
                return " ".join(tokens[index : index + length])
    return None
