"""Matches between models: every pair, both role assignments, the same held-out words and seeds for all.

An arena episode's id is ``ATTACKER vs DEFENDER: WORD``, its players carry the entrants' names, and its seed comes from (run seed, word)
alone, so two models that speak the same way play the same game. ``tabulate`` needs the episodes only, so results can be recomputed from a
file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from spag.episodes import Episode
from spag.evaluation.stats import Rate, wilson
from spag.game.base import Outcome, Role
from spag.game.guesses import find_guess
from spag.game.judge import JudgeMode, judge_episode
from spag.seeding import derive_seed
from spag.selfplay import GameSpec


@dataclass(frozen=True, slots=True)
class Pairing:
    """Who attacks and who defends, by name."""

    attacker: str
    defender: str

    @property
    def title(self) -> str:
        return f"{self.attacker} vs {self.defender}"


def pairings(names: Sequence[str]) -> list[Pairing]:
    """Return each pair of different entrants in both role assignments."""
    return [Pairing(*sides) for one, other in combinations(names, 2) for sides in ((one, other), (other, one))]


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
    games: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    guesses: int = 0
    right: int = 0
    utterances: int = 0
    empty: int = 0


def tabulate(episodes: Iterable[Episode], judge: JudgeMode = JudgeMode.STRICT) -> list[RoleTable]:
    """Judge arena episodes and return a table row per entrant and role, in order of appearance."""
    counts: dict[tuple[str, Role], _Counts] = {}
    for episode in episodes:
        verdict = judge_episode(episode, judge)
        for role in Role:
            _add(counts.setdefault((episode.players[role].model, role), _Counts()), episode, role, verdict.outcome, verdict.length)
    names = dict.fromkeys(name for name, _ in counts)
    return [_table(name, role, counts[name, role]) for role in Role for name in names if (name, role) in counts]


def _add(counts: _Counts, episode: Episode, role: Role, outcome: Outcome, length: int) -> None:
    counts.games += 1
    counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
    spoken = [said.content for said in episode.history[:length] if said.role is role]
    counts.utterances += len(spoken)
    counts.empty += sum(not text.strip() for text in spoken)
    if role is Role.DEFENDER and spoken and find_guess(spoken[-1], episode.target_word) is not None:
        counts.guesses += 1
        counts.right += outcome is Outcome.DEFENDER_WINS


def _table(name: str, role: Role, counts: _Counts) -> RoleTable:
    def share(outcome: Outcome) -> Rate:
        return wilson(counts.outcomes.get(outcome, 0), counts.games)

    won, lost = (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)
    if role is Role.DEFENDER:
        won, lost = lost, won
    violation, nothing = share(Outcome.ATTACKER_VIOLATION), wilson(0, counts.games)
    return RoleTable(
        name=name,
        role=role,
        games=counts.games,
        win=share(won),
        loss=share(lost),
        tie=share(Outcome.TIE),
        violation=violation if role is Role.ATTACKER else nothing,
        other_violation=nothing if role is Role.ATTACKER else violation,
        guess=wilson(counts.guesses, counts.games),
        guessed_right=wilson(counts.right, counts.guesses),
        empty=wilson(counts.empty, counts.utterances),
    )


def head_to_head(episodes: Iterable[Episode], judge: JudgeMode = JudgeMode.STRICT) -> dict[tuple[str, str], dict[str, int]]:
    """Return for each unordered pair its games, each side's wins over both roles, and the rest (ties and violations)."""
    pairs: dict[tuple[str, str], dict[str, int]] = {}
    for episode in episodes:
        sides = {role: episode.players[role].model for role in Role}
        one, other = sides.values()
        key = (other, one) if (other, one) in pairs else (one, other)
        row = pairs.setdefault(key, {"games": 0, one: 0, other: 0, "undecided": 0})
        row["games"] += 1
        winner = judge_episode(episode, judge).outcome.winner
        row[sides[winner] if winner else "undecided"] += 1
    return pairs
