"""All games of an arena as arrays: the outcome, the sole winner, and each role's reward in whole steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spag.core.types import Result
from spag.evaluation.intervals import Floats, Ints, usual_size
from spag.games.base import Game

Bools = NDArray[np.bool_]
Results = Mapping[tuple[str, str, str], Result]
"""By (first player, second player, task)."""
_MISSING = -1
_MOST_STEPS = 100
"""The largest number of steps in the range of rewards; rewards between two steps are rounded."""


def sole_winner(game: Game, result: Result) -> str | None:
    """Return the role that wins alone, or that is rewarded for the other's fault; ``None`` for any other end."""
    outcome = game.outcomes[result.outcome]
    won = [role for role in game.roles if role in outcome.winners]
    paid = [role for role in game.roles if outcome.fault not in (None, role) and result.rewards[role] > 0]
    found = won or paid
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Grid:
    """Every game of an arena. All arrays end in the axes (players in the first role, players in the second, tasks).

    ``codes`` indexes ``game.outcomes``; -1 means not played. ``won`` and ``rewards`` have a first axis for the two
    roles: whether the role won alone, and its reward in whole steps above ``lowest``, 0 if there is no game. A step is
    ``step`` of reward; ``steps`` of them are the game's range of rewards.
    """

    game: Game
    names: tuple[str, ...]
    codes: NDArray[np.int8]
    won: Bools
    rewards: Ints
    lowest: float
    step: float
    steps: int

    @staticmethod
    def of(game: Game, names: Sequence[str], results: Results) -> "Grid":
        """Build the grid of ``results``; the order of play does not matter."""
        tasks = {task: index for index, task in enumerate(sorted({task for _, _, task in results}))}
        place = {name: index for index, name in enumerate(names)}
        code = {name: index for index, name in enumerate(game.outcomes)}
        codes = np.full((len(place), len(place), len(tasks)), _MISSING, dtype=np.int8)
        won, earned = np.zeros((2, *codes.shape), dtype=np.bool_), np.zeros((2, *codes.shape))
        lowest, highest = reward_range(game, results.values())
        earned += lowest
        for (first, second, task), result in results.items():
            at = place[first], place[second], tasks[task]
            codes[at], winner = code[result.outcome], sole_winner(game, result)
            for side, role in enumerate(game.roles):
                won[side, *at], earned[side, *at] = role == winner, result.rewards[role]
        shares = (earned - lowest) / (highest - lowest)
        steps = _steps_of(shares)
        rewards = np.rint(shares * steps).astype(np.int64)
        return Grid(game, tuple(names), codes, won, rewards, lowest, (highest - lowest) / steps, steps)

    @property
    def tasks(self) -> int:
        return int(self.codes.shape[2])

    @property
    def played(self) -> Bools:
        """Which games were played."""
        return np.not_equal(self.codes, _MISSING)

    @property
    def leads(self) -> Ints:
        """The first role's reward minus the second's, in steps."""
        first, second = self.rewards
        leads: Ints = first - second
        return leads

    @property
    def usual_lead(self) -> float:
        """The ``usual_size`` of the leads of all games, as a share of the range of rewards; 1 if all are 0."""
        return usual_size(self.leads / self.steps) or 1.0

    def came_to(self, outcome: str) -> Bools:
        """Which games ended in ``outcome``."""
        return np.equal(self.codes, list(self.game.outcomes).index(outcome))

    def expected_scores(self) -> Floats:
        """Return the scores of row against column by task, shape (tasks, players, players).

        A game scores 1 for a player that earned the whole range more than the other, 0 for one that earned it less, and
        0.5 each if both earned the same.
        """
        first = np.where(self.played, (1 + self.leads / self.steps) / 2, 0.0)
        second = np.where(self.played, 1 - first, 0.0)
        return np.moveaxis(first + second.swapaxes(0, 1), 2, 0)


def reward_range(game: Game, results: Iterable[Result]) -> tuple[float, float]:
    """Return the least and the greatest reward: the declared range, extended to rewards beyond it."""
    paid = [reward for result in results for reward in result.rewards.values()]
    low, high = game.reward_range
    return min(low, *paid), max(high, *paid)


def _steps_of(shares: Floats) -> int:
    """Return the fewest equal steps of the range such that every reward falls on one; ``shares`` of the range."""
    values = np.unique(shares)
    fits = (steps for steps in range(1, _MOST_STEPS) if np.allclose(values * steps, np.rint(values * steps), atol=1e-6))
    return next(fits, _MOST_STEPS)


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """How the games of one pairing ended: counts by outcome."""

    players: tuple[str, str]
    games: int
    outcomes: Mapping[str, int]


def win_matrix(grid: Grid) -> list[MatrixCell]:
    """Return a cell for each played pairing, ordered by first player."""
    counts = {outcome: grid.came_to(outcome).sum(axis=2) for outcome in grid.game.outcomes}
    return [
        MatrixCell(
            players=(grid.names[first], grid.names[second]),
            games=int(grid.played[first, second].sum()),
            outcomes={outcome: int(count[first, second]) for outcome, count in counts.items()},
        )
        for first, second in np.argwhere(grid.played.any(axis=2)).tolist()
    ]
