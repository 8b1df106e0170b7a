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
from spag.evaluation.arena.grid import Grid
from spag.evaluation.intervals import Difference, paired_difference
from spag.games.base import Game


@dataclass(frozen=True, slots=True)
class PairComparison:
    """Two players against each other in both roles. ``wins``: of each. ``undecided``: games that neither won alone.

    ``score``: the first player's reward minus the second's, averaged over the tasks played in both role assignments, as
    a share of the largest possible difference: from -1 to 1. ``None`` without such a task.
    """

    players: tuple[str, str]
    games: int
    wins: tuple[int, int]
    undecided: int
    score: Difference | None


def compare_pairs(grid: Grid) -> list[PairComparison]:
    """Compare every two players that met."""
    usual, pairs = grid.usual_lead, combinations(range(len(grid.names)), 2)
    rows = (_compare_pair(grid, one, other, usual) for one, other in pairs)
    return [row for row in rows if row.games]


def _compare_pair(grid: Grid, one: int, other: int, usual: float) -> PairComparison:
    first, second = grid.won.sum(axis=-1)
    wins = int(first[one, other] + second[other, one]), int(first[other, one] + second[one, other])
    there, back = grid.played[one, other], grid.played[other, one]
    games, both = int(there.sum() + back.sum()), there & back
    earned = (grid.leads[one, other] - grid.leads[other, one]) * both
    score = paired_difference(earned, 2 * grid.steps * both, usual=usual)
    return PairComparison((grid.names[one], grid.names[other]), games, wins, games - sum(wins), score)


@dataclass(frozen=True, slots=True)
class RoleComparison:
    """Two players in one role: means of rewards, or of ``outcome``, over the shared games, and the difference."""

    players: tuple[str, str]
    role: str
    outcome: str | None
    one: float
    other: float
    difference: Difference


def compared(game: Game) -> Iterator[tuple[str, Outcome]]:
    """Yield (role, outcome) to compare besides rewards: for each role, the outcomes that it wins, then its faults."""
    for role in game.roles:
        yield from ((role, outcome) for outcome in game.outcomes.values() if role in outcome.winners)
        yield from ((role, outcome) for outcome in game.outcomes.values() if role == outcome.fault)


def compare_roles(grid: Grid) -> list[RoleComparison]:
    """Compare every two players in each role by reward, then by the outcomes that ``compared`` gives."""
    usual, pairs = grid.usual_lead, combinations(range(len(grid.names)), 2)
    return [row for pair in pairs for side in (0, 1) for row in _compare_in_role(grid, *pair, side, usual)]


def _compare_in_role(grid: Grid, one: int, other: int, side: int, usual: float) -> Iterator[RoleComparison]:
    """Compare two players over the games of one role against the same opponents on the same tasks. Players that met no
    one else are compared in the two role assignments of their own match. ``usual``: the grid's ``usual_lead``.
    """
    role, played = grid.game.roles[side], _own_role_first(grid.played, side)
    others = [third for third in range(len(grid.names)) if third not in (one, other)]
    met = [third for third in others if (played[one, third] & played[other, third]).any()]
    ours, theirs = ((one, met), (other, met)) if met else ((one, [other]), (other, [one]))
    both = played[ours] & played[theirs]  # (opponents, tasks)
    games = both.sum(axis=0)
    if not games.any():
        return
    span = grid.steps * grid.step
    measures: dict[str | None, tuple[NDArray[Any], float, float, float, float]] = {
        None: (grid.rewards[side], grid.lowest, grid.step, span, span * usual),
        **{end.name: (grid.came_to(end.name), 0.0, 1.0, 1.0, 1.0) for of, end in compared(grid.game) if of == role},
    }
    for outcome, (values, lowest, unit, most, size) in measures.items():
        of_role = _own_role_first(values, side)
        own, its = ((of_role[games_of] * both).sum(axis=0) for games_of in (ours, theirs))
        difference = paired_difference(own - its, games / unit, most=most, usual=size)
        assert difference is not None, "they share a game"
        yield RoleComparison(
            players=(grid.names[one], grid.names[other]),
            role=role,
            outcome=outcome,
            one=lowest + unit * float(own.sum() / games.sum()),
            other=lowest + unit * float(its.sum() / games.sum()),
            difference=difference,
        )


def _own_role_first(values: NDArray[Any], side: int) -> NDArray[Any]:
    return values if side == 0 else values.swapaxes(0, 1)
