"""Upstream's judging (Linear95/SPAG, utils.py and assign_rewards.py), known defects included, so that published data can be reproduced.

A word form is found anywhere in the lower-cased text (`cat` in `category`), and a guess is right when a form follows the announcement as a prefix (`cathedral` for `cat`).
Upstream takes plurals from a library; ``plural`` here has the regular rules and the common irregular nouns.
"""

import re
from functools import lru_cache

from spag.game.base import Outcome, Role

_ANNOUNCEMENT = "i know the word! it"
_IRREGULAR = {
    "child": "children", "man": "men", "woman": "women", "person": "people", "foot": "feet", "tooth": "teeth", "mouse": "mice",
    "goose": "geese", "ox": "oxen", "sheep": "sheep", "fish": "fish", "deer": "deer", "knife": "knives", "wife": "wives", "life": "lives",
    "leaf": "leaves", "wolf": "wolves", "half": "halves", "shelf": "shelves", "thief": "thieves", "loaf": "loaves", "calf": "calves",
}  # fmt: skip


def plural(word: str) -> str:
    """Return the English plural of a noun."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if re.search(r"(?:s|x|z|ch|sh)$", word):
        return f"{word}es"
    if re.search(r"[^aeiou]y$", word):
        return f"{word[:-1]}ies"
    return f"{word}s"


@lru_cache(maxsize=1 << 14)
def word_forms(target: str) -> tuple[str, ...]:
    """Return the forms that upstream looks for."""
    word = target.lower()
    return word, f"{word}ing", f"{word}ed", plural(word)


def judge_utterance(role: Role, text: str, target_word: str) -> tuple[Outcome, str] | None:
    """Judge one utterance as upstream does; ``None`` while the game goes on."""
    said, forms = text.lower(), word_forms(target_word)
    found = next((form for form in forms if form in said), None)
    guess = _guess_text(said)
    if role is Role.DEFENDER:
        if guess is not None:
            if any(guess.startswith(form, skip) for skip in range(1, 9) for form in forms):
                return Outcome.DEFENDER_WINS, "the defender announced the right word"
            return Outcome.ATTACKER_WINS, "the defender announced a wrong word"
        if found is not None:
            return Outcome.ATTACKER_WINS, f'the defender\'s text contains "{found}"'
        return None
    if found is not None:
        return Outcome.ATTACKER_VIOLATION, f'the attacker\'s text contains "{found}"'
    if guess is not None:
        return Outcome.ATTACKER_VIOLATION, "the attacker announced a guess"
    return None


def _guess_text(said: str) -> str | None:
    """Return what follows the announcement, or ``None`` without one; at least one character must follow."""
    at = said.find(_ANNOUNCEMENT)
    rest = said[at + len(_ANNOUNCEMENT) :]
    return rest if at >= 0 and rest and not rest.startswith("\n") else None
