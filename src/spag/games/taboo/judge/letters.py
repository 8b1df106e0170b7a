"""Named letters: "R as in Romeo, I as in India", "first an r, then i", "r and i and v and e and r", "ar eye vee ee ar", "riv plus er".

Words that talk about spelling are passed over; what they leave must be letters, names of letters or fragments that are no words, and these
must spell the target one after the other.
"""

import re
from dataclasses import dataclass

from spag.games.taboo.judge.fragments import stands_as_word
from spag.games.taboo.judge.lexicon import is_word
from spag.games.taboo.judge.shapes import Reading, Shapes

_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_NATO = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
    "november",
    "oscar",
    "papa",
    "quebec",
    "romeo",
    "sierra",
    "tango",
    "uniform",
    "victor",
    "whiskey",
    "xray",
    "yankee",
    "zulu",
]
_NAMES = {
    **{word: word[0] for word in (*_NATO, "alfa", "juliett", "whisky")},
    **{name: letter for letter, names in {
        "a": "ay eh", "b": "bee be", "c": "cee see sea", "d": "dee", "e": "ee", "f": "ef eff", "g": "gee jee", "h": "aitch haitch",
        "i": "eye", "j": "jay", "k": "kay", "l": "el ell", "m": "em", "n": "en", "o": "oh", "p": "pee pea", "q": "cue queue kew",
        "r": "ar arr are",
        "s": "es ess", "t": "tee tea", "u": "you yu", "v": "vee", "w": "doubleyou doubleu", "x": "ex", "y": "wye why", "z": "zee zed",
    }.items() for name in names.split()},
}  # fmt: skip
_WORDS_TOO = frozenset(
    ["a", "i", "be", "see", "sea", "gee", "eye", "oh", "pea", "queue", "cue", "are", "tea", "you", "why", "eh", "ex"]
)  # names of letters that are rather words
_SURE = (frozenset(_ALPHABET) | _NAMES.keys()) - _WORDS_TOO
_CUES = frozenset(("as", "in", "for", "like"))  # behind a letter, before a word that begins with it
_TALK = _CUES | frozenset(
    [
        "add",
        "after",
        "again",
        "an",
        "and",
        "another",
        "begin",
        "beginning",
        "begins",
        "by",
        "capital",
        "come",
        "comes",
        "comma",
        "dash",
        "dot",
        "eighth",
        "end",
        "ending",
        "ends",
        "fifth",
        "final",
        "finally",
        "first",
        "followed",
        "fourth",
        "hyphen",
        "is",
        "it",
        "last",
        "lastly",
        "letter",
        "letters",
        "lowercase",
        "next",
        "ninth",
        "now",
        "one",
        "period",
        "plus",
        "second",
        "seventh",
        "sixth",
        "space",
        "start",
        "starting",
        "starts",
        "tenth",
        "that",
        "the",
        "then",
        "third",
        "uppercase",
        "with",
    ]
)
_BEFORE_LETTER = re.compile(r" [^\W\d_](?![^\W_])")
_TALK_OR_NAMES = _TALK | _NAMES.keys() | {"double"}


def find_named(reading: Reading, shapes: Shapes) -> str | None:
    """Return the piece of ``reading`` that names the letters of the target one after the other, folded, or ``None``."""
    if not _may_name(reading.words, shapes):
        return None
    named = _named(reading.cased, reading.low, shapes)
    forms = [form for form in shapes.forms | shapes.backwards if len(form) > 2]
    without_articles = [letter for letter in named if not letter.is_article]
    for letters in (named, without_articles, [letter for letter in named if letter.name not in ("a", "i")]):
        code = "".join(letter.letter for letter in letters)
        for form in forms:
            start = code.find(form)
            if start >= 0 and (piece := _piece(reading.low, letters, start, len(form))) is not None and shapes.is_form(form):
                return piece
    return None


def _may_name(words: tuple[str, ...], shapes: Shapes) -> bool:
    """Tell, fast, whether an utterance with these words may name the target; hardly any that does not passes."""
    if _TALK_OR_NAMES.isdisjoint(words):
        return False
    named = {_NAMES.get(name, name) for name in _SURE.intersection(words)}
    if len(named) > 1 and sum(map(shapes.letters.__contains__, named)) > 1:
        return True
    return any(len(name) > 1 and name not in _WORDS_TOO and not is_word(name) for name in shapes.beginnings.intersection(words))


def _piece(low: str, letters: list["_Named"], start: int, length: int) -> str | None:
    """Return the text that names these letters when they are whole words or fragments, sure enough, and joined by talk or names."""
    found = letters[start : start + length]
    cut = {found[0].start} & {letter.start for letter in letters[:start][-1:]} or {found[-1].end} & {
        letter.end for letter in letters[start + length :][:1]
    }
    piece = low[found[0].start : found[-1].end]
    sure = 2 * sum(letter.sure for letter in found) >= length
    return piece if sure and not cut and not _TALK_OR_NAMES.isdisjoint(_TOKEN.findall(piece)) else None


@dataclass(frozen=True, slots=True)
class _Named:
    """One letter that the word ``name`` from ``start`` to ``end`` names; a bar for a word that names none."""

    letter: str
    name: str
    start: int
    end: int
    sure: bool
    is_article: bool


def _named(reading: str, low: str, shapes: Shapes) -> list[_Named]:
    found: list[_Named] = []
    cue = double = False
    for token in _TOKEN.finditer(low):
        name = token[0]
        before = found[-1] if found else None
        if name == "double":
            double = True
            continue
        if before and len(name) > 1 and name[0] == before.letter == before.name and (cue or name not in _NAMES or name in _NATO):
            cue = False
            continue
        if name in _TALK:
            cue = name in _CUES
            continue
        letters = name if len(name) == 1 else _NAMES.get(name) or _fragment(reading, token.span(), name, shapes)
        if double:
            letters = "w" if letters == "u" else letters * 2
        cue = double = False
        article = name == "a" and _BEFORE_LETTER.match(low, token.end()) is not None
        found += [_Named(letter, name, *token.span(), name not in _WORDS_TOO and letter != "|", article) for letter in letters]
    return found


def _fragment(reading: str, span: tuple[int, int], name: str, shapes: Shapes) -> str:
    """Return a fragment's letters; a bar for a word, or for what is no part of the target."""
    part = any(name in form for form in (*shapes.forms, *shapes.backwards))
    return name if part and not stands_as_word(reading, span, name, capitals=reading.isupper()) else "|"
