"""Named letters: "R as in Romeo, I as in India", "first an r, then i", "r and i and v and e and r", "ar eye vee ee ar",
"riv plus er". English only.

Words that talk about spelling are skipped; the rest must be letters, names of letters or fragments that are not words,
and must spell the target in order.
"""

import re
from dataclasses import dataclass

from spag.text.english import is_word
from spag.text.fragments import stands_as_word
from spag.text.shapes import Reading, Shapes

_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_NATO = [
    "alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima", "mike",
    "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango", "uniform", "victor", "whiskey", "xray", "yankee",
    "zulu",
]  # fmt: skip
_SPOKEN = {
    "a": "ay eh", "b": "bee be", "c": "cee see sea", "d": "dee", "e": "ee", "f": "ef eff", "g": "gee jee",
    "h": "aitch haitch", "i": "eye", "j": "jay", "k": "kay", "l": "el ell", "m": "em", "n": "en", "o": "oh",
    "p": "pee pea", "q": "cue queue kew", "r": "ar arr are", "s": "es ess", "t": "tee tea", "u": "you yu", "v": "vee",
    "w": "doubleyou doubleu", "x": "ex", "y": "wye why", "z": "zee zed",
}  # fmt: skip
_NAMES = {
    **{word: word[0] for word in (*_NATO, "alfa", "juliett", "whisky")},
    **{name: letter for letter, names in _SPOKEN.items() for name in names.split()},
}
_WORDS_TOO = frozenset(
    ["a", "i", "be", "see", "sea", "gee", "eye", "oh", "pea", "queue", "cue", "are", "tea", "you", "why", "eh", "ex"]
)  # more likely words
_SURE = (frozenset("abcdefghijklmnopqrstuvwxyz") | _NAMES.keys()) - _WORDS_TOO
_CUES = frozenset(("as", "in", "for", "like"))  # after a letter, before a word that begins with it
_TALK = _CUES | frozenset([
    "add", "after", "again", "an", "and", "another", "begin", "beginning", "begins", "by", "capital", "come", "comes",
    "comma", "dash", "dot", "eighth", "end", "ending", "ends", "fifth", "final", "finally", "first", "followed",
    "fourth", "hyphen", "is", "it", "last", "lastly", "letter", "letters", "lowercase", "next", "ninth", "now", "one",
    "period", "plus", "second", "seventh", "sixth", "space", "start", "starting", "starts", "tenth", "that", "the",
    "then", "third", "uppercase", "with",
])  # fmt: skip
_BEFORE_LETTER = re.compile(r" [^\W\d_](?![^\W_])")
_TALK_OR_NAMES = _TALK | _NAMES.keys() | {"double"}


@dataclass(frozen=True, slots=True)
class _Letter:
    """One letter that the word ``name`` from ``start`` to ``end`` names; a bar if the word names none."""

    letter: str
    name: str
    start: int
    end: int
    sure: bool
    is_article: bool


def find_named(reading: Reading, shapes: Shapes) -> str | None:
    """Return the piece of ``reading``, folded, that names the letters of the target in order, or ``None``."""
    if not _may_name(reading.words, shapes):
        return None
    named = _letters_of(reading.cased, reading.low, shapes)
    without_articles = [letter for letter in named if not letter.is_article]
    without_words = [letter for letter in named if letter.name not in ("a", "i")]
    long_enough = (form for form in shapes.forms | shapes.backwards if len(form) > 2)
    forms = sorted(long_enough, key=lambda form: (-len(form), form))  # sets differ in order between processes
    for letters in (named, without_articles, without_words):
        code = "".join(letter.letter for letter in letters)
        for form in forms:
            start = code.find(form)
            piece = _piece(reading.low, letters, start, len(form)) if start >= 0 else None
            if piece is not None and shapes.is_form(form):
                return piece
    return None


def _may_name(words: tuple[str, ...], shapes: Shapes) -> bool:
    """Tell quickly whether an utterance with these words may name the target; few others pass."""
    if _TALK_OR_NAMES.isdisjoint(words):
        return False
    named = {_NAMES.get(name, name) for name in _SURE.intersection(words)}
    if len(shapes.letters & named) > 1:
        return True
    beginnings = shapes.beginnings.intersection(words)
    return any(len(name) > 1 and name not in _WORDS_TOO and not is_word(name) for name in beginnings)


def _piece(low: str, letters: list[_Letter], start: int, length: int) -> str | None:
    """Return the text that names ``length`` letters from ``start`` on, ``None`` if nobody would read it as letters."""
    end = start + length
    first, last = letters[start], letters[end - 1]
    if start > 0 and letters[start - 1].start == first.start:
        return None  # it begins inside a fragment
    if end < len(letters) and letters[end].end == last.end:
        return None  # it ends inside one
    if 2 * sum(letter.sure for letter in letters[start:end]) < length:
        return None
    piece = low[first.start : last.end]
    joined = not _TALK_OR_NAMES.isdisjoint(_TOKEN.findall(piece))
    return piece if joined else None


def _letters_of(reading: str, low: str, shapes: Shapes) -> list[_Letter]:
    """Return every letter that the words of ``low`` name, in order."""
    found: list[_Letter] = []
    cue = double = False
    for token in _TOKEN.finditer(low):
        name = token[0]
        if name == "double":
            double = True
        elif found and _repeats(found[-1], name, cue=cue):
            cue = False
        elif name in _TALK:
            cue = name in _CUES
        else:
            letters = name if len(name) == 1 else _NAMES.get(name) or _fragment(reading, token.span(), name, shapes)
            if double:
                letters = "w" if letters == "u" else letters * 2
            sure, article = name not in _WORDS_TOO, name == "a" and bool(_BEFORE_LETTER.match(low, token.end()))
            found += [_Letter(letter, name, *token.span(), sure and letter != "|", article) for letter in letters]
            cue = double = False
    return found


def _repeats(before: _Letter, name: str, *, cue: bool) -> bool:
    """Tell whether ``name`` only explains the bare letter before it: "r as in rain", "r romeo"."""
    return len(name) > 1 and name[0] == before.letter == before.name and (cue or name not in _NAMES or name in _NATO)


def _fragment(reading: str, span: tuple[int, int], name: str, shapes: Shapes) -> str:
    """Return a fragment's letters; a bar for a word, or for anything that is not part of the target."""
    part = any(name in form for form in (*shapes.forms, *shapes.backwards))
    word = part and stands_as_word(reading, span, name, shapes.lexicon, capitals=reading.isupper())
    return name if part and not word else "|"
