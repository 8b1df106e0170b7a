"""Paired comparisons and ratings, worked out by hand."""

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
from arena_games import FOUL, LOSS, TIE, WIN

from spag.core.types import Result
from spag.evaluation.arena.paired import Grid, RoleComparison, compare_pairs, compare_roles, win_matrix
from spag.evaluation.arena.ratings import bradley_terry, rate
from spag.evaluation.stats import Ints, bootstrap_weights
from taboo_games import TABOO


def weights_of(tasks: int) -> Ints:
    return bootstrap_weights(np.ones(tasks, dtype=np.int64), seed=0)


def grid_of(names: str, **matches: list[str]) -> Grid:
    """A grid of one-letter players: ``ab=[...]`` are a's games as attacker against b, task by task."""
    results = {(*match, f"w{i}"): Result(outcome, {}, 2, "") for match, games in matches.items() for i, outcome in enumerate(games)}
    return Grid.of(TABOO, list(names), results)


def roles_of(grid: Grid) -> dict[tuple[str, str], RoleComparison]:
    rows = compare_roles(grid, weights_of(grid.tasks))
    return {("".join(row.players), row.outcome): row for row in rows}


def test_a_pair_is_compared_word_by_word() -> None:
    grid = grid_of("ab", ab=[WIN, WIN, TIE, LOSS], ba=[LOSS, WIN, FOUL, TIE])
    [pair] = compare_pairs(grid, weights_of(4))
    assert (pair.games, pair.wins, pair.undecided) == (8, (3, 2), 3)
    # a's points as attacker less b's: 1 - 0, 1 - 1, 0.5 - 0.5, 0 - 0.5
    assert pair.score is not None
    assert pair.score.mean == pytest.approx(0.5 / 4)
    # in half points 2, 0, 0, -1: every flip of +-2 +-1 is at least 1 away from 0
    assert pair.score.p_value == pytest.approx(1.0)


def test_a_task_that_only_one_role_assignment_played_is_left_out_of_the_pairing() -> None:
    grid = grid_of("ab", ab=[WIN, WIN], ba=[LOSS])
    [pair] = compare_pairs(grid, weights_of(2))
    assert pair.score is not None
    assert (pair.games, pair.wins, pair.score.mean) == (3, (3, 0), 1.0)
    [lone] = compare_pairs(grid_of("ab", ab=[WIN]), weights_of(1))
    assert (lone.games, lone.score) == (1, None)


def test_violations_against_a_common_opponent_are_mcnemars() -> None:
    # against c, a alone breaks the rules on 8 tasks, b alone on 1, both on 2, neither on 3
    a, b = [FOUL] * 8 + [TIE] + [FOUL] * 2 + [WIN] * 3, [TIE] * 8 + [FOUL] + [FOUL] * 2 + [TIE] * 3
    row = roles_of(grid_of("abc", ac=a, bc=b, ab=[WIN], ba=[WIN]))["ab", FOUL]
    assert (row.opponents, row.one.count, row.other.count, row.one.total) == (("c",), 10, 3, 14)
    assert (row.only_one, row.only_other) == (8, 1)
    assert (row.difference.mean, row.difference.p_value) == pytest.approx((7 / 14, 0.0390625))
    assert 0 < row.difference.low < 0.5 < row.difference.high < 1


def test_two_players_without_a_third_are_compared_in_their_own_match() -> None:
    rows = roles_of(grid_of("ab", ab=[WIN, FOUL, LOSS], ba=[LOSS, LOSS, TIE]))
    attack, defend = rows["ab", WIN], rows["ab", LOSS]
    assert (attack.opponents, attack.one.count, attack.other.count) == ((), 1, 0)
    assert (defend.one.count, defend.other.count) == (2, 1)  # a defends in ba, b in ab
    assert (defend.only_one, defend.only_other) == (2, 1)


def test_the_games_on_one_task_are_flipped_together() -> None:
    # two opponents, five tasks: a wins all ten games, b none; five tasks flip, so p = 2 / 2^5 and not 2 / 2^10
    rows = roles_of(grid_of("abcd", ac=[WIN] * 5, ad=[WIN] * 5, bc=[TIE] * 5, bd=[TIE] * 5))
    assert (rows["ab", WIN].only_one, rows["ab", WIN].difference.p_value) == (10, pytest.approx(0.0625))


def test_the_matrix_counts_each_pairing() -> None:
    cells = win_matrix(grid_of("ab", ab=[WIN, WIN, LOSS, FOUL], ba=[TIE]))
    assert [(cell.players, cell.games, cell.outcomes) for cell in cells] == [
        (("a", "b"), 4, {WIN: 2, LOSS: 1, FOUL: 1, TIE: 0}),
        (("b", "a"), 1, {WIN: 0, LOSS: 0, FOUL: 0, TIE: 1}),
    ]


def test_bradley_terry_of_three_to_one() -> None:
    wins = np.array([[0.0, 1.0], [3.0, 0.0]])
    assert bradley_terry(wins, prior=0.0).tolist() == pytest.approx([0.0, 400 * np.log10(3)])  # 190.8
    assert bradley_terry(wins).tolist() == pytest.approx([0.0, 400 * np.log10(3.5 / 1.5)])


def test_ratings_of_an_all_win_player_are_finite_and_ordered() -> None:
    grid = grid_of("abc", ab=[LOSS] * 9, ba=[WIN] * 9, ac=[LOSS] * 9, ca=[WIN] * 9, bc=[LOSS, WIN, TIE] * 3, cb=[WIN, FOUL, LOSS] * 3)
    a, b, c = rate(grid.names, grid.wins(), weights_of(9))
    assert (a.points, a.low, a.high) == (0.0, 0.0, 0.0)
    # b and c split their games, so each is 18.5 : 0.5 over a
    assert (b.points, c.points) == pytest.approx((400 * np.log10(37),) * 2, abs=0.01)
    assert b.low <= b.points <= b.high


def test_undecided_games_are_half_a_win_each() -> None:
    wins = grid_of("ab", ab=[WIN, FOUL], ba=[TIE]).wins().sum(axis=0)
    assert wins.tolist() == [[0, 2.0], [1.0, 0]]


def calls_of(work: Callable[[], None]) -> int:
    """How many calls of functions ``work`` makes: a measure of loops in Python that no other program on the machine changes."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_five_players_and_a_thousand_tasks_take_less_than_a_million_calls() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (5, 5, 1000)).astype(np.int8)
    codes[range(5), range(5)] = -1
    points = np.where(codes == 0, 2, np.where(codes >= 2, 1, 0))
    grid = Grid(TABOO, tuple("abcde"), codes, points)

    def compare() -> None:
        weights = weights_of(grid.tasks)
        assert len(compare_pairs(grid, weights)) == 10
        assert len(compare_roles(grid, weights)) == 30
        assert len(rate(grid.names, grid.wins(), weights)) == 5

    compare()  # imports
    assert calls_of(compare) < 1_000_000  # 410,000: of draws or of tasks, but not of both, of which there are 2,000 x 1,000
