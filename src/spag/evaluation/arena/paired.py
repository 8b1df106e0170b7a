"""Comparing players on the words that both played, so that a word's difficulty cancels out.

Both role assignments of a pair share word and seed. So on one word, how a player did as attacker against the other is set against how the
other did as attacker against it; and two players in the same role are set against each other over the opponents that both met.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from spag.evaluation.stats import Difference, Ints, Rate, paired_difference, rate_over_words
from spag.games.taboo.types import Outcome

_CODES = {outcome: code for code, outcome in enumerate(Outcome)}
_MISSING = -1
_HALF_POINTS = {Outcome.ATTACKER_WINS: 2, Outcome.DEFENDER_WINS: 0, Outcome.TIE: 1, Outcome.ATTACKER_VIOLATION: 1}
_COMPARED = (Outcome.ATTACKER_WINS, Outcome.ATTACKER_VIOLATION, Outcome.DEFENDER_WINS)


@dataclass(frozen=True, slots=True)
class Grid:
    """Every outcome of an arena. ``codes``, shape (attackers, defenders, words), indexes ``Outcome``; -1 is a game not played."""

    names: tuple[str, ...]
    codes: NDArray[np.int8]

    @staticmethod
    def of(names: Sequence[str], games: Mapping[tuple[str, str, str], Outcome]) -> "Grid":
        """Build the grid of ``games``: outcome by (attacker, defender, word). Words are sorted, so the order of play changes nothing."""
        words = {word: index for index, word in enumerate(sorted({word for _, _, word in games}))}
        place = {name: index for index, name in enumerate(names)}
        codes = np.full((len(place), len(place), len(words)), _MISSING, dtype=np.int8)
        for (attacker, defender, word), outcome in games.items():
            codes[place[attacker], place[defender], words[word]] = _CODES[outcome]
        return Grid(tuple(names), codes)

    @property
    def words(self) -> int:
        return int(self.codes.shape[2])

    @property
    def played(self) -> NDArray[np.bool_]:
        """Which games there are, shape of ``codes``."""
        return np.not_equal(self.codes, _MISSING)

    def half_points(self) -> Ints:
        """Return the attacker's score in half points: 2 for a win, 1 undecided, 0 for a loss (and for a game not played)."""
        table = np.array([_HALF_POINTS[outcome] for outcome in Outcome] + [0])
        return np.asarray(table[self.codes], dtype=np.int64)

    def wins(self) -> NDArray[np.float64]:
        """Return by word how often row beat column over both roles, shape (words, players, players); undecided is half a win."""
        attacker = self.half_points()
        defender = np.where(self.played, 2 - attacker, 0)
        return np.moveaxis(attacker + defender.swapaxes(0, 1), 2, 0) / 2


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """How the games of one pairing ended."""

    attacker: str
    defender: str
    games: int
    attacker_wins: int
    defender_wins: int
    ties: int
    violations: int


def win_matrix(grid: Grid) -> list[MatrixCell]:
    """Return a cell for each pairing that was played, attacker by attacker."""
    counts = {outcome: (grid.codes == code).sum(axis=2) for outcome, code in _CODES.items()}
    return [
        MatrixCell(
            attacker=grid.names[attacker],
            defender=grid.names[defender],
            games=int(grid.played[attacker, defender].sum()),
            attacker_wins=int(counts[Outcome.ATTACKER_WINS][attacker, defender]),
            defender_wins=int(counts[Outcome.DEFENDER_WINS][attacker, defender]),
            ties=int(counts[Outcome.TIE][attacker, defender]),
            violations=int(counts[Outcome.ATTACKER_VIOLATION][attacker, defender]),
        )
        for attacker, defender in np.argwhere(grid.played.any(axis=2)).tolist()
    ]


@dataclass(frozen=True, slots=True)
class PairComparison:
    """Two players against each other in both roles. ``wins``: each one's. ``undecided``: ties and violations.

    ``score``: the mean over shared words of the first player's score less the second's, ``None`` without a shared word. A player's score on
    a word is the mean of its two games, 1 for a win, 0.5 undecided, 0 for a loss, so the difference runs from -1 to 1.
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
    there, back = grid.codes[one, other], grid.codes[other, one]
    won, lost = _CODES[Outcome.ATTACKER_WINS], _CODES[Outcome.DEFENDER_WINS]
    wins = (int((there == won).sum() + (back == lost).sum()), int((back == won).sum() + (there == lost).sum()))
    games = int((there != _MISSING).sum() + (back != _MISSING).sum())
    scores, both = grid.half_points(), (there != _MISSING) & (back != _MISSING)
    difference = paired_difference((scores[one, other] - scores[other, one]) * both, 2 * both.astype(np.int64), weights)
    return PairComparison((grid.names[one], grid.names[other]), games, wins, games - sum(wins), difference)


@dataclass(frozen=True, slots=True)
class RoleComparison:
    """Two players in the same role: how often it came to ``outcome`` with each (``Rate`` over the shared games), and the difference.

    ``opponents``: whom both met; empty when they only met each other, and were compared in that match's two role assignments. ``only_one``,
    ``only_other``: games in which it came to the outcome with that player alone, the discordant ones.
    """

    players: tuple[str, str]
    outcome: Outcome
    opponents: tuple[str, ...]
    one: Rate
    other: Rate
    only_one: int
    only_other: int
    difference: Difference


def compare_roles(grid: Grid, weights: Ints) -> list[RoleComparison]:
    """Compare every two players by attacker wins, attacker violations and defender wins."""
    rows = (
        _compare_role(grid, one, other, outcome, weights) for one, other in combinations(range(len(grid.names)), 2) for outcome in _COMPARED
    )
    return [row for row in rows if row is not None]


def _compare_role(grid: Grid, one: int, other: int, outcome: Outcome, weights: Ints) -> RoleComparison | None:
    codes = grid.codes.swapaxes(0, 1) if outcome is Outcome.DEFENDER_WINS else grid.codes  # first axis: who is compared
    met = [
        third
        for third in range(len(grid.names))
        if third not in (one, other) and ((codes[one, third] >= 0) & (codes[other, third] >= 0)).any()
    ]
    ours, theirs = (codes[one, met], codes[other, met]) if met else (codes[one, [other]], codes[other, [one]])
    both = (ours >= 0) & (theirs >= 0)
    hit_one, hit_other = (ours == _CODES[outcome]) & both, (theirs == _CODES[outcome]) & both
    by_word = hit_one.sum(axis=0) - hit_other.sum(axis=0)
    difference = paired_difference(by_word, both.sum(axis=0), weights)
    if difference is None:
        return None
    return RoleComparison(
        players=(grid.names[one], grid.names[other]),
        outcome=outcome,
        opponents=tuple(grid.names[third] for third in met),
        one=rate_over_words(hit_one.sum(axis=0), both.sum(axis=0)),
        other=rate_over_words(hit_other.sum(axis=0), both.sum(axis=0)),
        only_one=int((hit_one & ~hit_other).sum()),
        only_other=int((hit_other & ~hit_one).sum()),
        difference=difference,
    )
