"""The figures of an arena: every pair of models, both role assignments, the same held-out tasks and seeds for all.

``spag.rollout.matchmaking`` makes the games. ``tally`` needs the episodes only, so results can be recomputed from a file.
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
from spag.evaluation.arena.paired import Grid, compare_pairs, compare_roles, win_matrix
from spag.evaluation.arena.ratings import rate
from spag.evaluation.stats import Rate, bootstrap_weights, mean_over_tasks, rate_over_tasks
from spag.games.base import Figure, Game
from spag.games.registry import settings_of
from spag.games.replay import replay

NOTE = (
    "Games that neither player wins alone (ties, broken rules for which the game pays nobody) are undecided: each side scores 0.5 in score "
    "differences, and half a win in ratings. Rates carry 95 % Wilson intervals of the effective number of games (those on one task are "
    "alike), differences and ratings 95 % bootstrap intervals over tasks. P-values are exact, two-sided, from flipping the sign of whole "
    "tasks (McNemar's test where a task has one game a player), and not corrected for the number of comparisons. Ratings are Bradley-Terry "
    "in Elo points with the first player at 0; every pair is credited with one drawn game, so that they stay finite."
)


@dataclass(frozen=True, slots=True)
class RoleTable:
    """One player in one role, over all its games.

    Shares of ``games``: win; loss, where the other side alone wins; tie, a draw; violation and other_violation, this role's and the other's
    breach of a rule. empty: a share of its utterances. figures: the game's own for this role, by name.
    """

    name: str
    role: str
    games: int
    win: Rate
    loss: Rate
    tie: Rate
    violation: Rate
    other_violation: Rate
    empty: Rate
    figures: Mapping[str, Rate] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return plain data, the game's own figures beside the others."""
        row = asdict(self)
        figures = row.pop("figures")
        return {**row, **figures}


@dataclass(slots=True)
class _Counts:
    """One player in one role: each figure by task."""

    games: Counter[str] = field(default_factory=Counter)
    outcomes: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    figures: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    utterances: Counter[str] = field(default_factory=Counter)
    empty: Counter[str] = field(default_factory=Counter)

    def add(self, episode: Episode, role: str, result: Result, measured: Mapping[str, int]) -> None:
        task = episode.task.id
        spoken = [said.content for said in episode.history[: result.length] if said.role == role]
        self.games[task] += 1
        self.outcomes[result.outcome][task] += 1
        self.utterances[task] += len(spoken)
        self.empty[task] += sum(not text.strip() for text in spoken)
        for name, value in measured.items():
            self.figures[name][task] += value

    def outcome_rate(self, outcomes: Iterable[Outcome]) -> Rate:
        """Return how often it came to one of ``outcomes``."""
        return _rate(sum((self.outcomes[outcome.name] for outcome in outcomes), Counter()), self.games)

    def figure_rate(self, figure: Figure) -> Rate:
        """Return one of the game's own figures."""
        return _rate(self.figures[figure.name], self.figures[figure.of] if figure.of else self.games, figure.is_count)


@dataclass(slots=True)
class Tally:
    """What was counted of an arena. Names are in order of first appearance."""

    roles: dict[tuple[str, str], _Counts] = field(default_factory=dict)  # by (player, role)
    results: dict[tuple[str, str, str], Result] = field(default_factory=dict)  # by (first player, second player, task)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.roles))


def tally(episodes: Iterable[Episode], game: Game) -> Tally:
    """Judge each arena episode once and count it. Raises ``DataError`` for a game without players, and for one that is there twice."""
    counted = Tally()
    for episode in episodes:
        missing = [role for role in game.roles if role not in episode.players]
        if missing:
            raise DataError(f"the game {episode.id!r} names no {missing[0]}; the arena's figures need the players of every game")
        first, second = (episode.players[role].model for role in game.roles)
        key = (first, second, episode.task.id)
        if key in counted.results:
            raise DataError(f"{first} vs {second} plays {key[2]!r} twice; keep one arena a file, intervals count a task once")
        counted.results[key] = result = replay(game, episode)
        measured = game.measure(episode.task, episode.history, result)
        for role, name in zip(game.roles, key, strict=False):
            counted.roles.setdefault((name, role), _Counts()).add(episode, role, result, measured)
    return counted


def role_tables(counted: Tally, game: Game, names: Sequence[str]) -> list[RoleTable]:
    """Return a row per role and name."""
    return [_table(name, role, counted.roles[name, role], game) for role in game.roles for name in names if (name, role) in counted.roles]


def _table(name: str, role: str, counts: _Counts, game: Game) -> RoleTable:
    outcomes = game.outcomes.values()
    return RoleTable(
        name=name,
        role=role,
        games=counts.games.total(),
        win=counts.outcome_rate(one for one in outcomes if role in one.winners),
        loss=counts.outcome_rate(one for one in outcomes if one.winners and role not in one.winners),
        tie=counts.outcome_rate(one for one in outcomes if one.is_draw),
        violation=counts.outcome_rate(one for one in outcomes if one.fault == role),
        other_violation=counts.outcome_rate(one for one in outcomes if one.fault not in (None, role)),
        empty=_rate(counts.empty, counts.utterances),
        figures={figure.name: counts.figure_rate(figure) for figure in game.figures if figure.role == role},
    )


def _rate(hits: Counter[str], totals: Counter[str], is_count: bool = False) -> Rate:
    over_tasks = mean_over_tasks if is_count else rate_over_tasks
    return over_tasks(np.array([hits[task] for task in totals], dtype=np.int64), np.array([*totals.values()], dtype=np.int64))


def arena_report(episodes: Iterable[Episode], game: Game, names: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """Return every figure of an arena as plain data, in one pass over its games.

    ``names`` come first and in this order; by default the players follow the games. ``seed`` decides the bootstrap. Raises ``DataError``
    when there is no game, and as ``tally`` does.
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
        "ratings": [asdict(row) for row in rate(grid.names, grid.wins(), weights)],
        "pairs": [asdict(row) for row in compare_pairs(grid, weights)],
        "matrix": [asdict(row) for row in win_matrix(grid)],
        "paired": [asdict(row) for row in compare_roles(grid, weights)],
        "clembench": [asdict(row) for row in clembench_rows(counted.results, game, met)],
    }
