"""Error bars worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from spag.evaluation.reasoning.results import (
    Interval,
    bootstrap_means,
    figures_of,
    geometric_means,
    item_difference,
    mean_of,
)


def test_a_mean_has_the_standard_error_of_lm_eval() -> None:
    # 3 right of 4: mean 3/4, sum of squares 3 * (1/4)^2 + (3/4)^2 = 3/4, sample variance 1/4, standard error sqrt(1/4 /
    # 4) = 1/4
    mean = mean_of([1, 1, 0, 1])
    assert (mean.value, mean.se, mean.items) == (0.75, 0.25, 4)
    assert mean_of([0.5]).se is None
    with pytest.raises(ValueError, match="no items"):
        mean_of([])


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [
        (0, 0, 1.0),
        (3, 3, 1.0),
        (5, 0, 2 / 32),
        (6, 1, 2 * (1 + 7) / 128),  # at most 1 of 7: (1 + 7) / 2^7, both tails
        (1, 6, 2 * (1 + 7) / 128),
        (15, 5, 2 * 21700 / 2**20),  # at most 5 of 20: 1 + 20 + 190 + 1140 + 4845 + 15504 = 21700
    ],
)
def test_the_exact_test_counts_items_that_differ(better: int, worse: int, p: float) -> None:
    found = item_difference([0.75] * better + [0.0] * worse + [1.0], [0.0] * better + [0.25] * worse + [1.0])
    assert (found.better, found.worse) == (better, worse)
    assert found.p == pytest.approx(p, rel=1e-12)


def test_a_difference_is_taken_item_by_item() -> None:
    # differences +1 +1 +1 -1 0 0 0 0: mean 1/4; squares 4, sample variance (4 - 8/16) / 7 = 1/2, standard error
    # sqrt(1/2 / 8) = 1/4
    difference = item_difference([1, 1, 1, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0])
    assert (difference.value, difference.better, difference.worse) == (0.25, 3, 1)
    assert difference.se == pytest.approx(0.25)
    assert difference.p == pytest.approx(2 * (1 + 4) / 16)
    # with z^2 = 3.84 more items, half +1 and half -1: centre 2 / 11.8415 = 0.16890, squares 3 x 0.8311^2 + 1.1689^2 +
    # 4 x 0.1689^2 + 3.8415 (1 + 0.1689^2) = 7.5037, half 1.96 x sqrt(7.5037) / 11.8415 = 0.45340
    assert difference.low == pytest.approx(0.16890 - 0.45340, abs=1e-4)
    assert difference.high == pytest.approx(0.16890 + 0.45340, abs=1e-4)
    with pytest.raises(ValueError, match="shorter"):
        item_difference([1, 0], [1])


def test_a_model_does_not_differ_from_itself() -> None:
    same = item_difference([1, 0, 0, 1, 1], [1, 0, 0, 1, 1])
    assert (same.value, same.se, same.better, same.worse, same.p) == (0, 0, 0, 0, 1)
    # as if z^2 = 3.84 more items differed: 3.8415 / (5 + 3.8415)
    assert (same.low, same.high) == pytest.approx((-0.4345, 0.4345), abs=1e-4)


def test_bootstrap_means_spread_like_the_standard_error_and_keep_rows_whole() -> None:
    first = np.array([1.0] * 60 + [0.0] * 40)
    means = bootstrap_means(np.stack([first, 1 - first], axis=1), seed=3, draws=20_000)
    assert means.shape == (20_000, 2)
    assert means[:, 0].mean() == pytest.approx(0.6, abs=0.002)
    assert means[:, 0].std() == pytest.approx(math.sqrt(0.6 * 0.4 / 100), rel=0.03)
    np.testing.assert_allclose(means.sum(axis=1), 1.0)
    np.testing.assert_array_equal(means, bootstrap_means(np.stack([first, 1 - first], axis=1), seed=3, draws=20_000))


def test_geometric_means_are_paired_and_covers_the_delta_methods_interval() -> None:
    # two tasks of 400 items: the reference has 1/2 and 1/2, the model 1/2 and 8/10; geometric means 0.5 and sqrt(0.4) =
    # 0.6325
    reference = np.array([1.0, 0.0] * 200)
    better = np.array(([1.0] * 8 + [0.0] * 2) * 40)
    alike, other = (np.stack([reference, scores], axis=1) for scores in (reference, better))
    first, second = geometric_means({"alike": alike, "other": other}, seed=1)
    assert (first.value, first.difference) == (pytest.approx(0.5), Interval(0, 0, 0))
    assert second.value == pytest.approx(math.sqrt(0.4))
    assert second.difference.value == pytest.approx(math.sqrt(0.4) - 0.5)
    # delta method: relative variance of the geometric mean = 1/4 * sum (1 - p) / (p n) = 1/4 * (1/400 + 0.25/400)
    spread = 1.96 * math.sqrt(0.4) * math.sqrt(0.25 * 1.25 / 400)
    assert (second.low, second.high) == (
        pytest.approx(second.value - spread, abs=0.006),
        pytest.approx(second.value + spread, abs=0.006),
    )
    assert 0 < second.difference.low < second.difference.value < second.difference.high


def figures(**right: tuple[int, int]) -> dict[str, Any]:
    """Figures of ``base`` and ``mine`` on tasks of ten items, of which each has so many right."""
    items = {
        task: {
            name: [{"task": task, "metrics": {"acc": float(item < count)}} for item in range(10)]
            for name, count in zip(("base", "mine"), counts, strict=True)
        }
        for task, counts in right.items()
    }
    return figures_of(dict.fromkeys(right, "acc"), items, seed=1)


def test_the_geometric_mean_leaves_out_tasks_on_which_a_model_scores_0_for_all_models() -> None:
    found, without = figures(easy=(4, 6), none=(0, 0), hard=(0, 1), fair=(4, 6)), figures(easy=(4, 6), fair=(4, 6))
    for name, model in found.items():
        assert model["geometric_mean"] == without[name]["geometric_mean"] and len(model["tasks"]) == 4
    mean = found["mine"]["geometric_mean"]
    assert (mean["value"], mean["tasks"]) == (pytest.approx(0.6), ["easy", "fair"])
    assert mean["difference"]["value"] == pytest.approx(0.2)
    nothing = figures(none=(0, 0), hard=(0, 1))
    assert [nothing[name]["geometric_mean"] for name in ("base", "mine")] == [None, None]
