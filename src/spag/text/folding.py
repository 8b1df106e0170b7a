"""Folding: one spelling for text that looks the same (case, accents, invisible characters, marks, look-alike letters,
escapes, markup).

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
from functools import lru_cache
from urllib.parse import unquote

import decancer_py
from anyascii import anyascii

_MARKS: dict[int, str | int | None] = {
    **dict.fromkeys(map(ord, "’‘ʼ‛′´ʹ＇"), "'"),
    **dict.fromkeys(map(ord, "“”„‟«»「」『』″"), '"'),
    **dict.fromkeys(map(ord, "‐‑‒–−﹣－"), "-"),
    **str.maketrans("øØłŁđĐħı", "oOlLdDhi"),
    **{ord("æ"): "ae", ord("Æ"): "AE", ord("œ"): "oe", ord("Œ"): "OE"},
}
# drawn as nothing, though Unicode calls most of them letters or symbols
_BLANKS = "\u115f\u1160\u3164\uffa0\u2800\u034f"
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


class _Visible(dict[int, str | int | None]):
    """Translation table, filled on demand: drops format characters, controls, combining marks, variation selectors."""

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
        is_sign = unicodedata.category(char) == "So"
        mark = is_sign and unicodedata.decomposition(char).startswith("<super>")  # the trade mark, no letters
        self[code] = None if hidden else " " if mark else _MARKS.get(code, code)
        return self[code]


class _Latin(dict[int, str]):
    """Translation table, filled on demand: the Latin letters that a letter of another script looks or sounds like."""

    def __init__(self, *, by_sound: bool) -> None:
        self._by_sound = by_sound

    def __missing__(self, code: int) -> str:
        char = chr(code)
        name = "" if fold(char).isascii() else unicodedata.name(char, "")
        foreign = (
            not name
            or _FOREIGN.match(name)
            or (self._by_sound and (_IDEOGRAPH.match(name) or unicodedata.category(char)[0] == "S"))
        )
        if name.startswith("BRAILLE"):
            foreign = not self._by_sound
        latin = char if foreign else anyascii(char) if self._by_sound else str(decancer_py.parse(char))
        self[code] = latin if latin.isascii() and latin.isalpha() and len(latin) <= 2 else char
        return self[code]


class _Upright(dict[int, str | int]):
    """Translation table, filled on demand: the letter that one printed upside down stands for."""

    def __missing__(self, code: int) -> str | int:
        turned = _TURNED_NAME.match(unicodedata.name(chr(code), ""))
        self[code] = turned[1].lower() if turned else code
        return self[code]


_VISIBLE, _LOOKS, _SOUNDS, _UPRIGHT = _Visible(), _Latin(by_sound=False), _Latin(by_sound=True), _Upright(_UPSIDE_DOWN)


def fold(text: str, letters: str = "") -> str:
    """Return ``text`` casefolded and compatibility-normalised, without accents and without anything invisible.

    ``letters``: accented lower-case letters that stay.
    """
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
        before = text
        text = _OCTAL.sub(lambda escape: chr(int(escape[1], 8)), _ESCAPE.sub(_letter, html.unescape(unquote(text))))
        if text == before:
            break
    return text


def _letter(escape: re.Match[str]) -> str:
    """Return the letter that a hexadecimal escape stands for; the escape itself if there is none."""
    code = int(next(group for group in escape.groups() if group), 16)
    return chr(code) if code <= 0x10FFFF and chr(code).isalpha() else escape[0]


@lru_cache(maxsize=8)
def unmasked(text: str, letters: str = "") -> tuple[str, ...]:
    """Return every folded reading of ``text`` with its markup; the first is ``text`` itself, HTML's entities undone."""
    return tuple(dict.fromkeys(fold(each, letters) for each in _unmasked(text)))


@lru_cache(maxsize=8)  # one utterance is searched several times
def readings(text: str, letters: str = "") -> tuple[str, ...]:
    """Return every folded reading of ``text``: unchanged, unmasked, and each of these without markup."""
    masked = unmasked(text, letters)
    return tuple(dict.fromkeys((*masked, *map(without_markup, masked))))


@lru_cache(maxsize=8)
def cased_readings(text: str, letters: str = "") -> tuple[str, ...]:
    """Return ``readings`` with capital letters kept."""
    masked = tuple(_plain(each, letters, str) for each in _unmasked(text))
    return tuple(dict.fromkeys((*masked, *map(without_markup, masked))))


def without_markup(text: str) -> str:
    """Return ``text`` without emphasis marks, HTML-like tags and comments, LaTeX commands, and addresses of links."""
    if _MAY_MARK.search(text):
        text = _MARKUP.sub("", text)
    return text.replace("*", "").replace("_", "").replace("~", "").replace("`", "")


def without_tags(text: str) -> str:
    """Return ``text`` without HTML-like tags; an unknown one that is never closed is a word in brackets: "It is
    <river>!".
    """
    if "<" not in text:
        return text
    closed = _TAGS.union(re.findall(r"</([A-Za-z]\w{0,20})", text))
    return _TAG.sub(lambda tag: "" if tag[1].casefold() in closed or tag[0][1] == "/" else f'"{tag[0][1:-1]}"', text)
