"""The judge of Adversarial Taboo (arXiv 2404.10642, section 3.1): the winner, the deciding utterance, and the reason.

Checks come in upstream's order. The defender: a guess, right or wrong, decides; else saying the target loses. The
attacker: saying the target or announcing a guess breaks the rules. ``paper`` mode rules as the published code does
(``paper.py``). ``strict`` mode, the default, finds the target in any inflection or disguise (``spag.text``) and reads
guesses in many wordings (``guesses.py``). A defender that announces that it knows the word but names none plays on,
unless it says the target elsewhere in the same utterance.
"""

from enum import StrEnum

from spag.games.taboo.judge import paper
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.languages import language_of
from spag.games.taboo.types import Role, TabooOutcome
from spag.text.evasions import find_evasion, find_said
from spag.text.folding import fold
from spag.text.matching import find_form, find_span, quoted

_LONGEST = 20_000  # characters searched for the deciding piece


class JudgeMode(StrEnum):
    """``strict``: whole words, in any inflection; ``paper``: the published code's substrings."""

    STRICT = "strict"
    PAPER = "paper"


def judge_utterance(
    role: Role | str, text: str, target_word: str, mode: JudgeMode, language: str = "en"
) -> tuple[TabooOutcome, str] | None:
    """Judge one utterance on its own. Returns the outcome and the reason, or ``None`` if the game is not decided."""
    if mode == JudgeMode.PAPER:
        return paper.judge_utterance(role, text, target_word)
    judge = _judge_defender if role == Role.DEFENDER else _judge_attacker
    return judge(text, target_word, language)


def announces_guess(
    text: str, target_word: str, mode: JudgeMode, language: str = "en", role: Role = Role.DEFENDER
) -> bool:
    """Tell whether the judge treats ``text``, said by ``role``, as a guess, right or wrong."""
    if mode == JudgeMode.PAPER:
        return paper.announces_guess(text)
    return bool(find_guess(text, target_word, language, by_defender=role == Role.DEFENDER))


def _judge_defender(text: str, target_word: str, language: str) -> tuple[TabooOutcome, str] | None:
    found = find_guess(text, target_word, language)
    if found is None:
        said = _said(text, target_word, language)
        return (TabooOutcome.ATTACKER_WINS, f"the defender {said}") if said else None
    phrase, right = found[0].phrase, found[1]
    if right:
        form = _form_of(phrase, target_word)
        return TabooOutcome.DEFENDER_WINS, f"the defender guessed {quoted(phrase)}{form}, and was right"
    return TabooOutcome.ATTACKER_WINS, f'the defender guessed {quoted(phrase)}, but the word was "{target_word}"'


def _judge_attacker(text: str, target_word: str, language: str) -> tuple[TabooOutcome, str] | None:
    if said := _said(text, target_word, language):
        return TabooOutcome.ATTACKER_VIOLATION, f"the attacker {said}"
    found = find_guess(text, target_word, language, by_defender=False)
    if found is None:
        return None
    fault = f"the attacker announced a guess, {quoted(found[0].phrase)}, which only the defender may"
    return TabooOutcome.ATTACKER_VIOLATION, fault


def _said(text: str, target_word: str, language: str) -> str | None:
    """Say how ``text`` says the target, as words that follow "the defender"; ``None`` if it does not."""
    lexicon = language_of(language).lexicon
    form = find_form(text, target_word, lexicon)
    if form is not None:
        return f"said {quoted(form)}{_form_of(form, target_word)}"
    piece = find_evasion(text, target_word, lexicon)
    return f'spelled "{target_word}" as {quoted(piece)}' if piece is not None else None


def deciding_span(role: Role, text: str, target_word: str, language: str = "en") -> tuple[int, int] | None:
    """Return the characters of a decisive utterance that name the word or the guess, or ``None``."""
    text = text[:_LONGEST]
    found = find_guess(text, target_word, language, by_defender=role == Role.DEFENDER)
    guess = find_span(text, found[0].phrase, found[0].after) if found else None
    piece = find_said(text, target_word, language_of(language).lexicon)
    said = find_span(text, piece) if piece else None
    return guess or said if role == Role.DEFENDER else said or guess


def _form_of(piece: str, target_word: str) -> str:
    return "" if fold(piece) == fold(target_word).strip() else f', a form of "{target_word}"'
