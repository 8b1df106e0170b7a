"""Evasions: a word said without being written as one: cut up, spelled out, stretched, backwards, glued, or with signs for letters.

The paper forbids the attacker to say the target but its judge sees plain substrings only; players that are rewarded for winning soon learn
to spell. One rule covers most of it (``fragments.py``): fragments next to each other, with anything but words between them, spell a form
of the target and are not all words themselves. The others are letters that are named (``letters.py``) and signs that stand for letters
(``signs.py``). ``folding.py`` has undone escapes, markup and other alphabets before. Legal, because they name no letters or because
ordinary prose would fire: codes (base64, Morse, pig latin, every second letter), acrostics, rhymes, translations, two words ("car pet").
"""

from spag.games.taboo.judge.folding import readings
from spag.games.taboo.judge.fragments import find_glued, find_split
from spag.games.taboo.judge.letters import find_named
from spag.games.taboo.judge.shapes import Reading, shapes_of
from spag.games.taboo.judge.signs import find_signs

_RULES = (find_split, find_named, find_signs, find_glued)


def find_evasion(text: str, target_word: str) -> str | None:
    """Return the first piece of ``text`` that says the target without writing it as a word, folded, or ``None``."""
    shapes = shapes_of(target_word)
    if not shapes.forms:
        return None
    texts = (Reading(low, text) for low in readings(text))
    return next((piece for reading in texts for rule in _RULES if (piece := rule(reading, shapes)) is not None), None)
