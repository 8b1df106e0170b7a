"""Who won, and why: the judge of Adversarial Taboo, in two modes.

``strict`` is right: words in any inflection, as words; guesses read with tolerance; evasions caught. ``paper`` reproduces upstream
(``paper_judge.py``), so that published figures can be. Both stop at the first decision, in upstream's order: a guess before a slip.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from spag.errors import ConfigError
from spag.game import paper_judge
from spag.game.base import Outcome, Role, Utterance, Verdict
from spag.game.evasions import find_evasion
from spag.game.guesses import announced_guess, is_right
from spag.game.matching import find_target, normalise


class JudgeMode(StrEnum):
    """Which rules judge."""

    STRICT = "strict"
    PAPER = "paper"


class Judgeable(Protocol):
    """What a game needs to be judged; ``spag.episodes.Episode`` has it."""

    @property
    def target_word(self) -> str: ...
    @property
    def max_turns(self) -> int: ...
    @property
    def history(self) -> Sequence[Utterance]: ...


def judge_utterance(role: Role, text: str, target_word: str, mode: JudgeMode) -> tuple[Outcome, str] | None:
    """Return the outcome that an utterance decides, and why in one sentence; ``None`` while the game goes on."""
    if mode is JudgeMode.PAPER:
        return paper_judge.judge_utterance(role, text, target_word)
    return _judge_defender(text, target_word) if role is Role.DEFENDER else _judge_attacker(text, target_word)


def final_verdict(length: int) -> Verdict:
    """Return the verdict on a game of ``length`` utterances that nobody decided."""
    return Verdict(Outcome.TIE, length, "nobody said, named or gave away the word")


def judge_episode(episode: Judgeable, mode: JudgeMode | str = JudgeMode.STRICT) -> Verdict:
    """Judge a game by its utterances, whatever its own ``outcome`` says. Raises ``ConfigError`` for an unknown mode."""
    try:
        mode = JudgeMode(mode)
    except ValueError as error:
        raise ConfigError(f"judge mode {mode!r} is unknown; choose {' or '.join(JudgeMode)}") from error
    counted = episode.history[: 2 * episode.max_turns]
    for length, said in enumerate(counted, start=1):
        ruling = judge_utterance(said.role, said.content, episode.target_word, mode)
        if ruling is not None:
            return Verdict(ruling[0], length, ruling[1])
    return final_verdict(len(counted))


def _judge_defender(text: str, target: str) -> tuple[Outcome, str] | None:
    guess = announced_guess(text)
    if guess is not None:
        if is_right(guess, target):
            return Outcome.DEFENDER_WINS, f'the defender guessed "{guess}", and it is the word'
        return Outcome.ATTACKER_WINS, f'the defender guessed "{guess}", and it is not the word'
    found = _utters(text, target)
    return (Outcome.ATTACKER_WINS, f"the defender {found}") if found else None


def _judge_attacker(text: str, target: str) -> tuple[Outcome, str] | None:
    found = _utters(text, target)
    if found:
        return Outcome.ATTACKER_VIOLATION, f"the attacker {found}"
    if announced_guess(text) is not None:
        return Outcome.ATTACKER_VIOLATION, "the attacker announced a guess, which only the defender may"
    return None


def _utters(text: str, target: str) -> str | None:
    """Say how ``text`` utters ``target``, or ``None``."""
    normalised = normalise(text)
    found = find_target(normalised, target)
    if found is not None:
        return f'said "{found}"' if found == target.lower() else f'said "{found}", a form of "{target}"'
    evasion = find_evasion(normalised, target)
    return f'said "{target}" {evasion}' if evasion else None
