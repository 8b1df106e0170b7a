"""Matches between models: every pair, both role assignments, the same held-out words and seeds for all.

An arena episode's id is ``ATTACKER vs DEFENDER: WORD``, its players carry the entrants' names, and its seed comes from (run seed, word)
alone, so two models that speak the same way play the same game. ``tally`` needs the episodes only, so results can be recomputed from a
file.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.core.seeds import derive_seed
from spag.evaluation.arena.paired import Grid, compare_pairs, compare_roles, win_matrix
from spag.evaluation.arena.ratings import rate
from spag.evaluation.stats import Rate, bootstrap_weights, rate_over_words
from spag.games.taboo.judge.guesses import find_guess
from spag.games.taboo.judge.judge import JudgeMode, judge_episode
from spag.games.taboo.judge.paper import judge_paper
from spag.games.taboo.types import Outcome, Role
from spag.rollout.runner import GameSpec

NOTE = (
    "Ties and attacker violations are undecided: nobody wins them; each side scores 0.5 in score differences, and half a win in ratings. "
    "Rates carry 95 % Wilson intervals of the effective number of games (those on one word are alike), differences and ratings 95 % "
    "bootstrap intervals over words. P-values are exact, two-sided, from flipping the sign of whole words (McNemar's test where a word has "
    "one game a player), and not corrected for the number of comparisons. Ratings are Bradley-Terry in Elo points with the first player at "
    "0; every pair is credited with one drawn game, so that they stay finite."
)
_NOBODY_SAYS = "\0"  # a target word that leaves the paper's judge only the guess to rule on


@dataclass(frozen=True, slots=True)
class Pairing:
    """Who attacks and who defends, by name."""

    attacker: str
    defender: str

    @property
    def title(self) -> str:
        return f"{self.attacker} vs {self.defender}"


def pairings(names: Sequence[str]) -> list[Pairing]:
    """Return each pair of different entrants in both role assignments; any two neighbours in the list share an entrant."""
    found = []
    for index, one in enumerate(names):
        others = names[index + 1 :]
        for other in others if index % 2 == 0 else reversed(others):
            found += [Pairing(one, other), Pairing(other, one)]
    return found


def match_specs(pairing: Pairing, words: Sequence[str], seed: int) -> list[GameSpec]:
    """Return the games of one pairing."""
    return [GameSpec(f"{pairing.title}: {word}", word, derive_seed(seed, "arena", word)) for word in words]


@dataclass(frozen=True, slots=True)
class RoleTable:
    """One entrant in one role, over all its games. Every rate is a share of ``games`` but ``guessed_right``, a share of announced guesses.

    win, loss, tie, violation: outcomes seen from this role (only attackers violate; the opponent's violation counts in
    ``other_violation``). guess: games in which it announced a guess in the right form (defender). empty: share of its utterances that are
    empty.
    """

    name: str
    role: Role
    games: int
    win: Rate
    loss: Rate
    tie: Rate
    violation: Rate
    other_violation: Rate
    guess: Rate
    guessed_right: Rate
    empty: Rate


@dataclass(slots=True)
class _Counts:
    """One entrant in one role: each figure by word."""

    games: Counter[str] = field(default_factory=Counter)
    outcomes: defaultdict[Outcome, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    guesses: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    utterances: Counter[str] = field(default_factory=Counter)
    empty: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Tally:
    """What was counted of an arena. Names are in order of first appearance."""

    roles: dict[tuple[str, Role], _Counts] = field(default_factory=dict)
    games: dict[tuple[str, str, str], Outcome] = field(default_factory=dict)  # by (attacker, defender, word)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.roles))


def tally(episodes: Iterable[Episode], judge: JudgeMode = JudgeMode.STRICT) -> Tally:
    """Judge each arena episode once and count it. Raises ``DataError`` for a game without players, and for one that is there twice."""
    counted = Tally()
    for episode in episodes:
        missing = [role for role in Role if role not in episode.players]
        if missing:
            raise DataError(f"the game {episode.id!r} names no {missing[0]}; the arena's figures need the players of every game")
        sides = {role: episode.players[role].model for role in Role}
        key = (sides[Role.ATTACKER], sides[Role.DEFENDER], episode.target_word)
        if key in counted.games:
            raise DataError(f"{key[0]} vs {key[1]} plays {key[2]!r} twice; keep one arena a file, intervals count a word once")
        verdict = judge_episode(episode, judge)
        counted.games[key] = verdict.outcome
        for role in Role:
            _add(counted.roles.setdefault((sides[role], role), _Counts()), episode, role, verdict.outcome, verdict.length, judge)
    return counted


def _add(counts: _Counts, episode: Episode, role: Role, outcome: Outcome, length: int, judge: JudgeMode) -> None:
    word = episode.target_word
    counts.games[word] += 1
    counts.outcomes[outcome][word] += 1
    spoken = [said.content for said in episode.history[:length] if said.role is role]
    counts.utterances[word] += len(spoken)
    counts.empty[word] += sum(not text.strip() for text in spoken)
    if role is Role.DEFENDER and spoken and announces_guess(spoken[-1], episode.target_word, judge):
        counts.guesses[word] += 1
        counts.right[word] += outcome is Outcome.DEFENDER_WINS


def announces_guess(text: str, target_word: str, judge: JudgeMode) -> bool:
    """Tell whether ``judge`` takes the defender's ``text`` for a guess, right or wrong."""
    if judge is JudgeMode.STRICT:
        return find_guess(text, target_word) is not None
    return judge_paper(Role.DEFENDER, text, _NOBODY_SAYS) is not None


def role_tables(counted: Tally, names: Sequence[str]) -> list[RoleTable]:
    """Return a row per role and name."""
    return [_table(name, role, counted.roles[name, role]) for role in Role for name in names if (name, role) in counted.roles]


def _table(name: str, role: Role, counts: _Counts) -> RoleTable:
    def share(outcome: Outcome) -> Rate:
        return _rate(counts.outcomes[outcome], counts.games)

    won, lost = (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)
    if role is Role.DEFENDER:
        won, lost = lost, won
    violation, nothing = share(Outcome.ATTACKER_VIOLATION), _rate(Counter(), counts.games)
    return RoleTable(
        name=name,
        role=role,
        games=counts.games.total(),
        win=share(won),
        loss=share(lost),
        tie=share(Outcome.TIE),
        violation=violation if role is Role.ATTACKER else nothing,
        other_violation=nothing if role is Role.ATTACKER else violation,
        guess=_rate(counts.guesses, counts.games),
        guessed_right=_rate(counts.right, counts.guesses),
        empty=_rate(counts.empty, counts.utterances),
    )


def _rate(hits: Counter[str], totals: Counter[str]) -> Rate:
    return rate_over_words(np.array([hits[word] for word in totals], dtype=np.int64), np.array([*totals.values()], dtype=np.int64))


def arena_report(episodes: Iterable[Episode], judge: JudgeMode, names: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """Return every figure of an arena as plain data, in one pass over its games.

    ``names`` come first and in this order; by default the players follow the games. ``seed`` decides the bootstrap. Raises ``DataError``
    when there is no game, and as ``tally`` does.
    """
    counted = tally(episodes, judge)
    if not counted.games:
        raise DataError("the arena's file holds no games; run spag arena to play them")
    met = [name for name in dict.fromkeys((*names, *counted.names)) if name in counted.names]
    grid = Grid.of(met, counted.games)
    weights = bootstrap_weights(grid.words, seed)
    return {
        "judge": str(judge),
        "note": NOTE,
        "words": grid.words,
        "roles": [asdict(row) for row in role_tables(counted, met)],
        "ratings": [asdict(row) for row in rate(grid.names, grid.wins(), weights)],
        "pairs": [asdict(row) for row in compare_pairs(grid, weights)],
        "matrix": [asdict(row) for row in win_matrix(grid)],
        "paired": [asdict(row) for row in compare_roles(grid, weights)],
    }
