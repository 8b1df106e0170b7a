"""The games worth reading: the best, and the strangest. One pass over a file; only the few candidates are kept.

Best: decided, under strict judging, by a right guess or by luring the defender, in many utterances, none of which is empty, repeated,
copied or a refusal. Strangest: one game for each way of being strange. Ties are broken by the games' ids, so a file gives the same games
whatever its order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from spag.core.episodes import Episode
from spag.evaluation.arena.games import announces_guess
from spag.evaluation.health import Health, health
from spag.games.taboo.explain import Explanation, explain
from spag.games.taboo.judge.judge import JudgeMode, judge_episode
from spag.games.taboo.prompts import PromptSet
from spag.games.taboo.types import Outcome, Verdict

MOST = 3
"""Games of each kind that are shown."""


class Oddity(StrEnum):
    """A way of being strange, in the order of what there is to learn from it."""

    HIDDEN_LEAK = "the word slips out where only strict judging sees it"
    COPIED = "a player recites the rules"
    REPETITIVE = "the same is said again"
    AT_ONCE = "the attacker breaks a rule with its first words"
    EARLY_GUESS = "the defender guesses before there is anything to go on"
    LONGEST = "the longest utterance"


@dataclass(frozen=True, slots=True)
class ShownGame:
    """A game with why it is shown. Utterances after the judged end are left out."""

    label: str
    episode: Episode
    explanation: Explanation


_Rank = tuple[int, ...]
_Kept = tuple[_Rank, Episode]


def pick_games(episodes: Iterable[Episode], prompts: PromptSet) -> tuple[list[ShownGame], list[ShownGame]]:
    """Return the best and the strangest games, at most ``MOST`` of each. ``prompts``: what the players read, to know its copies."""
    best: dict[str, _Kept] = {}  # by word, MOST of them
    odd: dict[Oddity, _Kept] = {}
    for episode in episodes:
        verdict = judge_episode(episode, JudgeMode.STRICT)
        figures = health([episode], JudgeMode.STRICT, prompts)
        if _is_earned(episode, verdict) and not (figures.empty or figures.repeated or figures.copied or figures.refusals):
            _keep_best(best, episode, verdict.length)
        for oddity, much in _strangeness(episode, verdict, figures).items():
            if much and _is_before(((much,), episode), odd.get(oddity)):
                odd[oddity] = ((much,), episode)
    first_oddity = {odd[oddity][1].id: oddity for oddity in reversed(Oddity) if oddity in odd}  # one game may be strange in many ways
    strangest = [_odd_game(oddity, *odd[oddity]) for oddity in Oddity if oddity in first_oddity.values()]
    return [_best_game(episode) for _, episode in sorted(best.values(), key=_order)], strangest[:MOST]


def _is_earned(episode: Episode, verdict: Verdict) -> bool:
    if verdict.outcome is not Outcome.ATTACKER_WINS:
        return verdict.outcome is Outcome.DEFENDER_WINS
    return not announces_guess(episode.history[verdict.length - 1].content, episode.target_word, JudgeMode.STRICT)


def _strangeness(episode: Episode, verdict: Verdict, figures: Health) -> dict[Oddity, int]:
    """Return how strange a game is in each way; 0 is not at all."""
    at_once = verdict.outcome is Outcome.ATTACKER_VIOLATION and verdict.length == 1
    return {
        Oddity.HIDDEN_LEAK: verdict.length if figures.hidden_leaks else 0,
        Oddity.COPIED: round(figures.copied * verdict.length),
        Oddity.REPETITIVE: round(figures.repeated * verdict.length),
        Oddity.AT_ONCE: int(at_once),
        Oddity.EARLY_GUESS: int(figures.first_wrong_guess),
        Oddity.LONGEST: max((len(said.content.split()) for said in episode.history[: verdict.length]), default=0),
    }


def _keep_best(best: dict[str, _Kept], episode: Episode, length: int) -> None:
    words = {word.casefold() for said in episode.history[:length] for word in said.content.split()}
    found = ((length, len(words)), episode)
    if _is_before(found, best.get(episode.target_word)):
        best[episode.target_word] = found
    if len(best) > MOST:
        del best[max(best, key=lambda word: _order(best[word]))]


def _order(kept: _Kept) -> tuple[list[int], str]:
    rank, episode = kept
    return [-part for part in rank], episode.id


def _is_before(found: _Kept, other: _Kept | None) -> bool:
    return other is None or _order(found) < _order(other)


def _best_game(episode: Episode) -> ShownGame:
    verdict = judge_episode(episode, JudgeMode.STRICT)
    how = "the defender finds the word" if verdict.outcome is Outcome.DEFENDER_WINS else "the defender is lured into saying it"
    return _shown(f"{how} after {verdict.length} utterances", episode)


def _odd_game(oddity: Oddity, rank: _Rank, episode: Episode) -> ShownGame:
    times = f"{rank[0]} time{'' if rank[0] == 1 else 's'}"
    labels = {Oddity.REPETITIVE: f"{oddity} ({times})", Oddity.LONGEST: f"{oddity}, {rank[0]} words"}
    return _shown(labels.get(oddity, str(oddity)), episode)


def _shown(label: str, episode: Episode) -> ShownGame:
    length = judge_episode(episode, JudgeMode.STRICT).length
    return ShownGame(label, replace(episode, history=episode.history[:length]), explain(episode, JudgeMode.STRICT))
