"""Folding: one spelling for what looks the same (case, accents, invisible characters, typographic marks, look-alike letters, markup).

The paper's judge only lower-cases an utterance, so a soft hyphen, a Cyrillic letter or a pair of asterisks hides a word from it. ``fold``
removes what a reader does not see; ``readings`` adds the readings in which look-alike letters are replaced and markup is removed. All of it
takes time linear in the length of the text: combining marks go before normalisation, which sorts them in quadratic time.
"""

import html
import re
import unicodedata
from functools import lru_cache

import decancer_py

_MARKS: dict[int, str | int | None] = {
    **dict.fromkeys(map(ord, "’‘ʼ‛′´ʹ＇"), "'"),
    **dict.fromkeys(map(ord, "“”„‟«»「」『』″"), '"'),
    **dict.fromkeys(map(ord, "‐‑‒–−﹣－"), "-"),
    **str.maketrans("øØłŁđĐħı", "oOlLdDhi"),
    **{ord("æ"): "ae", ord("Æ"): "AE", ord("œ"): "oe", ord("Œ"): "OE"},
}
_BLANKS = "\u115f\u1160\u3164\uffa0\u2800\u034f"  # drawn as nothing, though Unicode calls most of them letters or symbols
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")
# Names of letters that imitate Latin ones. In other scripts look-alikes are loose, and words written in them would be misread.
_IMITATIONS = re.compile(r"\b(?:LATIN|GREEK|CYRILLIC|CHEROKEE|INDICATOR)\b.*\bLETTER\b")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,80}>")


class _Visible(dict[int, str | int | None]):
    """Translation table, filled on demand: drops format characters, controls, combining marks and variation selectors."""

    def __missing__(self, code: int) -> str | int | None:
        char = chr(code)
        hidden = (
            unicodedata.combining(char) != 0
            or unicodedata.category(char) == "Cf"
            or (unicodedata.category(char) == "Cc" and not char.isspace())
            or 0xFE00 <= code <= 0xFE0F
            or 0xE0100 <= code <= 0xE01EF
            or char in _BLANKS
        )
        self[code] = None if hidden else _MARKS.get(code, code)
        return self[code]


class _Lookalikes(dict[int, str]):
    """Translation table, filled on demand: gives the Latin letters that a letter looks like, in lower case."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        imitates = not fold(char).isascii() and _IMITATIONS.search(unicodedata.name(char, ""))
        latin = str(decancer_py.parse(char)) if imitates else char
        self[code] = latin if latin.isascii() and latin.isalpha() else char
        return self[code]


_VISIBLE, _LOOKALIKES = _Visible(), _Lookalikes()


def fold(text: str) -> str:
    """Return ``text`` casefolded and compatibility-normalised, without accents and without anything invisible."""
    text = _CONTROLS.sub("", text)
    if text.isascii():
        return text.casefold()
    text = unicodedata.normalize("NFKD", text.translate(_VISIBLE)).casefold().translate(_VISIBLE)
    return unicodedata.normalize("NFC", text)


@lru_cache(maxsize=8)
def unmasked(text: str) -> tuple[str, ...]:
    """Return ``text`` folded, and folded again with look-alike letters replaced where that differs. Markup stays."""
    text = html.unescape(text)
    return (fold(text),) if text.isascii() else tuple(dict.fromkeys((fold(text), fold(text.translate(_LOOKALIKES)))))


@lru_cache(maxsize=8)
def readings(text: str) -> tuple[str, ...]:
    """Return every folded reading of ``text``: as it stands, look-alikes replaced, and each of those without markup.

    Cached because one utterance is searched several times.
    """
    masked = unmasked(text)
    return tuple(dict.fromkeys((*masked, *map(without_markup, masked))))


def without_markup(text: str) -> str:
    """Return ``text`` without emphasis marks and HTML-like tags."""
    return without_tags(text).replace("*", "").replace("_", "").replace("~", "").replace("`", "")


def without_tags(text: str) -> str:
    """Return ``text`` without HTML-like tags."""
    return _TAG.sub("", text)
