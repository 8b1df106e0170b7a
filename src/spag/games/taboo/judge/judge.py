"""The rules of winning in Adversarial Taboo (arXiv 2404.10642, section 3.1): who has won, at which utterance, and why.

Checks come in upstream's order. The defender: a guess, right or wrong, decides; else saying the target loses. The attacker: saying the
target or announcing a guess breaks the rules. ``paper`` mode does this as the published code does (``paper_judge.py``); ``strict`` mode,
the default, compares words as words in any inflection, accepts the guess in other clothes, and sees through spelling, markup and look-alike
letters. Where the defender announces that it knows the word but names none, the game goes on, unless the target is said elsewhere in the
same utterance.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from spag.core.errors import ConfigError
from spag.core.types import Utterance
from spag.games.taboo.judge.evasions import find_evasion
from spag.games.taboo.judge.folding import fold
from spag.games.taboo.judge.glance import may_guess, may_say
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.judge.matching import find_form
from spag.games.taboo.judge.paper import judge_paper
from spag.games.taboo.types import Outcome, Role, Verdict

_QUOTED = 60  # characters of an utterance that a reason quotes


class JudgeMode(StrEnum):
    """``strict``: words as words, in any inflection; ``paper``: the published code's substrings."""

    STRICT = "strict"
    PAPER = "paper"


class Judgeable(Protocol):
    """What a judge needs of an episode; ``spag.core.episodes.Episode`` has it."""

    @property
    def target_word(self) -> str: ...
    @property
    def max_turns(self) -> int: ...
    @property
    def history(self) -> Sequence[Utterance]: ...


def judge_utterance(role: Role, text: str, target_word: str, mode: JudgeMode) -> tuple[Outcome, str] | None:
    """Judge one utterance on its own. Returns the outcome and the reason in one sentence, or ``None`` while the game goes on."""
    if mode is JudgeMode.PAPER:
        return judge_paper(role, text, target_word)
    return _judge_defender(text, target_word) if role is Role.DEFENDER else _judge_attacker(text, target_word)


def final_verdict(length: int) -> Verdict:
    """Return the tie of a game in which ``length`` utterances were spoken and nothing was decided."""
    return Verdict(Outcome.TIE, length, f"nobody had won or broken a rule after {length} utterance{'' if length == 1 else 's'}")


def judge_episode(episode: Judgeable, mode: JudgeMode | str = JudgeMode.STRICT) -> Verdict:
    """Judge a whole episode, whatever it was judged before.

    Judging stops at the first hit or after ``2 * max_turns`` utterances; ``Verdict.length`` counts up to there. Each utterance is judged by
    the role recorded with it. Raises ``ConfigError`` for an unknown mode.
    """
    mode = _mode_of(mode)
    history = episode.history[: 2 * episode.max_turns]
    for length, utterance in enumerate(history, start=1):
        ruling = judge_utterance(utterance.role, utterance.content, episode.target_word, mode)
        if ruling is not None:
            return Verdict(ruling[0], length, ruling[1])
    return final_verdict(len(history))


def _mode_of(mode: JudgeMode | str) -> JudgeMode:
    try:
        return JudgeMode(mode)
    except ValueError as error:
        raise ConfigError(f'judge mode "{mode}" is unknown; choose {" or ".join(JudgeMode)}') from error


def _judge_defender(text: str, target_word: str) -> tuple[Outcome, str] | None:
    found = find_guess(text, target_word) if may_guess(text) else None
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
    found = find_guess(text, target_word, hedged=False) if may_guess(text) else None
    if found is not None:
        return Outcome.ATTACKER_VIOLATION, f"the attacker announced a guess, {_quote(found[0].phrase)}, which only the defender may"
    return None


def _said(text: str, target_word: str) -> str | None:
    """Tell how ``text`` says the target, in words that follow "the defender", or ``None``."""
    if not may_say(text, target_word):
        return None
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
