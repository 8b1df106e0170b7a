"""The judge of the published code (Linear95/SPAG at 4abe36b), kept to compare with its results; strict is better.

Its known defects are kept: forms are matched as substrings (``cat`` in ``category``), a guess is right if it merely
begins with a form (``cathedral`` for ``cat``), and disguises go unseen. A form in double, single or back quotes is also
a form, so a quote may precede it; a quoted plural must therefore match upstream's exactly. Upstream takes plurals from
a language library; here they come from simple rules, and from ``data/plurals.txt`` where the library differs, for every
word of the paper's list and of ours.
"""

import re
from functools import cache, lru_cache
from importlib import resources

from spag.games.taboo.types import Role, TabooOutcome

_GUESS = "i know the word! it"
_ANNOUNCEMENT = "i know the word"
_ANY_GUESS = re.compile(f"{_GUESS}.{{1,8}}")


@cache
def _listed_plurals() -> dict[str, str]:
    lines = (resources.files("spag.games.taboo.data") / "plurals.txt").read_text(encoding="utf-8").splitlines()
    return {word: form for word, _, form in (line.partition(" ") for line in lines if not line.startswith("#"))}


def plural(word: str) -> str:
    """Return the listed plural, else the one by rule."""
    if listed := _listed_plurals().get(word):
        return listed
    if word.endswith("is"):
        return word[:-2] + "es"
    after_consonant = word[-2:-1] not in ("", *"aeiou")
    if word.endswith("y") and after_consonant:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("ss", "x", "ch", "sh")) or (word.endswith("o") and after_consonant) else "s")


@lru_cache(maxsize=4096)
def _forms(target_word: str) -> tuple[str, ...]:
    word = target_word.lower()
    return (word, word + "ing", word + "ed", plural(word))


@lru_cache(maxsize=4096)
def _right_guess(target_word: str) -> re.Pattern[str]:
    forms = "|".join(re.escape(form) for form in _forms(target_word))
    return re.compile(f"{_GUESS}.{{1,8}}(?:{forms}|([\"'`])(?:{forms})\\1)")


def stops_play(role: Role | str, text: str) -> bool:
    """Tell whether upstream's play loop ends with this utterance; nothing else ends it early."""
    return role == Role.DEFENDER and _ANNOUNCEMENT in text.lower()


def announces_guess(text: str) -> bool:
    """Tell whether upstream treats ``text`` as a guess, right or wrong."""
    return _ANY_GUESS.search(text.lower()) is not None


def judge_utterance(role: Role | str, text: str, target_word: str) -> tuple[TabooOutcome, str] | None:
    """Judge one utterance like upstream; ``None`` if the game is not decided."""
    guessed, text = announces_guess(text), text.lower()
    said = next((form for form in _forms(target_word) if form in text), None)
    if role == Role.ATTACKER:
        if said is not None:
            return TabooOutcome.ATTACKER_VIOLATION, f'the attacker\'s text contains "{said}"'
        return (TabooOutcome.ATTACKER_VIOLATION, "the attacker announced a guess") if guessed else None
    if guessed:
        if _right_guess(target_word).search(text):
            right = f'the defender announced a guess that begins with a form of "{target_word}"'
            return TabooOutcome.DEFENDER_WINS, right
        return TabooOutcome.ATTACKER_WINS, f'the defender announced a guess that does not begin with "{target_word}"'
    return (TabooOutcome.ATTACKER_WINS, f'the defender\'s text contains "{said}"') if said is not None else None
