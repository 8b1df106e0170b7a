"""Symbols for letters: digits and marks that look like them (``r1ver``, ``c@t``), and blanks (``riv__``, ``r*ver``).

A number next to a word is not a spelling: ``8ounces`` is not bounces, ``room5`` not rooms, and ``4 x 3`` has too few
letters to be an axe.
"""

import re
from collections.abc import Iterator

from spag.text.fragments import FUNCTION_WORDS
from spag.text.lexicon import LONGEST_WORD, Lexicon
from spag.text.shapes import LETTERS, Reading, Shapes

_LOOKS_LIKE = {
    "a": "4@^", "b": "86", "c": "(<¢", "e": "3€", "g": "69", "i": "1!|", "l": "1!|7£", "o": "0", "q": "9", "r": "2",
    "s": "5$§", "t": "7+", "u": "v", "y": "¥", "z": "2",
}  # fmt: skip
_PICTURES = (
    ("|\\/|", "m"), ("\\/\\/", "w"), ("|\\|", "n"), ("|_|", "u"), ("|-|", "h"), ("/-\\", "a"), ("/\\", "a"),
    ("\\/", "v"), ("|)", "d"), ("|>", "p"), ("|<", "k"), ("|2", "r"), ("()", "o"), ("[]", "o"),
)  # fmt: skip
_SYMBOL = re.compile(
    r"(?<=[^\W_])(?:[^\w\s'.,;:?\"\-/)\]]|[\d_])|(?:[^\w\s'.,;:?\"\-/(\[]|[\d_])(?=[^\W_])"
    r"|(?<=[^\W\d_])[.\-?](?=[^\W\d_])"
)
# text without any of these is skipped
_ODD = re.compile(r"[^\w\s'.,;:?\"()\-/!]|[\d_]|[.\-?!/(\[](?<=[^\W_].)(?=[^\W_])")
_LONE_DIGIT = re.compile(r"\d(?<![^\W_]\d)(?![^\W_])")
_PICTURE = re.compile("|".join(re.escape(picture) for picture, _ in _PICTURES))
_EDGES_OF_PICTURES = ".,;:?!\"'`"
_EDGES = ".,;:?!\"'()[]{}~`"
_SPELLED = re.compile(r"(?<![^\W_])[^\W_](?:(?:[^\w'=×÷/]|_){1,4}[^\W_](?![^\W_]))+")
_SEPARATORS = re.compile(r"[\W_]+")
_NUMBER = re.compile(
    r"[\W\d]+(?:st|nd|rd|th|[ap]m|[a-z]|[kmc]m|[km]g|ml|[kmgt]b|[km]?hz|ft|lbs?|oz|in|hrs?|mins?|secs?|px|pt|[mk]ph)"
)
_UNITS = frozenset([
    "foot", "gram", "hour", "inch", "litre", "meter", "metre", "mile", "minute", "ounce", "pound", "ton", "way", "year",
])  # fmt: skip
_BLANKS_AT_ENDS = frozenset("*_#")


def find_symbols(reading: Reading, shapes: Shapes) -> str | None:
    """Return the first chunk of ``reading`` that is a form of the target in letters and symbols, or ``None``."""
    low = reading.low
    if not _ODD.search(low):
        return None
    for piece, chunk in _chunks(low, shapes):
        forms = shapes.by_length.get(len(chunk), ())
        if any(_is_form(chunk, form, shapes.lexicon) and shapes.is_form(form) for form in forms):
            return piece
    return None


def _chunks(low: str, shapes: Shapes) -> Iterator[tuple[str, str]]:
    """Yield (piece, chunk): text between spaces without the marks around it, and spelled-out runs without gaps."""
    pieces = low.split()
    for piece in pieces:
        chunk = piece.strip(_EDGES)
        if len(chunk) in shapes.by_length and _SYMBOL.search(piece):
            yield chunk, chunk
    if _PICTURE.search(low):
        for piece in pieces:
            drawn = len(piece) <= 2 * LONGEST_WORD and _PICTURE.search(piece)
            if drawn and not all(map(shapes.lexicon.is_word, LETTERS.findall(piece))):
                yield piece, _pictures_read(piece.strip(_EDGES_OF_PICTURES))
    for run in _SPELLED.findall(low) if _LONE_DIGIT.search(low) else ():
        chunk = _SEPARATORS.sub("", run[: 4 * LONGEST_WORD])
        if 2 * sum(map(str.isalpha, chunk)) > len(chunk):
            yield run, chunk


def _pictures_read(chunk: str) -> str:
    for picture, letter in _PICTURES:
        chunk = chunk.replace(picture, letter)
    return chunk


def _is_form(chunk: str, form: str, lexicon: Lexicon) -> bool:
    """Tell whether ``chunk``, as long as ``form``, is ``form`` with symbols for some letters, but still legible."""
    if len(form) < 3:
        return False
    letters = symbols = blanks = 0
    for char, letter in zip(chunk, form, strict=True):
        if char == letter:
            letters += 1
        elif char in _LOOKS_LIKE.get(letter, ""):
            symbols += 1
        elif char.isalnum() or char in "'/":
            return False
        else:
            blanks += 1
    if blanks:
        ends = {end for end in (chunk[0], chunk[-1]) if not end.isalnum()}
        least = 4 if {"-", "."} & set(chunk) else 2
        enough = letters >= least and 2 * (letters + symbols) > len(form) and ends <= _BLANKS_AT_ENDS
        return enough and not all(map(lexicon.is_word, LETTERS.findall(chunk)))
    return (letters > 1 and 3 * letters >= len(form) and not _is_number_and_word(chunk, lexicon)) or not symbols


def _is_number_and_word(chunk: str, lexicon: Lexicon) -> bool:
    """Tell whether digits come before or after words: 8ounces, 4x4s, room5; but 5hip and 0range are spellings."""
    words = LETTERS.findall(chunk)
    if _NUMBER.fullmatch(chunk):
        return True
    if not all(map(lexicon.is_word, words)) or re.search(r"[^\w]", chunk):
        return False
    leading = len(words) == 1 and chunk.endswith(words[0]) and len(chunk) - len(words[0]) == 1
    return not leading or (chunk[0] != "0" and (words[0].endswith("s") or words[0] in _UNITS | FUNCTION_WORDS))
