"""The metrics of an arena: every pair of models, both role assignments, the same held-out tasks and seeds for all.

``spag.rollout.matchmaking`` makes the games. ``tally`` needs only the episodes, so results can be recomputed from a
file.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.core.types import Outcome, Result
from spag.evaluation.arena.clembench import clembench_rows
from spag.evaluation.arena.grid import Grid, win_matrix
from spag.evaluation.arena.paired import compare_pairs, compare_roles
from spag.evaluation.arena.ratings import rate
from spag.evaluation.intervals import Ints, Mean, Rate, bootstrap_weights, mean_over_tasks, rate_over_tasks
from spag.games.base import Figure, Game
from spag.games.registry import settings_of
from spag.games.replay import replay

NOTE = (
    "Scores and ratings come from rewards. A score is what one player earned less what the other did, over both role "
    "assignments of the same tasks, as a share of the most that can lie between them: from -100 to 100. Wins are "
    "games that one player won alone. Rates carry 95 % Wilson intervals of as many observations as there are tasks "
    "(games on one task are alike), differences and ratings 95 % bootstrap intervals over tasks. P-values are exact, "
    "two-sided, from flipping the sign of whole tasks, and not corrected for the number of comparisons. Ratings are "
    "Bradley-Terry of the score that each game paid, in Elo points with the first player at 0; every pair is credited "
    "with one even game, so that they stay finite."
)


@dataclass(frozen=True, slots=True)
class RoleTable:
    """One player in one role, over all its games.

    reward: the mean per game. Shares of ``games``: win; loss, a win of the other side alone; tie, a draw; violation,
    this role's breach of a rule. repeated: the share of its utterances that were said before, in the same game by
    either player, or by this player in this role on another task (none count in a role of fixed form). figures: the
    game's own for this role, by name.
    """

    name: str
    role: str
    games: int
    reward: Mean
    win: Rate
    loss: Rate
    tie: Rate
    violation: Rate
    repeated: Rate
    figures: Mapping[str, Rate] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return plain data, merging the game's own figures with the others."""
        row = asdict(self)
        figures = row.pop("figures")
        return {**row, **figures}


@dataclass(slots=True)
class _RoleCounts:
    """Counts of one player in one role: each figure by task."""

    games: Counter[str] = field(default_factory=Counter)
    rewards: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    outcomes: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    figures: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    spoken: list[tuple[str, int, bool]] = field(default_factory=list)  # task, hash of the text, whether said before
    tasks: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))  # by hash of a text

    def add(self, episode: Episode, role: str, result: Result, measured: Mapping[str, int]) -> None:
        task = episode.task.id
        self.games[task] += 1
        self.rewards[task] += result.rewards[role]
        self.outcomes[result.outcome][task] += 1
        for name, value in measured.items():
            self.figures[name][task] += value

    def add_texts(self, episode: Episode, role: str, length: int) -> None:
        """Record this role's free-form utterances, for ``repeated_rate``."""
        before: set[int] = set()
        for said in episode.history[:length]:
            text = hash(" ".join(said.content.casefold().split()))
            if said.role == role and said.content.strip():
                self.spoken.append((episode.task.id, text, text in before))
                self.tasks[text].add(episode.task.id)
            before.add(text)

    def repeated_rate(self) -> Rate:
        repeated = Counter(task for task, text, is_old in self.spoken if is_old or len(self.tasks[text]) > 1)
        return _rate(repeated, Counter(task for task, _, _ in self.spoken))

    def outcome_rate(self, outcomes: Iterable[Outcome]) -> Rate:
        """Return the rate of ``outcomes``."""
        return _rate(sum((self.outcomes[outcome.name] for outcome in outcomes), Counter()), self.games)

    def figure_rate(self, figure: Figure) -> Rate:
        """Return the rate of one of the game's own figures."""
        hits, totals = self.figures[figure.name], self.figures[figure.of] if figure.of else self.games
        if not figure.is_count:
            return _rate(hits, totals)
        found = mean_over_tasks(_by_task(hits, totals), _by_task(totals, totals))
        return Rate(hits.total(), totals.total(), found.mean, max(0.0, found.low), found.high)

    def mean_reward(self) -> Mean:
        return mean_over_tasks(np.array([self.rewards[task] for task in self.games]), _by_task(self.games, self.games))


@dataclass(slots=True)
class Tally:
    """The counts of an arena. Names are in order of first appearance."""

    roles: dict[tuple[str, str], _RoleCounts] = field(default_factory=dict)  # by (player, role)
    results: dict[tuple[str, str, str], Result] = field(default_factory=dict)  # by (first player, second player, task)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.roles))


def tally(episodes: Iterable[Episode], game: Game) -> Tally:
    """Judge each arena episode once and count it. Raises ``DataError`` for a game without players, and for a
    duplicate.
    """
    counted = Tally()
    for episode in episodes:
        if missing := [role for role in game.roles if role not in episode.players]:
            raise DataError(f"the game {episode.id!r} names no {missing[0]}; an arena needs the players of every game")
        first, second = (episode.players[role].model for role in game.roles)
        key = (first, second, episode.task.id)
        if key in counted.results:
            twice = f"{first} vs {second} plays {key[2]!r} twice"
            raise DataError(f"{twice}; keep one arena a file, intervals count a task once")
        counted.results[key] = result = replay(game, episode)
        measured = game.measure(episode.task, episode.history, result)
        for role, name in zip(game.roles, key, strict=False):
            counts = counted.roles.setdefault((name, role), _RoleCounts())
            counts.add(episode, role, result, measured)
            if role not in game.fixed_form:
                counts.add_texts(episode, role, result.length)
    return counted


def role_tables(counted: Tally, game: Game, names: Sequence[str]) -> list[RoleTable]:
    """Return a row per role and name."""
    pairs = ((name, role) for role in game.roles for name in names)
    return [_table(*pair, counted.roles[pair], game) for pair in pairs if pair in counted.roles]


def _table(name: str, role: str, counts: _RoleCounts, game: Game) -> RoleTable:
    outcomes = game.outcomes.values()
    return RoleTable(
        name=name,
        role=role,
        games=counts.games.total(),
        reward=counts.mean_reward(),
        win=counts.outcome_rate(one for one in outcomes if role in one.winners),
        loss=counts.outcome_rate(one for one in outcomes if one.winners and role not in one.winners),
        tie=counts.outcome_rate(one for one in outcomes if one.is_draw),
        violation=counts.outcome_rate(one for one in outcomes if one.fault == role),
        repeated=counts.repeated_rate(),
        figures={figure.name: counts.figure_rate(figure) for figure in game.figures if figure.role == role},
    )


def _rate(hits: Counter[str], totals: Counter[str]) -> Rate:
    return rate_over_tasks(_by_task(hits, totals), _by_task(totals, totals))


def _by_task(counts: Counter[str], tasks: Iterable[str]) -> Ints:
    return np.array([counts[task] for task in tasks], dtype=np.int64)


def arena_report(episodes: Iterable[Episode], game: Game, names: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """Return all metrics of an arena as plain data, in one pass over its games.

    ``names`` come first, in this order; by default players are in order of appearance. ``seed`` determines the
    bootstrap. Raises ``DataError`` if there is no game, and the errors of ``tally``.
    """
    counted = tally(episodes, game)
    if not counted.results:
        raise DataError("the arena's file holds no games; run spag arena to play them")
    met = [name for name in dict.fromkeys((*names, *counted.names)) if name in counted.names]
    grid = Grid.of(game, met, counted.results)
    weights = bootstrap_weights(np.ones(grid.tasks, dtype=np.int64), seed)
    return {
        "game": game.name,
        "settings": dict(settings_of(game)),
        "note": NOTE,
        "tasks": grid.tasks,
        "roles": [table.row() for table in role_tables(counted, game, met)],
        "ratings": [asdict(row) for row in rate(grid.names, grid.expected_scores(), weights)],
        "pairs": [asdict(row) for row in compare_pairs(grid, weights)],
        "matrix": [asdict(row) for row in win_matrix(grid)],
        "paired": [asdict(row) for row in compare_roles(grid, weights)],
        "clembench": [asdict(row) for row in clembench_rows(counted.results, game, met)],
    }
