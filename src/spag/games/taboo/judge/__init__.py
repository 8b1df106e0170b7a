"""The judge of Adversarial Taboo (arXiv 2404.10642, section 3.1): who won, at which utterance, and why.

Checks come in upstream's order. The defender: a guess, right or wrong, decides; else saying the target loses. The attacker: saying the
target or announcing a guess breaks the rules. ``paper`` mode rules as the published code does (``paper.py``). ``strict`` mode, the default,
compares whole words in any inflection (``matching.py``), reads guesses in many wordings (``guesses.py``), and sees through spelling out
(``evasions.py``), markup and look-alike letters (``folding.py``). A defender who announces that it knows the word but names none plays on,
unless it says the target elsewhere in the same utterance.
"""

from enum import StrEnum
from typing import Any

from spag.core.errors import ConfigError
from spag.games.taboo.judge import paper
from spag.games.taboo.judge.evasions import find_evasion
from spag.games.taboo.judge.folding import fold
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.judge.matching import find_form
from spag.games.taboo.types import Outcome, Role, Verdict

_QUOTED = 60  # characters of an utterance that a reason quotes


class JudgeMode(StrEnum):
    """``strict``: whole words, in any inflection; ``paper``: the published code's substrings."""

    STRICT = "strict"
    PAPER = "paper"


def judge_utterance(role: Role | str, text: str, target_word: str, mode: JudgeMode) -> tuple[Outcome, str] | None:
    """Judge one utterance on its own. Returns the outcome and the reason in one sentence, or ``None`` while the game goes on."""
    if mode == JudgeMode.PAPER:
        return paper.judge_utterance(role, text, target_word)
    return _judge_defender(text, target_word) if role == Role.DEFENDER else _judge_attacker(text, target_word)


def announces_guess(text: str, target_word: str, mode: JudgeMode) -> bool:
    """Tell whether the judge takes the defender's ``text`` for a guess, right or wrong."""
    return paper.announces_guess(text) if mode == JudgeMode.PAPER else find_guess(text, target_word) is not None


def final_verdict(length: int) -> Verdict:
    """Return the tie of a game of ``length`` utterances in which nothing was decided."""
    return Verdict(Outcome.TIE, length, f"nobody had won or broken a rule after {length} utterance{'' if length == 1 else 's'}")


def judge_episode(episode: Any, mode: JudgeMode | str = JudgeMode.STRICT) -> Verdict:
    """Judge an episode, or any object with a history and a ``target_word`` and ``max_turns``, whatever outcome it records.

    Judging stops at the first decision or after ``2 * max_turns`` utterances; ``Verdict.length`` counts up to there. Each utterance is
    judged by the role recorded with it. Raises ``ConfigError`` for an unknown mode.
    """
    mode = _mode_of(mode)
    target_word, max_turns = _task_of(episode)
    history = episode.history[: 2 * max_turns]
    for length, utterance in enumerate(history, start=1):
        ruling = judge_utterance(Role(utterance.role), utterance.content, target_word, mode)
        if ruling is not None:
            return Verdict(ruling[0], length, ruling[1])
    return final_verdict(len(history))


def _mode_of(mode: JudgeMode | str) -> JudgeMode:
    try:
        return JudgeMode(mode)
    except ValueError as error:
        raise ConfigError(f'judge mode "{mode}" is unknown; choose {" or ".join(JudgeMode)}') from error


def _task_of(episode: Any) -> tuple[str, int]:
    task = getattr(episode, "task", None)
    return (episode.target_word, episode.max_turns) if task is None else (task.data["target_word"], task.data["max_turns"])


def _judge_defender(text: str, target_word: str) -> tuple[Outcome, str] | None:
    found = find_guess(text, target_word)
    if found is not None:
        guess, right = found
        quoted = _quote(guess.phrase)
        if right:
            return Outcome.DEFENDER_WINS, f"the defender guessed {quoted}{_form_of(guess.phrase, target_word)}, and was right"
        return Outcome.ATTACKER_WINS, f'the defender guessed {quoted}, but the word was "{target_word}"'
    said = _said(text, target_word)
    return (Outcome.ATTACKER_WINS, f"the defender {said}") if said else None


def _judge_attacker(text: str, target_word: str) -> tuple[Outcome, str] | None:
    said = _said(text, target_word)
    if said:
        return Outcome.ATTACKER_VIOLATION, f"the attacker {said}"
    found = find_guess(text, target_word, hedged=False)
    if found is not None:
        return Outcome.ATTACKER_VIOLATION, f"the attacker announced a guess, {_quote(found[0].phrase)}, which only the defender may"
    return None


def _said(text: str, target_word: str) -> str | None:
    """Tell how ``text`` says the target, in words that follow "the defender", or ``None``."""
    form = find_form(text, target_word)
    if form is not None:
        return f"said {_quote(form)}{_form_of(form, target_word)}"
    piece = find_evasion(text, target_word)
    return f'spelled "{target_word}" as {_quote(piece)}' if piece is not None else None


def _form_of(piece: str, target_word: str) -> str:
    return "" if piece == fold(target_word).strip() else f', a form of "{target_word}"'


def _quote(piece: str) -> str:
    piece = " ".join(piece.split())
    return f'"{piece}"' if len(piece) <= _QUOTED else f'"{piece[: _QUOTED - 3]}..."'
