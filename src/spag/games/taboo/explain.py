"""Why a game ended, in words a player understands, and which piece of which utterance decided it.

The judge folds a text before it looks (case, accents, invisible characters, look-alikes); ``find_span`` finds the way back, so that the
piece is marked where it stands in the utterance as it was written.
"""

import re
from dataclasses import dataclass

from spag.core.episodes import Episode
from spag.games.taboo.judge.evasions import find_evasion
from spag.games.taboo.judge.folding import fold, unmasked
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.judge.judge import JudgeMode, judge_episode
from spag.games.taboo.judge.matching import TOKEN, find_form
from spag.games.taboo.types import Outcome, Role

RULES = {
    Outcome.DEFENDER_WINS: "A defender who announces the right word wins.",
    Outcome.ATTACKER_WINS: "The attacker wins when the defender says the word unawares, or guesses another one.",
    Outcome.ATTACKER_VIOLATION: "The attacker may neither say the word nor announce a guess. Nobody wins such a game.",
    Outcome.TIE: "When every turn is played and nothing was decided, nobody wins.",
}
TITLES = {
    Outcome.ATTACKER_WINS: "Attacker wins",
    Outcome.DEFENDER_WINS: "Defender wins",
    Outcome.ATTACKER_VIOLATION: "Attacker broke a rule",
    Outcome.TIE: "Tie",
}
_LONGEST = 20_000  # characters searched for the deciding piece
_WORDS_AFTER = 4  # by which one of several places is known


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict for people.

    ``decisive`` is the 0-based position of the utterance that decided, ``span`` the deciding characters in it; both are ``None`` where
    there is no such thing. ``disputed`` tells what the judge would say today, where that is not the recorded outcome.
    """

    outcome: Outcome
    title: str
    rule: str
    reason: str
    decisive: int | None = None
    span: tuple[int, int] | None = None
    disputed: str | None = None


def explain(episode: Episode, mode: JudgeMode) -> Explanation:
    """Explain how ``episode`` ended: its recorded outcome, else the judge's."""
    verdict = judge_episode(episode, mode)
    outcome, reason = (episode.outcome, episode.reason or verdict.reason) if episode.outcome else (verdict.outcome, verdict.reason)
    disputed = None if outcome is verdict.outcome else f"the {mode} judge would say: {TITLES[verdict.outcome]}, because {verdict.reason}"
    decisive = None if outcome is Outcome.TIE or disputed else verdict.length - 1
    span = None
    if decisive is not None:
        said = episode.history[decisive]
        span = deciding_span(said.role, said.content, episode.target_word)
    return Explanation(outcome, TITLES[outcome], RULES[outcome], _sentence(reason), decisive, span, disputed)


def deciding_span(role: Role, text: str, target_word: str) -> tuple[int, int] | None:
    """Return the characters of a decisive utterance that name the word or the guess; ``None`` when they cannot be told."""
    text = text[:_LONGEST]
    found = find_guess(text, target_word, hedged=role is Role.DEFENDER)
    guess = find_span(text, found[0].phrase, found[0].after) if found else None
    piece = find_form(text, target_word) or find_evasion(text, target_word)
    said = find_span(text, piece) if piece else None
    return guess or said if role is Role.DEFENDER else said or guess


def find_span(text: str, piece: str, after: str | None = None) -> tuple[int, int] | None:
    """Find the folded ``piece`` in ``text`` as it is written; (start, end) in characters of ``text``.

    A word of its own is preferred to a part of another word, and the place whose line goes on with the words of ``after`` to all others.
    """
    pattern = r"[\s\"]+".join(r"[*_~`]*".join(map(re.escape, word)) for word in piece.split())
    for folded in (fold, lambda char: unmasked(char)[-1]) if pattern else ():
        origins = [(char, position) for position, original in enumerate(text) for char in folded(original)]
        plain = "".join(char for char, _ in origins)
        places = [*re.finditer(rf"(?<!\w){pattern}(?!\w)", plain)] or [*re.finditer(pattern, plain)]
        if places:
            wanted = None if after is None else TOKEN.findall(after)[:_WORDS_AFTER]
            rest = (TOKEN.findall(plain[place.end() :].partition("\n")[0])[:_WORDS_AFTER] for place in places)
            place = next((place for place, words in zip(places, rest, strict=True) if words == wanted), places[0])
            return origins[place.start()][1], origins[place.end() - 1][1] + 1
    return None


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}." if reason else ""
