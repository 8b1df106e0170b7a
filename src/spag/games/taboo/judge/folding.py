"""One spelling for what looks the same: case, accents, invisible characters, typographic marks, look-alike letters, markup.

The paper's judge only lower-cases an utterance, so a soft hyphen, a Cyrillic letter or a pair of asterisks hides a word from it. ``fold``
takes away what a reader does not see; ``readings`` adds the ways in which a text may be read once look-alikes and markup are seen through.
All of it takes time linear in the length of the text: combining marks go before normalisation, whose sorting of them would be quadratic.
"""

import html
import re
import unicodedata
from functools import lru_cache

_MARKS: dict[int, str | int | None] = {
    **dict.fromkeys(map(ord, "’‘ʼ‛′´ʹ＇"), "'"),
    **dict.fromkeys(map(ord, "“”„‟«»「」『』″"), '"'),
    **dict.fromkeys(map(ord, "‐‑‒–−﹣－"), "-"),
    **str.maketrans("øØłŁđĐħı", "oOlLdDhi"),
    **{ord("æ"): "ae", ord("Æ"): "AE", ord("œ"): "oe", ord("Œ"): "OE"},
}
_BLANKS = "\u115f\u1160\u3164\uffa0\u2800\u034f"  # drawn as nothing, though Unicode calls most of them letters or symbols


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


_VISIBLE = _Visible()
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")

_LOOKALIKES: dict[int, str | int | None] = {
    **str.maketrans("АВЕЅІЈКМНОРСТУХҺԌԚԜ", "ABESIJKMHOPCTYXHGQW"),  # Cyrillic
    **str.maketrans("аеѕіјкмнорстухһԁԛԝьгвё", "aesijkmhopctyxhdqwbrbe"),
    **str.maketrans("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABEZHIKMNOPTYX"),  # Greek
    **str.maketrans("αικνορτυχγωηεϲ", "aikvoptuxywnec"),
    **str.maketrans("ʀɪᴠᴇᴀʙᴄᴅɢʜᴊᴋʟᴍɴᴏᴘᴛᴜᴡʏᴢɑɡⅼ", "riveabcdghjklmnoptuwyzagl"),  # Latin small capitals and script forms
    **{start + step: chr(ord("a") + step) for start in (0x1F1E6, 0x1F150, 0x1F170) for step in range(26)},  # letters drawn as emoji
}
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,80}>")
_MARKS_OR_TAG = re.compile(r"[*_~`<]")
_RUNS = re.compile(r"([^\x00-\x7f]+)")
_SHORT_RUN = 8  # characters of a run worth remembering: a quotation mark, a dash, an accented letter, an emoji


def fold(text: str) -> str:
    """Return ``text`` casefolded and compatibility-normalised, without accents and without anything invisible."""
    return _folded(text)[0]


@lru_cache(maxsize=8)
def unmasked(text: str) -> tuple[str, ...]:
    """Return ``text`` folded, and folded again with look-alike letters replaced where that differs. Markup stays."""
    plain, latin = _folded(html.unescape(text) if "&" in text else text)
    return (plain,) if latin == plain else (plain, latin)


def _folded(text: str) -> tuple[str, str]:
    """Return ``text`` folded, and folded with look-alikes replaced.

    Only runs of characters beyond ASCII take the long way. They can be folded on their own, since no ASCII character changes with its
    neighbours once combining marks are gone.
    """
    if _CONTROLS.search(text) is not None:
        text = _CONTROLS.sub("", text)
    if text.isascii():
        text = text.casefold()
        return text, text
    plain = _RUNS.split(text)  # ASCII at even places, other runs at odd ones
    plain[::2] = map(str.casefold, plain[::2])
    latin = plain.copy()
    for at in range(1, len(plain), 2):
        run = plain[at]
        plain[at], latin[at] = _fold_short_run(run) if len(run) <= _SHORT_RUN else _fold_run(run)
    return "".join(plain), "".join(latin)


def _fold_run(run: str) -> tuple[str, str]:
    return _fold_any(run), _fold_any(run.translate(_LOOKALIKES))


_fold_short_run = lru_cache(maxsize=4096)(_fold_run)


def _fold_any(text: str) -> str:
    text = unicodedata.normalize("NFKD", text.translate(_VISIBLE)).casefold().translate(_VISIBLE)
    return unicodedata.normalize("NFC", text)


@lru_cache(maxsize=8)
def readings(text: str) -> tuple[str, ...]:
    """Return every folded reading of ``text``: as it stands, look-alikes replaced, and each of those with markup taken out.

    Cached because one utterance is searched several times.
    """
    masked = unmasked(text)
    if _MARKS_OR_TAG.search(text) is None or without_markup(text) == text:
        return masked
    return tuple(dict.fromkeys((*masked, *map(without_markup, masked))))


def without_markup(text: str) -> str:
    """Return ``text`` with emphasis marks and HTML-like tags taken out."""
    return without_tags(text).replace("*", "").replace("_", "").replace("~", "").replace("`", "")


def without_tags(text: str) -> str:
    """Return ``text`` with HTML-like tags taken out."""
    return _TAG.sub("", text) if "<" in text else text
