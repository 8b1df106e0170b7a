"""Evasions: a word said but not written as one: cut up, spelled out, stretched, backwards, glued, or with symbols.

The paper forbids the attacker to say the target, but its judge sees only plain substrings; players rewarded for winning
soon learn to spell. One rule covers most of it (``fragments.py``): fragments next to each other, with anything but
words between them, spell a form of the target and are not all words themselves. The others are letters that are named
(``letters.py``) and symbols that stand for letters (``symbols.py``). ``folding.py`` has undone escapes, markup and
other alphabets before. Legal, because they name no letters or because ordinary prose would trigger the rule: codes
(base64, Morse, pig latin, every second letter), acrostics, rhymes, translations, two words ("car pet").
"""

from spag.text.english import ENGLISH
from spag.text.folding import readings
from spag.text.fragments import find_glued, find_split
from spag.text.letters import find_named
from spag.text.lexicon import Lexicon
from spag.text.matching import find_form
from spag.text.shapes import Reading, shapes_of
from spag.text.symbols import find_symbols

_RULES = (find_split, find_named, find_symbols, find_glued)
_RULES_ELSEWHERE = (find_split, find_symbols)  # the others know English words


def find_evasion(text: str, target_word: str, lexicon: Lexicon = ENGLISH) -> str | None:
    """Return, folded, the first piece of ``text`` that says the target without writing it as a word, or ``None``."""
    shapes = shapes_of(target_word, lexicon)
    if not shapes.forms:
        return None
    texts = (Reading(low, text, lexicon.letters) for low in readings(text, lexicon.letters))
    rules = _RULES if lexicon is ENGLISH else _RULES_ELSEWHERE
    return next((piece for reading in texts for rule in rules if (piece := rule(reading, shapes)) is not None), None)


def find_said(text: str, target_word: str, lexicon: Lexicon = ENGLISH) -> str | None:
    """Return the first piece of ``text`` that says the target, openly or not, folded, or ``None``."""
    return find_form(text, target_word, lexicon) or find_evasion(text, target_word, lexicon)
