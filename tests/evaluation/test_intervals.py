"""Intervals and exact p-values against textbook and hand-derived figures."""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from spag.evaluation.intervals import bootstrap_weights, paired_difference, rate_over_tasks, sign_flip_p, wilson


def test_wilson_interval_is_the_textbooks() -> None:
    # Newcombe 1998, Statistics in Medicine 17: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611
    rate = wilson(81, 263)
    assert (rate.rate, rate.low, rate.high) == pytest.approx((0.30798, 0.2553, 0.3662), abs=1e-4)
    assert (wilson(0, 20).low, wilson(0, 20).high) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


def test_a_task_counts_once_however_many_games_it_had() -> None:
    hits, totals = np.array([3, 0, 1, 2]), np.array([3, 3, 3, 3])
    found = rate_over_tasks(hits, totals)
    assert (found.count, found.total, found.rate) == (6, 12, 0.5)
    assert (found.low, found.high) == (wilson(2, 4).low, wilson(2, 4).high)
    assert rate_over_tasks(np.array([3]), np.array([4])).low == pytest.approx(wilson(3, 4, 1).low)
    assert rate_over_tasks(np.array([], dtype=np.int64), np.array([], dtype=np.int64)) == wilson(0, 0)


@pytest.mark.parametrize("games", [1, 3, 10])
def test_more_hits_never_narrow_the_interval_of_few_nor_lower_it(games: int) -> None:
    """0 of 300 must not be wider than 1 of 300, wherever the hits fall."""
    draw = np.random.default_rng(0)
    totals = np.full(300 // games, games)
    hits, found = np.zeros_like(totals), []
    for _ in range(150):
        found.append(rate_over_tasks(hits, totals))
        hits[draw.choice(np.flatnonzero(hits < totals))] += 1
    assert [rate.count for rate in found] == [*range(150)]
    widths, lows, highs = (
        np.array(values) for values in zip(*((r.high - r.low, r.low, r.high) for r in found), strict=True)
    )
    assert (np.diff(widths) > 0).all() and (np.diff(lows) > 0).all() and (np.diff(highs) > 0).all()


def test_sign_flips_of_ones_are_mcnemars_exact_test() -> None:
    # b = 8, c = 1: 2 * (1 + 9) / 2^9
    assert sign_flip_p([1] * 8 + [-1] + [0] * 20) == pytest.approx(0.0390625)
    assert sign_flip_p([1] * 30 + [-1] * 50) == pytest.approx(binomtest(30, 80).pvalue)
    assert sign_flip_p([]) == sign_flip_p([0, 0]) == sign_flip_p([1, -1]) == 1.0


def test_sign_flips_of_other_sizes_agree_with_counting_all_of_them() -> None:
    differences = [2, 2, -1, 1, 3, 1, 0, 2]
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in itertools.product((1, -1), repeat=8)
    ]
    expected = sum(abs(value) >= 10 for value in sums) / len(sums)
    assert sign_flip_p(differences) == pytest.approx(expected)


def test_the_interval_of_many_tasks_is_that_of_a_mean() -> None:
    # 400 tasks, half +1 and half -1: the standard error of the mean is 1/20, so 95 % lie within 0.098
    differences, cells = np.array([1, -1] * 200), np.ones(400, dtype=np.int64)
    found = paired_difference(differences, cells)
    assert found is not None
    assert (found.mean, found.low, found.high, found.p_value) == pytest.approx((0.0, -0.098, 0.098, 1.0), abs=0.001)
    assert paired_difference(differences, np.zeros(400, dtype=np.int64)) is None


def test_the_interval_of_wins_and_losses_is_agresti_and_coulls() -> None:
    # 9 of 10, with z^2 = 3.8415: (9 + 1.9207) / 13.8415 = 0.78899 +- 1.96 sqrt(0.78899 x 0.21101 / 13.8415) = 0.21495
    found = paired_difference(np.array([1] * 9 + [-1]), np.ones(10, dtype=np.int64))
    assert found is not None
    assert (found.mean, found.low) == pytest.approx((0.8, 2 * (0.78899 - 0.21495) - 1), abs=1e-4)
    assert found.high == 1  # 2 * 1.00394 - 1 is more than a mean can be


@pytest.mark.parametrize("tasks", [10, 16, 30, 100, 300])
def test_intervals_cover_the_truth_also_where_nearly_all_tasks_are_alike(tasks: int) -> None:
    """By the binomial distribution of wins; a percentile bootstrap covers 0.98 on ten tasks in 18 % of cases."""
    wins = range(tasks + 1)
    found = [paired_difference(np.array([1] * won + [-1] * (tasks - won)), np.ones(tasks, int)) for won in wins]
    for share in (0.5, 0.6, 0.75, 0.9, 0.95, 0.98, 0.99):
        covers = [one is not None and one.low <= 2 * share - 1 <= one.high for one in found]
        assert binom.pmf(wins, tasks, share)[covers].sum() > 0.92


@pytest.mark.parametrize("games", [1, 3, 10])
def test_no_hit_has_no_wider_difference_than_one(games: int) -> None:
    draw, cells = np.random.default_rng(0), np.full(300 // games, games)
    hits, found = np.zeros_like(cells), []
    for _ in range(150):
        one = paired_difference(hits, cells)
        assert one is not None
        found.append(one)
        hits[draw.choice(np.flatnonzero(hits < cells))] += 1
    assert found[0].high - found[0].low < found[1].high - found[1].low
    assert (np.diff([one.low for one in found]) >= 0).all() and (np.diff([one.high for one in found]) > 0).all()


def test_games_on_one_task_are_one_observation() -> None:
    """Ten games a task, all alike, are as uncertain as one."""
    results, ones = np.array([1, 1, 0, -1, 1, 0, 1, 1]), np.ones(8, dtype=np.int64)
    many, once = paired_difference(10 * results, 10 * ones), paired_difference(results, ones)
    assert many is not None and once is not None
    assert astuple(many) == pytest.approx(astuple(once))


def test_every_resampling_has_as_many_units_and_rows_stand_for_several() -> None:
    weights = bootstrap_weights(np.array([1, 2, 4]), seed=3, draws=5000)
    assert weights.shape == (5000, 3)
    assert set(weights.sum(axis=1).tolist()) == {7}
    assert weights.mean(axis=0) == pytest.approx([1, 2, 4], abs=0.1)


def test_rows_that_stand_for_several_units_give_what_the_units_would() -> None:
    # differences 0.5 x 3, -0.25 x 1, 0 x 2: mean 1.25 / 6; by sign 3 against 1, so p = 2 * (1 + 4) / 2^4
    counts = np.array([3, 1, 2])
    found = paired_difference(np.array([0.5, -0.25, 0.0]), np.ones(3, dtype=np.int64), counts)
    units = paired_difference(np.array([0.5] * 3 + [-0.25, 0.0, 0.0]), np.ones(6, dtype=np.int64))
    assert found is not None and units is not None
    assert (found.mean, found.p_value) == pytest.approx((1.25 / 6, 10 / 16))
    assert (found.low, found.high) == pytest.approx((units.low, units.high))
    assert -1 <= found.low < found.mean < found.high <= 1
