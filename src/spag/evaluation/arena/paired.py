"""Paired comparisons by reward, on the tasks that both players played, so that task difficulty cancels out.

Both role assignments of a pair share task and seed. Players are compared by their total reward over the two
assignments. Two players in the same role are compared over the opponents that both met.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from numpy.typing import NDArray

from spag.core.types import Outcome
from spag.evaluation.arena.grid import Bools, Grid
from spag.evaluation.intervals import Difference, Ints, paired_difference
from spag.games.base import Game


@dataclass(frozen=True, slots=True)
class PairComparison:
    """Two players against each other in both roles. ``wins``: of each player. ``undecided``: games that neither won
    alone.

    ``score``: the first player's reward minus the second's, averaged over the tasks played in both role assignments, as
    a share of the largest possible difference: from -1 to 1. ``None`` without such a task.
    """

    players: tuple[str, str]
    games: int
    wins: tuple[int, int]
    undecided: int
    score: Difference | None


def compare_pairs(grid: Grid, weights: Ints) -> list[PairComparison]:
    """Compare every two players that met. ``weights``, shape (draws, tasks): from ``bootstrap_weights``."""
    rows = (_compare_pair(grid, one, other, weights) for one, other in combinations(range(len(grid.names)), 2))
    return [row for row in rows if row.games]


def _compare_pair(grid: Grid, one: int, other: int, weights: Ints) -> PairComparison:
    first, second = grid.won
    wins = (
        int(first[one, other].sum() + second[other, one].sum()),
        int(first[other, one].sum() + second[one, other].sum()),
    )
    there, back = grid.played[one, other], grid.played[other, one]
    games, both = int(there.sum() + back.sum()), there & back
    earned = (grid.leads[one, other] - grid.leads[other, one]) * both
    score = paired_difference(earned, 2 * grid.steps * both, weights)
    return PairComparison((grid.names[one], grid.names[other]), games, wins, games - sum(wins), score)


@dataclass(frozen=True, slots=True)
class RoleComparison:
    """Two players in the same role: the mean of each over the shared games, and the mean difference.

    Means are of rewards or, with an ``outcome``, of its frequency.
    """

    players: tuple[str, str]
    role: str
    outcome: str | None
    one: float
    other: float
    difference: Difference


def compared(game: Game) -> Iterator[tuple[str, Outcome]]:
    """Yield (role, outcome) for comparisons besides rewards: for each role, the outcomes that it wins, then its
    faults.
    """
    for role in game.roles:
        yield from ((role, outcome) for outcome in game.outcomes.values() if role in outcome.winners)
        yield from ((role, outcome) for outcome in game.outcomes.values() if role == outcome.fault)


def compare_roles(grid: Grid, weights: Ints) -> list[RoleComparison]:
    """Compare every two players in each role by reward, then by the outcomes that ``compared`` gives.

    ``weights``, shape (draws, tasks): from ``bootstrap_weights``.
    """
    rows = []
    for one, other in combinations(range(len(grid.names)), 2):
        for side, role in enumerate(grid.game.roles):
            shared = _SharedGames.of(grid, one, other, side)
            if shared.both.any():
                outcomes = [outcome.name for of, outcome in compared(grid.game) if of == role]
                rows += [_compare_role(grid, shared, outcome, weights) for outcome in (None, *outcomes)]
    return rows


@dataclass(frozen=True, slots=True)
class _SharedGames:
    """The games of two players in one role against the same opponents on the same tasks. Players that met no one else
    are compared in the two role assignments of their own match.

    ``one`` and ``other`` index the arrays of a grid, own role first. ``both``, shape (opponents, tasks): games played
    by both.
    """

    players: tuple[str, str]
    side: int
    one: Any
    other: Any
    both: Bools

    @staticmethod
    def of(grid: Grid, one: int, other: int, side: int) -> "_SharedGames":
        played = _own_role_first(grid.played, side)
        others = [third for third in range(len(grid.names)) if third not in (one, other)]
        met = [third for third in others if (played[one, third] & played[other, third]).any()]
        ours, theirs = ((one, met), (other, met)) if met else ((one, [other]), (other, [one]))
        names = grid.names[one], grid.names[other]
        return _SharedGames(names, side, ours, theirs, played[ours] & played[theirs])

    def by_task(self, values: NDArray[Any]) -> tuple[Ints, Ints]:
        """Return the sums of both players' entries in an array of the grid, shape (tasks,) each."""
        values = _own_role_first(values, self.side)
        return (values[self.one] * self.both).sum(axis=0), (values[self.other] * self.both).sum(axis=0)


def _own_role_first(values: NDArray[Any], side: int) -> NDArray[Any]:
    return values if side == 0 else values.swapaxes(0, 1)


def _compare_role(grid: Grid, shared: _SharedGames, outcome: str | None, weights: Ints) -> RoleComparison:
    lowest, unit = (grid.lowest, grid.step) if outcome is None else (0.0, 1.0)
    one, other = shared.by_task(grid.rewards[shared.side] if outcome is None else grid.came_to(outcome))
    games = shared.both.sum(axis=0)
    difference = paired_difference(one - other, games / unit, weights)
    assert difference is not None, "they share a game"
    return RoleComparison(
        players=shared.players,
        role=grid.game.roles[shared.side],
        outcome=outcome,
        one=lowest + unit * float(one.sum() / games.sum()),
        other=lowest + unit * float(other.sum() / games.sum()),
        difference=difference,
    )
