"""The general rule: neighbouring fragments, with anything but words between, spell the target and are not all words.

It finds ``ri ver``, ``r-i-v-e-r``, ``(riv)er``, ``r1i2v3e4r``, ``'riv' + 'er'``, one letter a line, ``guitar2`` (one
fragment next to a digit is enough), the same with letters doubled (``riiiver``) and backwards (``r-e-v-i-r``). "To get
her" stays fine, and so do single letters that go on to another word: ``d-r-i-v-e-r``.
"""

import re
from itertools import islice, pairwise

from spag.text.english import NOUNS_TOO
from spag.text.lexicon import LONGEST_WORD, Lexicon
from spag.text.shapes import LETTERS, Reading, Shapes, squeezed

_RUN = re.compile(r"(.)\1*")
_MOST = 300  # runs looked at in one utterance; only a hostile one has more
_LONGEST_GAP = 40  # characters between two fragments
_SPELLED = 24  # letters looked at on each side of a spelled word
# between the halves of one written word: car-pet says carpet, "car pet" does not
_TIGHT = re.compile(r"[-_*~|+\\·•=]+|\.(?=[a-z])")
_CONTRACTION = re.compile(r"(?<![^\W\d_])([^\W\d_]++)(?:'([^\W\d_]+)|\((?:s|es)\))")
_ENDINGS = frozenset(("s", "t", "d", "m", "ll", "re", "ve", "em", "all"))
_NEXT_LETTER = re.compile(r"[^\w\s][^\W_](?![^\W_])")  # U.S. goes on in U.S.A.
_LABEL_END = re.compile(r"[.):]")
_BESIDE_DIGIT = re.compile(r"^\d|\d$")
_NUMBER_BEFORE = re.compile(r"\d ?$")
_NAME = 3.5  # how common, in ``frequency``'s unit, letters must be for a capital to make them a name or an abbreviation
_SEEN = 2.0  # and for letters to be a word at all
FUNCTION_WORDS = frozenset([
    "a", "about", "after", "all", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "did", "do", "does",
    "for", "from", "had", "has", "have", "he", "her", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its",
    "may", "me", "my", "no", "not", "of", "off", "on", "one", "or", "our", "out", "over", "own", "she", "so", "than",
    "that", "the", "their", "them", "then", "these", "they", "this", "those", "to", "too", "under", "until", "up", "us",
    "was", "we", "were", "what", "when", "where", "which", "who", "will", "with", "would", "you", "your",
])  # fmt: skip
"""Words around which a letter is a label: "B and C", "class C at noon"."""

Span = tuple[int, int]


def find_split(reading: Reading, shapes: Shapes) -> str | None:
    """Return the first fragments of ``reading``, folded, that spell a form of the target, or ``None``."""
    parts = (part for word in reading.words if not word.isalpha() for part in LETTERS.findall(word))
    begun = (word for word in (*reading.words, *parts) if word[0] in shapes.beginnings)  # few words: squeezing is slow
    starts = {word for word in begun if word in shapes.beginnings or squeezed(word) in shapes.beginnings}
    if not starts:
        return None
    low = reading.low
    names = LETTERS.findall(low)
    spans = [found.span() for found in LETTERS.finditer(low)]
    firsts = (first for first, name in enumerate(names) if name in starts)
    runs = ((first, last, key) for first in firsts for last, key in _spelled(names, first, shapes))
    for first, last, key in islice(runs, _MOST):
        window = spans[first : last + 1]
        letters = "".join(names[first : last + 1])
        forms = (form for form in shapes.squeezed[key] if _covers(letters, form) and shapes.is_form(form))
        if any(_is_meant(reading.cased, low, window, form, shapes) for form in forms):
            return low[window[0][0] : window[-1][1]]
    return None


def _spelled(names: list[str], first: int, shapes: Shapes) -> list[tuple[int, str]]:
    """Return (last, key) for each run of names from ``first`` on that, squeezed, are a key of ``shapes.squeezed``."""
    found, key = [], ""
    for last in range(first, min(len(names), first + 2 * max(shapes.by_length))):
        name = squeezed(names[last])
        key += name[1:] if key.endswith(name[0]) else name
        if key not in shapes.beginnings:
            break
        if key in shapes.squeezed:
            found.append((last, key))
    return found


def _covers(letters: str, form: str) -> bool:
    """Tell whether ``letters`` are ``form`` with each letter once or more; both are equal when squeezed."""
    runs = (len(run[0]) for run in _RUN.finditer(form))
    return letters == form or all(len(run[0]) >= least for run, least in zip(_RUN.finditer(letters), runs, strict=True))


def _is_meant(reading: str, low: str, window: list[Span], form: str, shapes: Shapes) -> bool:
    pieces = [low[start:end] for start, end in window]
    letters = "".join(pieces)
    if _cuts_contraction(low, window, shapes.lexicon):
        return False
    if len(pieces) == 1:
        around = low[max(0, window[0][0] - 1) : window[0][1] + 1]
        return _is_meant_alone(letters, form, shapes, beside_digit=_BESIDE_DIGIT.search(around) is not None)
    gaps = [low[left[1] : right[0]] for left, right in pairwise(window)]
    spaced = any(char.isspace() for gap in gaps for char in gap)
    equation = spaced and any("=" in gap for gap in gaps)  # b = 1, a = 2 do not spell bad
    far = max(map(len, gaps)) > _LONGEST_GAP or equation
    short = len(letters) < 3 and (spaced or _NEXT_LETTER.match(low, window[-1][1]) is not None)
    if far or short or _spells_on(low, window, gaps[0], shapes.lexicon):
        return False
    capitals = all(reading[start:end].isupper() for start, end in window)
    words = [
        piece
        for piece, span in zip(pieces, window, strict=True)
        if stands_as_word(reading, span, piece, shapes.lexicon, capitals=capitals)
    ]
    if form in shapes.backwards:
        return not any(len(word) > 1 for word in words)
    if len(words) == len(pieces):
        marks = ((_TIGHT.match(reading, left[1]), right[0]) for left, right in pairwise(window))
        return letters == form and all(mark is not None and mark.end() == end for mark, end in marks)
    return not (spaced and _is_labelled(reading, window, pieces, words))


def _spells_on(low: str, window: list[Span], gap: str, lexicon: Lexicon) -> bool:
    """Return whether single letters continue beyond a window, each after ``gap``, to another word (P-A-R-T-Y)."""
    (start, _), (_, end) = window[0], window[-1]
    if any(right - left > 1 for left, right in window):
        return False
    step, width = re.escape(gap), _SPELLED * (len(gap) + 1)
    before = re.search(rf"(?<![^\W_])(?<!')(?:[^\W\d_]{step})*$", low[max(0, start - width) : start])
    after = re.match(rf"(?:{step}[^\W\d_](?![^\W_]))*", low[end : end + width])
    more = before[0] if before else "", after[0] if after else ""
    whole = "".join(LETTERS.findall(low[start:end].join(more)))
    return len(whole) > len(window) and (lexicon.is_known(whole) or lexicon.is_word(whole))


def _is_meant_alone(letters: str, form: str, shapes: Shapes, *, beside_digit: bool) -> bool:
    """One fragment next to a digit says the target; if stretched or backwards, only when it is not a word."""
    if letters == form and form not in shapes.backwards:
        return beside_digit and len(letters) > 2 and letters not in NOUNS_TOO
    stretched = any(len(run[0]) > 2 for run in _RUN.finditer(letters)) and form not in shapes.backwards
    return len(letters) > 3 and (stretched or not _is_seen(letters, shapes.lexicon))


def _is_seen(letters: str, lexicon: Lexicon) -> bool:
    """Tell whether ``letters`` are a word in use."""
    return lexicon.is_known(letters) or lexicon.frequency(letters) >= _SEEN


def _cuts_contraction(low: str, window: list[Span], lexicon: Lexicon) -> bool:
    """Tell whether a fragment is a part of don't, dog's, o'clock or book(s)."""
    start, end = window[0][0], window[-1][1]
    near = _CONTRACTION.finditer(low, max(0, start - 30), end + 30)
    return any(
        found[2] is None or found[2] in _ENDINGS or lexicon.is_known(found[0])
        for found in near
        if found.end() > start and found.start() < end
    )


def stands_as_word(reading: str, span: Span, piece: str, lexicon: Lexicon, *, capitals: bool) -> bool:
    """Tell whether a fragment is a word, a name or an abbreviation by its capitals, or a unit after its number."""
    written = reading[span[0] : span[1]]
    if lexicon.is_word(piece):
        return True
    if len(piece) < 2:
        return False
    named = written.istitle() or (written.isupper() and len(piece) < 5 and not capitals)
    unit = len(piece) < 5 and _NUMBER_BEFORE.search(reading[max(0, span[0] - 2) : span[0]])
    return bool(named or unit) and lexicon.frequency(piece) >= _NAME


def _is_labelled(reading: str, window: list[Span], pieces: list[str], words: list[str]) -> bool:
    """Tell whether the fragments are words and single letters that label things: "class C at noon", "10 m at most"."""
    whole = [piece for piece in pieces if len(piece) > 1]
    singles = [span for span in window if span[1] - span[0] == 1]
    if not whole or any(piece not in words for piece in whole) or len(singles) > sum(map(len, whole)):
        return False
    label = all(
        reading[start].isupper()
        or _LABEL_END.match(reading, end)
        or _NUMBER_BEFORE.search(reading[max(0, start - 2) : start])
        for start, end in singles
    )
    return label or FUNCTION_WORDS.issuperset(whole)


def find_glued(reading: Reading, shapes: Shapes) -> str | None:
    """Return a word that joins the target to function words or sets it off by a capital: theguitar, xGuitarY."""
    low = reading.low
    inside = [form for form in shapes.forms if len(form) > 3 and form in low and shapes.is_form(form)]
    for found in LETTERS.finditer(low) if inside else ():
        token = found[0]
        written = reading.cased[found.start() : found.end()]
        if len(token) <= LONGEST_WORD and any(
            form in token and _is_glued(token, form, written, shapes) for form in inside
        ):
            return token
    return None


def _is_glued(token: str, form: str, written: str, shapes: Shapes) -> bool:
    start = token.index(form)
    end = start + len(form)
    others = FUNCTION_WORDS | shapes.forms | {""}
    before = token[:start] in others or (written[start].isupper() and not written[start - 1].isupper())
    after = token[end:] in others or (written[end].isupper() and not written[end - 1].isupper())
    return before and after and token != form and not _is_seen(token, shapes.lexicon)
