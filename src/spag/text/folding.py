"""Folding: one spelling for text that looks the same (case, accents, invisible characters, escapes, markup).

The paper's judge only lower-cases an utterance, so a soft hyphen, a Cyrillic letter or a pair of asterisks hides a word
from it. ``fold`` removes what a reader does not see; ``readings`` adds the readings in which escapes are decoded,
letters that imitate Latin ones are replaced by them (by the tables of ``decancer-py`` for looks and ``anyascii`` for
sounds), and markup is removed. All of it runs in linear time: combining marks are removed before normalisation, which
sorts them in quadratic time.
"""

import html
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache, partial
from urllib.parse import unquote

import decancer_py
from anyascii import anyascii

from spag.core.visible import BLANKS

_MARKS: dict[int, str | int | None] = {
    **dict.fromkeys(map(ord, "’‘ʼ‛′´ʹ＇"), "'"),
    **dict.fromkeys(map(ord, "“”„‟«»「」『』″"), '"'),
    **dict.fromkeys(map(ord, "‐‑‒–−﹣－"), "-"),
    **str.maketrans("øØłŁđĐħı", "oOlLdDhi"),
    **{ord("æ"): "ae", ord("Æ"): "AE", ord("œ"): "oe", ord("Œ"): "OE"},
}
# drawn as nothing, though Unicode calls most of them letters or symbols
_BLANKS = set(BLANKS) | set(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))  # variation selectors
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")
# Scripts whose letters do not stand for Latin ones: they have look-alikes and sounds too, but their words would be
# misread.
_FOREIGN = re.compile(
    r"HEBREW|ARABIC|SYRIAC|HIRAGANA|KATAKANA|HANGUL|THAI|LAO|KHMER|MYANMAR|TIBETAN|DEVANAGARI|BENGALI|GURMUKHI|"
    r"GUJARATI|ORIYA|TAMIL|TELUGU|KANNADA|MALAYALAM|SINHALA|ETHIOPIC"
)
_IDEOGRAPH = re.compile(r"CJK|BOPOMOFO|YI |NUSHU|TANGUT")  # imitate by their looks only
_TURNED_NAME = re.compile(r"LATIN (?:SMALL|CAPITAL) LETTER (?:SMALL CAPITAL )?(?:TURNED|REVERSED) ([A-Z])")
_TURNED = re.compile(
    r"[\u0250\u0254\u01dd\u025f\u0183\u0265\u1d09\u029e\u026f\u0279\u0287\u028c\u028d\u028e\u2200\u018e\u2132\u2144]"
)
_UPSIDE_DOWN = {
    **str.maketrans("ɔɟƃıɾןſ∀⅄Ɔ˥Λ", "cfgijljaYclv"),
    **str.maketrans("bdpqnuBDPQNUMWmw", "qpdbunqpdbunwmwm"),
}
_ESCAPE = re.compile(
    r"[\\%]u([0-9a-f]{4})|\\u\{([0-9a-f]{1,6})\}|\\?u\+([0-9a-f]{4,6})|\\x\{?([0-9a-f]{2})\}?|(?:\b0x|=)([0-9a-f]{2})",
    re.IGNORECASE,
)
_OCTAL = re.compile(r"\\([01][0-7]{2})")
_MAY_ESCAPE = re.compile(r"%[0-9a-fA-Fu]|\\[uxUN0-7]|[uU]\+[0-9a-fA-F]|0x|=[0-9a-fA-F]|&")
_TAG = re.compile(r"</?([A-Za-z]\w{0,80})[^<>]{0,80}>")
_TAGS = frozenset([
    "b", "i", "u", "s", "p", "a", "br", "hr", "img", "wbr", "em", "strong", "small", "big", "sub", "sup", "span", "div",
    "code", "pre", "font", "mark", "del", "ins", "kbd", "tt", "li", "ul", "ol",
])  # fmt: skip
_MAY_MARK = re.compile(r"[<\\\]]|/\*|[^\W\d_][(\[{]")
_MARKUP = re.compile(
    r"<!--.{0,200}?-->|/\*.{0,80}?\*/|</?[A-Za-z][^<>]{0,80}>|\\[A-Za-z]{2,20}\*?(?=\{)"
    r"|\]\([^()\s]{0,200}\)|\]\[[^\[\]\s]{0,80}\]"
    r"|(?<=[^\W\d_])(?:\([^()\s]{0,20}\)|\[[^\[\]\s]{0,20}\]|\{[^{}\s]{0,20}\})(?=[^\W\d_])"
)


class _Table(dict[int, str | int | None]):
    """A translation table, filled on demand by a function of the code point."""

    def __init__(self, translated: Callable[[int], str | int | None]) -> None:
        self._translated = translated

    def __missing__(self, code: int) -> str | int | None:
        self[code] = self._translated(code)
        return self[code]


def _visible(code: int) -> str | int | None:
    """Drop what is drawn as nothing: format characters, controls, combining marks, variation selectors."""
    char = chr(code)
    category = unicodedata.category(char)
    hidden = category == "Cf" or (category == "Cc" and not char.isspace())
    if hidden or unicodedata.combining(char) or char in _BLANKS:
        return None
    if category == "So" and unicodedata.decomposition(char).startswith("<super>"):
        return " "  # the trade mark, not letters
    return _MARKS.get(code, code)


def _latin(code: int, *, by_sound: bool) -> str:
    """Return the Latin letters that a letter of another script looks or sounds like."""
    char = chr(code)
    name = "" if fold(char).isascii() else unicodedata.name(char, "")
    if name.startswith("BRAILLE"):
        foreign = not by_sound
    else:
        by_looks = by_sound and (_IDEOGRAPH.match(name) or unicodedata.category(char)[0] == "S")
        foreign = not name or bool(_FOREIGN.match(name) or by_looks)
    latin = char if foreign else anyascii(char) if by_sound else str(decancer_py.parse(char))
    return latin if latin.isascii() and latin.isalpha() and len(latin) <= 2 else char


def _upright(code: int) -> str | int:
    """Return the letter represented by one printed upside down."""
    turned = _TURNED_NAME.match(unicodedata.name(chr(code), ""))
    return _UPSIDE_DOWN.get(code) or (turned[1].lower() if turned else code)


_VISIBLE, _UPRIGHT = _Table(_visible), _Table(_upright)
_LOOKS, _SOUNDS = _Table(partial(_latin, by_sound=False)), _Table(partial(_latin, by_sound=True))


def fold(text: str, letters: str = "") -> str:
    """Return ``text`` casefolded, normalised, without accents (except on ``letters``) and anything invisible."""
    return _plain(text, letters, str.casefold)


def _plain(text: str, letters: str, cased: Callable[[str], str]) -> str:
    text = _CONTROLS.sub("", text)
    if text.isascii():
        return cased(text)
    if letters:
        parts = _parted(text, letters)
        return "".join(cased(part) if part.lower() in letters else _plain(part, "", cased) for part in parts)
    text = cased(unicodedata.normalize("NFKD", text.translate(_VISIBLE)))
    return unicodedata.normalize("NFC", text.translate(_VISIBLE))


def _parted(text: str, letters: str) -> list[str]:
    """Return ``text`` split before and after each of ``letters``, which may be written as a letter and a mark."""
    both = letters + letters.upper()
    for letter in both:
        text = text.replace(unicodedata.normalize("NFD", letter), letter)
    return re.split(f"([{both}])", text)


@lru_cache(maxsize=8)
def _unmasked(text: str) -> tuple[str, ...]:
    """Return the distinct readings of ``text``: without HTML entities; decoded; and each of these in Latin letters."""
    plain = html.unescape(text)
    if plain.isascii() and not _MAY_ESCAPE.search(plain):
        return (plain,)
    texts = []
    for each in dict.fromkeys((plain, _decoded(plain))):
        texts.append(each)
        if not each.isascii():
            texts += [each.translate(_LOOKS), each.translate(_SOUNDS)]
            if _TURNED.search(each):
                texts.append(each.translate(_UPRIGHT)[::-1])
    return tuple(dict.fromkeys(texts))


def _decoded(text: str) -> str:
    """Decode the escapes of URLs, programs and web pages, up to three times over."""
    for _ in range(3):
        if not _MAY_ESCAPE.search(text):
            break
        text = _OCTAL.sub(lambda escape: chr(int(escape[1], 8)), _ESCAPE.sub(_letter, html.unescape(unquote(text))))
    return text


def _letter(escape: re.Match[str]) -> str:
    """Return the letter represented by a hexadecimal escape; the escape itself if there is none."""
    code = int(next(group for group in escape.groups() if group), 16)
    return chr(code) if code <= 0x10FFFF and chr(code).isalpha() else escape[0]


@lru_cache(maxsize=8)
def unmasked(text: str, letters: str = "", cased: Callable[[str], str] = str.casefold) -> tuple[str, ...]:
    """Return every folded reading of ``text`` with its markup; the first is ``text`` itself, HTML's entities undone."""
    return tuple(dict.fromkeys(_plain(each, letters, cased) for each in _unmasked(text)))


@lru_cache(maxsize=8)  # one utterance is searched several times
def readings(text: str, letters: str = "", cased: Callable[[str], str] = str.casefold) -> tuple[str, ...]:
    """Return every folded reading: as is, unmasked, and each without markup. ``cased``: ``str`` keeps capitals."""
    masked = unmasked(text, letters, cased)
    return tuple(dict.fromkeys((*masked, *map(without_markup, masked))))


def without_markup(text: str) -> str:
    """Return ``text`` without emphasis marks, HTML-like tags and comments, LaTeX commands, and addresses of links."""
    if _MAY_MARK.search(text):
        text = _MARKUP.sub("", text)
    return text.replace("*", "").replace("_", "").replace("~", "").replace("`", "")


def without_tags(text: str) -> str:
    """Return ``text`` without HTML-like tags; one like "<river>", unknown and never closed, is a word in quotes."""
    if "<" not in text:
        return text
    closed = _TAGS.union(re.findall(r"</([A-Za-z]\w{0,20})", text))
    return _TAG.sub(lambda tag: "" if tag[1].casefold() in closed or tag[0][1] == "/" else f'"{tag[0][1:-1]}"', text)
