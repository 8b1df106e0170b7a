"""Paired comparisons and ratings, worked out by hand."""

import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
from arena_games import FOUL, LOSS, TIE, WIN

from spag.core.types import Result
from spag.evaluation.arena.grid import Grid, win_matrix
from spag.evaluation.arena.paired import RoleComparison, compare_pairs, compare_roles
from spag.evaluation.arena.ratings import bradley_terry, rate
from spag.evaluation.intervals import Ints, bootstrap_weights
from taboo_games import ROLES, TABOO

PAID = {WIN: (1.0, -1.0), LOSS: (-1.0, 1.0), FOUL: (-1.0, 0.0), TIE: (0.0, 0.0)}


def weights_of(tasks: int) -> Ints:
    return bootstrap_weights(np.ones(tasks, dtype=np.int64), seed=0)


def grid_of(names: str, **matches: list[str]) -> Grid:
    """A grid of one-letter players: ``ab=[...]`` are a's games as attacker against b, task by task."""
    results = {
        (*match, f"w{i}"): Result(outcome, dict(zip(ROLES, PAID[outcome], strict=True)), 2, "")
        for match, games in matches.items()
        for i, outcome in enumerate(games)
    }
    return Grid.of(TABOO, list(names), results)


def roles_of(grid: Grid) -> dict[tuple[str, str], RoleComparison]:
    rows = compare_roles(grid)
    return {("".join(row.players), row.outcome): row for row in rows if row.outcome}


def test_a_pair_is_compared_word_by_word() -> None:
    grid = grid_of("ab", ab=[WIN, WIN, TIE, LOSS], ba=[LOSS, WIN, FOUL, TIE])
    [pair] = compare_pairs(grid)
    assert (pair.games, pair.wins, pair.undecided) == (8, (3, 2), 3)
    # what a earned as attacker less what b did, and the same as defender: 2 + 2, 2 - 2, 0 + 1, -2 + 0, of 4 at most
    assert pair.score is not None
    assert pair.score.mean == pytest.approx((4 + 0 + 1 - 2) / 4 / 4)
    # of the flips of +-4 +-1 +-2 only 4 + 1 + 2, 4 - 1 + 2 and 4 + 1 - 2, and their mirrors, are 3 or more from 0; and
    # 4 - 1 - 2 is 1
    assert pair.score.p_value == pytest.approx(6 / 8)


def test_a_task_that_only_one_role_assignment_played_is_left_out_of_the_pairing() -> None:
    grid = grid_of("ab", ab=[WIN, WIN], ba=[LOSS])
    [pair] = compare_pairs(grid)
    assert pair.score is not None
    assert (pair.games, pair.wins, pair.score.mean) == (3, (3, 0), 1.0)
    [lone] = compare_pairs(grid_of("ab", ab=[WIN]))
    assert (lone.games, lone.score) == (1, None)


def test_violations_against_a_common_opponent_are_mcnemars() -> None:
    # against c, a alone breaks the rules on 8 tasks, b alone on 1, both on 2, neither on 3
    a, b = [FOUL] * 8 + [TIE] + [FOUL] * 2 + [WIN] * 3, [TIE] * 8 + [FOUL] + [FOUL] * 2 + [TIE] * 3
    row = roles_of(grid_of("abc", ac=a, bc=b, ab=[WIN], ba=[WIN]))["ab", FOUL]
    assert (row.one, row.other) == (pytest.approx(10 / 14), pytest.approx(3 / 14))
    assert (row.difference.mean, row.difference.p_value) == pytest.approx((7 / 14, 0.0390625))
    assert 0 < row.difference.low < 0.5 < row.difference.high < 1


def test_two_players_without_a_third_are_compared_in_their_own_match() -> None:
    rows = roles_of(grid_of("ab", ab=[WIN, FOUL, LOSS], ba=[LOSS, LOSS, TIE]))
    attack, defend = rows["ab", WIN], rows["ab", LOSS]
    assert (attack.one, attack.other) == (pytest.approx(1 / 3), 0)
    assert (defend.one, defend.other) == (pytest.approx(2 / 3), pytest.approx(1 / 3))  # a defends in ba, b in ab


def test_the_games_on_one_task_are_flipped_together() -> None:
    # two opponents, five tasks: a wins all ten games, b none; five tasks flip, so p = 2 / 2^5 and not 2 / 2^10
    rows = roles_of(grid_of("abcd", ac=[WIN] * 5, ad=[WIN] * 5, bc=[TIE] * 5, bd=[TIE] * 5))
    assert (rows["ab", WIN].one, rows["ab", WIN].difference.p_value) == (1.0, pytest.approx(0.0625))


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


def test_ratings_of_players_that_hardly_met_converge() -> None:
    points = bradley_terry(np.array([[0, 0, 0], [0, 0, 0], [24_000, 0, 0]]))
    assert points.tolist() == pytest.approx([0, points[2] / 2, points[2]], rel=1e-4)  # two even games lie between


def test_ratings_of_many_matrices_are_those_of_each() -> None:
    """At the maximum every player is expected to score what it scored."""
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 40, (50, 5, 5)) * rng.integers(0, 2, (50, 5, 5)) * (1 - np.eye(5))
    points = bradley_terry(scores)
    for one, found in zip(scores, points, strict=True):
        assert found.tolist() == pytest.approx(bradley_terry(one).tolist(), abs=1e-3)
        games = (one + one.T + 1) * (1 - np.eye(5))
        expected = games / (1 + 10 ** ((found[None] - found[:, None]) / 400))
        assert expected.sum(axis=1) == pytest.approx((one + 0.5).sum(axis=1) - 0.5, abs=1e-3)


def test_ratings_end_where_numbers_are_too_large_to_be_exact() -> None:
    points = bradley_terry(np.array([[0, 0, 0], [0, 0, 0], [24e12, 0, 0]]))
    assert points.tolist() == pytest.approx([0, points[2] / 2, points[2]], rel=1e-2)


def test_ratings_of_an_all_win_player_are_finite_and_ordered() -> None:
    grid = grid_of(
        "abc",
        ab=[LOSS] * 9,
        ba=[WIN] * 9,
        ac=[LOSS] * 9,
        ca=[WIN] * 9,
        bc=[LOSS, WIN, TIE] * 3,
        cb=[WIN, FOUL, LOSS] * 3,
    )
    a, b, c = rate(grid.names, grid.expected_scores(), weights_of(9))
    assert (a.points, a.low, a.high) == (0.0, 0.0, 0.0)
    # b and c beat a alike, and b lost a little more than c by the rules that c broke: 8.25 to 9.75 of their 18 games
    assert c.points < b.points and b.points - c.points < 50
    assert b.low <= b.points <= b.high


def test_a_player_that_won_everything_is_not_sure_of_it() -> None:
    def swept(tasks: int) -> Grid:
        return grid_of("ab", ab=[LOSS] * tasks, ba=[WIN] * tasks)

    [few], [many] = compare_pairs(swept(5)), compare_pairs(swept(50))
    assert few.score is not None and many.score is not None
    assert few.score.mean == few.score.low == many.score.mean == -1
    assert few.score.high > many.score.high > -1
    (_, b), (_, d) = (rate(g.names, g.expected_scores(), weights_of(g.tasks)) for g in (swept(5), swept(50)))
    assert b.low < b.points < d.points
    assert b.low < d.low


def test_small_leads_are_compared_on_their_own_scale() -> None:
    """Rewards that differ by a fifth of their range: imaginary tasks differ by as much, not by all of it."""
    fouls = grid_of("ab", ab=[FOUL] * 8 + [TIE] * 8, ba=[TIE] * 16)
    assert fouls.usual_lead == 0.5  # an attacker's foul costs 1 of 2
    assert grid_of("ab", ab=[TIE], ba=[TIE]).usual_lead == 1


def test_a_game_counts_for_what_it_paid() -> None:
    scores = grid_of("ab", ab=[WIN, FOUL], ba=[TIE]).expected_scores().sum(axis=0)
    assert scores.tolist() == [[0, 1 + 0.25 + 0.5], [0.75 + 0.5, 0]]


def calls_of(work: Callable[[], None]) -> int:
    """How many calls of functions ``work`` makes: a measure of loops in Python that no other program on the machine
    changes.
    """
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


@pytest.mark.slow
def test_five_players_and_a_thousand_tasks_take_less_than_a_million_calls() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (5, 5, 1000)).astype(np.int8)
    codes[range(5), range(5)] = -1
    rewards = np.where(codes == -1, 0, rng.integers(0, 3, (2, *codes.shape)))
    grid = Grid(TABOO, tuple("abcde"), codes, np.zeros((2, *codes.shape), dtype=np.bool_), rewards, -1.0, 1.0, 2)

    def compare() -> None:
        assert len(compare_pairs(grid)) == 10
        assert len(compare_roles(grid)) == 50
        assert len(rate(grid.names, grid.expected_scores(), weights_of(grid.tasks))) == 5

    compare()  # imports
    assert (
        calls_of(compare) < 1_000_000
    )  # 410,000: of draws or of tasks, but not of both, of which there are 2,000 x 1,000
