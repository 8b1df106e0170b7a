"""Intervals and exact p-values against textbook and hand-derived figures."""

import itertools

import numpy as np
import pytest
from scipy.stats import binomtest

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


def test_bootstrap_interval_is_that_of_a_mean() -> None:
    # 400 tasks, half +1 and half -1: the standard error of the mean is 1/20, so 95 % lie within 0.098
    differences, cells = np.array([1, -1] * 200), np.ones(400, dtype=np.int64)
    found = paired_difference(differences, cells, bootstrap_weights(np.ones(400, dtype=np.int64), seed=0))
    assert found is not None
    assert (found.mean, found.low, found.high, found.p_value) == pytest.approx((0.0, -0.098, 0.098, 1.0), abs=0.012)
    assert (
        paired_difference(
            differences, np.zeros(400, dtype=np.int64), bootstrap_weights(np.ones(400, dtype=np.int64), seed=0)
        )
        is None
    )


def test_every_resampling_has_as_many_units_and_rows_stand_for_several() -> None:
    weights = bootstrap_weights(np.array([1, 2, 4]), seed=3, draws=5000)
    assert weights.shape == (5000, 3)
    assert set(weights.sum(axis=1).tolist()) == {7}
    assert weights.mean(axis=0) == pytest.approx([1, 2, 4], abs=0.1)


def test_rows_that_stand_for_several_units_give_what_the_units_would() -> None:
    # differences 0.5 x 3, -0.25 x 1, 0 x 2: mean 1.25 / 6; by sign 3 against 1, so p = 2 * (1 + 4) / 2^4
    counts = np.array([3, 1, 2])
    found = paired_difference(
        np.array([0.5, -0.25, 0.0]), np.ones(3, dtype=np.int64), bootstrap_weights(counts, seed=0), counts
    )
    assert found is not None
    assert (found.mean, found.p_value) == pytest.approx((1.25 / 6, 10 / 16))
    assert -0.25 <= found.low < found.mean < found.high <= 0.5
