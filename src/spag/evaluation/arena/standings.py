"""The metrics of an arena: every pair of models, both role assignments, the same held-out tasks and seeds for all.

``spag.rollout.matchmaking`` makes the games. ``tally`` needs only the episodes, so a file gives the same results.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spag.core.episodes import Episode
from spag.core.errors import DataError
from spag.core.types import Result
from spag.evaluation.arena.grid import Grid, reward_range, win_matrix
from spag.evaluation.arena.paired import compare_pairs, compare_roles
from spag.evaluation.arena.ratings import rate
from spag.evaluation.intervals import (
    Mean,
    Rate,
    bootstrap_weights,
    mean_over_tasks,
    paired_difference,
    rate_over_tasks,
    usual_size,
)
from spag.evaluation.warnings import is_bare_move, watches_openings
from spag.games.base import Figure, Game
from spag.games.registry import settings_of
from spag.games.replay import replay

NOTE = (
    "Scores and ratings come from rewards. A score is one player's reward minus the other's, over both role "
    "assignments of the same tasks, as a percentage of the largest possible difference: from -100 to 100. Head to "
    "head, a win is a game that one player won alone, or in which it was rewarded because the other broke a rule. "
    "Rates have 95 % Wilson intervals with one observation per task (games on one task are alike), mean rewards and "
    "differences 95 % Agresti-Coull intervals over tasks, mean counts Student's, ratings 95 % bootstrap intervals over "
    "tasks. P-values are exact and two-sided, from flipping the signs of whole tasks, and not corrected for the number "
    "of comparisons. Intervals are conservative: with few tasks one may contain 0 although p < 0.05; a difference is "
    "claimed only if p and the interval agree. Ratings are Bradley-Terry ratings of each game's score, in Elo points "
    "with the first player at 0. Every pair is credited with one even game, so that ratings stay finite, and in each "
    "bootstrap replicate with a few tasks won by either side, so that a player that won everything still has an "
    "interval. Where one of a few players is far better, that game pulls the ratings together."
)


@dataclass(frozen=True, slots=True)
class RoleTable:
    """One player in one role, over all its games.

    reward: the mean per game. Fractions of ``games``: win; loss, a win of the other side alone; tie, a draw; violation,
    this role broke a rule. repeated: the fraction of its utterances that were said before, in the same game by
    either player, or by this player in this role on another task, unless it opens games without knowing their tasks
    (bare moves repeat nothing, and none count in a role of fixed form). figures: the game's own for this role, by name.
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
    figures: Mapping[str, Rate]


@dataclass(slots=True)
class _Played:
    """One player's games in one role, in the order of play, and its utterances in them if they are of free form."""

    tasks: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    measured: list[Mapping[str, int]] = field(default_factory=list)
    spoken: list[tuple[str, int | None, bool]] = field(default_factory=list)
    """Task, hash of the text (``None`` for a bare move), whether it was said before."""

    def add_texts(self, episode: Episode, role: str, length: int, game: Game) -> None:
        """Record this role's utterances up to the end, for ``repeated_rate``."""
        before: set[int] = set()
        for said in episode.history[:length]:
            text = hash(" ".join(said.content.casefold().split()))
            if said.role == role and said.content.strip():
                is_move = is_bare_move(said.content, game)
                self.spoken.append((episode.task.id, None if is_move else text, text in before and not is_move))
            before.add(text)

    def repeated_rate(self, *, across_tasks: bool) -> Rate:
        tasks = [task for task, _, _ in self.spoken]
        used = Counter(text for _, text in {(task, text) for task, text, _ in self.spoken})
        hits = [is_old or (across_tasks and text is not None and used[text] > 1) for _, text, is_old in self.spoken]
        return rate_over_tasks(_by_task(tasks, hits), _by_task(tasks, np.ones(len(tasks))))

    def rate(self, hits: Iterable[bool]) -> Rate:
        """Return the share of games that are ``hits``."""
        return rate_over_tasks(_by_task(self.tasks, hits), _by_task(self.tasks, np.ones(len(self.tasks))))

    def figure_rate(self, figure: Figure) -> Rate:
        """Return the rate of one of the game's own figures."""
        hits = _by_task(self.tasks, (one.get(figure.name, 0) for one in self.measured))
        totals = _by_task(self.tasks, (one.get(figure.of, 0) if figure.of else 1 for one in self.measured))
        if not figure.is_count:
            return rate_over_tasks(hits, totals)
        found = mean_over_tasks(hits, totals)
        return Rate(int(hits.sum()), int(totals.sum()), found.mean, max(0.0, found.low), found.high)

    def mean_reward(self, role: str, game: Game) -> Mean:
        """Return the mean reward, with the interval of ``paired_difference`` around the middle of the range."""
        low, high = reward_range(game, self.results)
        middle, earned = (low + high) / 2, np.array([result.rewards[role] for result in self.results])
        sums = _by_task(self.tasks, earned - middle, np.float64)
        games = _by_task(self.tasks, np.ones(len(self.tasks)))
        found = paired_difference(sums, games, most=(high - low) / 2, usual=usual_size(earned - middle))
        assert found is not None, "a row of the table has games"
        return Mean(middle + found.mean, middle + found.low, middle + found.high)


def _by_task(tasks: Sequence[str], values: Iterable[float], dtype: type[Any] = np.int64) -> NDArray[Any]:
    """Return the sum of ``values`` over each task, in order of the tasks' first appearance."""
    places = {task: place for place, task in enumerate(dict.fromkeys(tasks))}
    at = np.array([places[task] for task in tasks], dtype=np.intp)
    return np.bincount(at, weights=np.fromiter(values, np.float64)).astype(dtype)


@dataclass(slots=True)
class Tally:
    """The games of an arena. Players are in order of first appearance."""

    roles: dict[tuple[str, str], _Played] = field(default_factory=dict)  # by (player, role)
    results: dict[tuple[str, str, str], Result] = field(default_factory=dict)  # by (first player, second player, task)


def tally(episodes: Iterable[Episode], game: Game) -> Tally:
    """Judge and count each arena episode. Raises ``DataError`` for a game without players, and for a duplicate."""
    counted = Tally()
    for episode in episodes:
        if missing := [role for role in game.roles if role not in episode.players]:
            raise DataError(f"the game {episode.id!r} names no {missing[0]}; an arena needs the players of every game")
        first, second = (episode.players[role].model for role in game.roles)
        key = (first, second, episode.task.id)
        if key in counted.results:
            twice = f"{first} vs {second} plays {key[2]!r} twice"
            raise DataError(f"{twice}; keep one arena per file: intervals count a task once")
        counted.results[key] = result = replay(game, episode)
        measured = game.measure(episode.task, episode.history, result)
        for role, name in zip(game.roles, (first, second), strict=True):
            played = counted.roles.setdefault((name, role), _Played())
            played.tasks.append(episode.task.id)
            played.results.append(result)
            played.measured.append(measured)
            if role not in game.fixed_form:
                played.add_texts(episode, role, result.length, game)
    return counted


def role_tables(counted: Tally, game: Game, names: Sequence[str]) -> list[RoleTable]:
    """Return a row per role and name."""
    pairs = ((name, role) for role in game.roles for name in names)
    return [_table(*pair, counted.roles[pair], game) for pair in pairs if pair in counted.roles]


def _table(name: str, role: str, played: _Played, game: Game) -> RoleTable:
    ends = [game.outcomes[result.outcome] for result in played.results]
    return RoleTable(
        name=name,
        role=role,
        games=len(ends),
        reward=played.mean_reward(role, game),
        win=played.rate(role in end.winners for end in ends),
        loss=played.rate(bool(end.winners) and role not in end.winners for end in ends),
        tie=played.rate(end.is_draw for end in ends),
        violation=played.rate(end.fault == role for end in ends),
        repeated=played.repeated_rate(across_tasks=role != game.roles[0] or watches_openings(game)),
        figures={figure.name: played.figure_rate(figure) for figure in game.figures if figure.role == role},
    )


def arena_report(episodes: Iterable[Episode], game: Game, names: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """Return all metrics of an arena as plain data, in one pass over its games.

    ``names`` come first, in this order; by default players are in order of appearance. ``seed`` determines the
    bootstrap. Raises ``DataError`` if there is no game, and the errors of ``tally``.
    """
    counted = tally(episodes, game)
    if not counted.results:
        raise DataError("the arena's file holds no games; run spag arena to play them")
    players = dict.fromkeys(name for name, _ in counted.roles)
    met = [name for name in dict.fromkeys((*names, *players)) if name in players]
    grid = Grid.of(game, met, counted.results)
    weights = bootstrap_weights(np.ones(grid.tasks, dtype=np.int64), seed)
    return {
        "game": game.name,
        "settings": dict(settings_of(game)),
        "note": NOTE,
        "tasks": grid.tasks,
        "roles": [asdict(row) for row in role_tables(counted, game, met)],
        "ratings": [asdict(row) for row in rate(grid.names, grid.expected_scores(), weights, grid.usual_lead)],
        "pairs": [asdict(row) for row in compare_pairs(grid)],
        "matrix": [asdict(row) for row in win_matrix(grid)],
        "paired": [asdict(row) for row in compare_roles(grid)],
    }
