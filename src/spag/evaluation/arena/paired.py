"""Paired comparisons: players on the tasks that both played, so that a task's difficulty cancels out.

Both role assignments of a pair share task and seed. So on one task, how a player did in the first role against the other is set against how
the other did in the first role against it; and two players in the same role are set against each other over the opponents that both met.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from spag.core.types import Outcome, Result
from spag.evaluation.stats import Difference, Floats, Ints, Rate, paired_difference, rate_over_tasks
from spag.games.base import Game

_MISSING = -1


def half_points(game: Game, result: Result) -> int:
    """Return the first role's score in half points: 2 when it alone wins, 0 when the second alone wins, else 1 (undecided).

    Where a game pays a role for the other's fault (a positive reward), that role wins for this purpose.
    """
    outcome = game.outcomes[result.outcome]
    first, second = (
        role in outcome.winners or (outcome.fault not in (None, role) and result.rewards.get(role, 0) > 0) for role in game.roles
    )
    return 1 + first - second


@dataclass(frozen=True, slots=True)
class Grid:
    """Every game of an arena. All arrays have the shape (players in the first role, players in the second, tasks).

    ``codes`` indexes ``game.outcomes``, -1 is a game not played; ``points`` are the first role's half points, 0 where there is no game.
    """

    game: Game
    names: tuple[str, ...]
    codes: NDArray[np.int8]
    points: Ints

    @staticmethod
    def of(game: Game, names: Sequence[str], results: Mapping[tuple[str, str, str], Result]) -> "Grid":
        """Build the grid of ``results`` by (first player, second player, task). Tasks are sorted: the order of play changes nothing."""
        tasks = {task: index for index, task in enumerate(sorted({task for _, _, task in results}))}
        place = {name: index for index, name in enumerate(names)}
        code = {name: index for index, name in enumerate(game.outcomes)}
        codes = np.full((len(place), len(place), len(tasks)), _MISSING, dtype=np.int8)
        points = np.zeros(codes.shape, dtype=np.int64)
        for (first, second, task), result in results.items():
            at = place[first], place[second], tasks[task]
            codes[at], points[at] = code[result.outcome], half_points(game, result)
        return Grid(game, tuple(names), codes, points)

    @property
    def tasks(self) -> int:
        return int(self.codes.shape[2])

    @property
    def played(self) -> NDArray[np.bool_]:
        """Which games there are."""
        return np.not_equal(self.codes, _MISSING)

    def came_to(self, outcome: str) -> NDArray[np.bool_]:
        """Which games ended in ``outcome``."""
        return np.equal(self.codes, list(self.game.outcomes).index(outcome))

    def wins(self) -> Floats:
        """Return by task how often row beat column over both roles, shape (tasks, players, players); undecided is half a win."""
        second = np.where(self.played, 2 - self.points, 0)
        return np.moveaxis(self.points + second.swapaxes(0, 1), 2, 0) / 2


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """How the games of one pairing ended: counts by outcome."""

    players: tuple[str, str]
    games: int
    outcomes: Mapping[str, int]


def win_matrix(grid: Grid) -> list[MatrixCell]:
    """Return a cell for each pairing that was played, first player by first player."""
    counts = {outcome: grid.came_to(outcome).sum(axis=2) for outcome in grid.game.outcomes}
    return [
        MatrixCell(
            players=(grid.names[first], grid.names[second]),
            games=int(grid.played[first, second].sum()),
            outcomes={outcome: int(count[first, second]) for outcome, count in counts.items()},
        )
        for first, second in np.argwhere(grid.played.any(axis=2)).tolist()
    ]


@dataclass(frozen=True, slots=True)
class PairComparison:
    """Two players against each other in both roles. ``wins``: each one's. ``undecided``: the games that neither won alone.

    ``score``: the mean over shared tasks of the first player's score less the second's, ``None`` without a shared task. A player's score on
    a task is the mean of its two games, 1 for a win, 0.5 undecided, 0 for a loss, so the difference runs from -1 to 1.
    """

    players: tuple[str, str]
    games: int
    wins: tuple[int, int]
    undecided: int
    score: Difference | None


def compare_pairs(grid: Grid, weights: Ints) -> list[PairComparison]:
    """Compare every two players that met."""
    rows = (_compare_pair(grid, one, other, weights) for one, other in combinations(range(len(grid.names)), 2))
    return [row for row in rows if row.games]


def _compare_pair(grid: Grid, one: int, other: int, weights: Ints) -> PairComparison:
    there, back = grid.played[one, other], grid.played[other, one]
    ours, theirs = grid.points[one, other], grid.points[other, one]
    wins = (
        int((ours == 2).sum() + (back & (theirs == 0)).sum()),
        int((theirs == 2).sum() + (there & (ours == 0)).sum()),
    )
    games, both = int(there.sum() + back.sum()), there & back
    difference = paired_difference((ours - theirs) * both, 2 * both.astype(np.int64), weights)
    return PairComparison((grid.names[one], grid.names[other]), games, wins, games - sum(wins), difference)


@dataclass(frozen=True, slots=True)
class RoleComparison:
    """Two players in the same role: how often it came to ``outcome`` with each (``Rate`` over the shared games), and the difference.

    ``opponents``: whom both met; empty when they only met each other, and were compared in that match's two role assignments. ``only_one``,
    ``only_other``: games in which it came to the outcome with that player alone, the discordant ones.
    """

    players: tuple[str, str]
    outcome: str
    role: str
    opponents: tuple[str, ...]
    one: Rate
    other: Rate
    only_one: int
    only_other: int
    difference: Difference


def compared(game: Game) -> Iterator[tuple[str, Outcome]]:
    """Yield (role, outcome) for what players are compared by: in each role, the outcomes that it wins, then those of its fault."""
    for role in game.roles:
        yield from ((role, outcome) for outcome in game.outcomes.values() if role in outcome.winners)
        yield from ((role, outcome) for outcome in game.outcomes.values() if role == outcome.fault)


def compare_roles(grid: Grid, weights: Ints) -> list[RoleComparison]:
    """Compare every two players in each role by the outcomes that ``compared`` gives."""
    rows = (
        _compare_role(grid, pair, role, outcome.name, weights)
        for pair in combinations(range(len(grid.names)), 2)
        for role, outcome in compared(grid.game)
    )
    return [row for row in rows if row is not None]


def _compare_role(grid: Grid, pair: tuple[int, int], role: str, outcome: str, weights: Ints) -> RoleComparison | None:
    (one, other), is_first = pair, role == grid.game.roles[0]
    played, hits = (cube if is_first else cube.swapaxes(0, 1) for cube in (grid.played, grid.came_to(outcome)))  # first axis: the compared
    met = [third for third in range(len(grid.names)) if third not in pair and (played[one, third] & played[other, third]).any()]
    ours, theirs = ((one, met), (other, met)) if met else ((one, [other]), (other, [one]))
    both = played[ours] & played[theirs]
    hit_one, hit_other, shared = hits[ours] & both, hits[theirs] & both, both.sum(axis=0)
    difference = paired_difference(hit_one.sum(axis=0) - hit_other.sum(axis=0), shared, weights)
    if difference is None:
        return None
    return RoleComparison(
        players=(grid.names[one], grid.names[other]),
        outcome=outcome,
        role=role,
        opponents=tuple(grid.names[third] for third in met),
        one=rate_over_tasks(hit_one.sum(axis=0), shared),
        other=rate_over_tasks(hit_other.sum(axis=0), shared),
        only_one=int((hit_one & ~hit_other).sum()),
        only_other=int((hit_other & ~hit_one).sum()),
        difference=difference,
    )
