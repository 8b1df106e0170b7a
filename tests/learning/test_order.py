"""The schedule: every sample once an epoch, global batches that no split changes."""

import random
from typing import Any

import pytest

from spag.algorithms.base import FILLER, OTHER, SFT
from spag.learning.batches import TrainingData, loss_shares, offline_updates, online_updates
from spag.models.samples import Batch, EncodedSample

DRAW = random.Random(0)
SEQUENCES = [[DRAW.randint(0, 1) for _ in range(DRAW.randint(3, 90))] for _ in range(37)]


def samples(kinds: list[bool] | None = None) -> list[EncodedSample]:
    """Samples that a batch tells apart by their advantage."""
    kinds = kinds or [False] * len(SEQUENCES)
    return [
        EncodedSample.of(ids, 1, reward=float(index), group=SFT if kind else OTHER)
        for index, (ids, kind) in enumerate(zip(SEQUENCES, kinds, strict=True))
    ]


def places(batch: Batch) -> list[tuple[int, float]]:
    return [
        (FILLER if group == FILLER else int(index), weight)
        for index, weight, group in zip(
            batch["advantage"].tolist(), batch["weight"].tolist(), batch["group"].tolist(), strict=True
        )
    ]


def steps(
    world_size: int = 1,
    rank: int = 0,
    *,
    micro: int = 2,
    epochs: int = 2,
    seed: int = 0,
    packed: bool = True,
    kinds: list[bool] | None = None,
    loss_group: int | None = None,
) -> list[list[list[tuple[int, float]]]]:
    """The places of each micro-batch of each update."""
    made = samples(kinds)
    data = TrainingData(made, micro, packed=packed, rank=rank, world_size=world_size)
    total = epochs * len(made)
    plan = offline_updates(made, seed=seed, batch_size=8, total=total, loss_group=loss_group)
    return [[places(batch) for batch in data.batches(update)] for update in plan]


def order(world_size: int = 1, rank: int = 0, **options: Any) -> list[list[int]]:
    batches = [batch for step in steps(world_size, rank, **options) for batch in step]
    assert {factor for batch in batches for index, factor in batch if index != FILLER} == {1.0}
    return [[index for index, _ in batch] for batch in batches]


def global_batches(world_size: int, micro: int) -> list[list[int]]:
    ranks = [steps(world_size, rank, micro=micro) for rank in range(world_size)]
    for together in zip(*ranks, strict=True):
        assert len({len(batches) for batches in together}) == 1  # every process takes as many forward passes
    return [
        sorted(index for rank in together for batch in rank for index, _ in batch if index != FILLER)
        for together in zip(*ranks, strict=True)
    ]


def test_each_sample_is_seen_once_an_epoch_and_only_the_last_step_is_short() -> None:
    batches = global_batches(1, 2)
    assert [len(batch) for batch in batches] == [8] * 9 + [2]  # 74 = 9 * 8 + 2
    seen = [index for batch in batches for index in batch]
    assert sorted(seen) == sorted([*range(37), *range(37)])


@pytest.mark.parametrize(("world_size", "micro"), [(1, 1), (1, 8), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (5, 3)])
def test_global_batches_are_the_same_however_they_are_split(world_size: int, micro: int) -> None:
    assert global_batches(world_size, micro) == global_batches(1, 2)


def test_the_last_step_gives_a_process_without_samples_the_filler() -> None:
    assert [order(4, rank, micro=2)[-1] == [FILLER] for rank in range(4)] == [
        False,
        True,
        True,
        True,
    ]  # 2 samples, 4 processes


def test_unpacked_micro_batches_hold_samples_of_similar_length() -> None:
    first = [[len(SEQUENCES[i]) for i in batch] for batch in order(epochs=1, packed=False)[:4]]
    flat = [length for batch in first for length in batch]
    assert flat == sorted(flat, reverse=True)


def test_packed_micro_batches_hold_samples_that_begin_alike_and_the_largest_comes_first() -> None:
    made = [EncodedSample.of(ids, 1) for ids in ([1, 1, 1], [2, 2], [1, 1, 2], [2, 3, 3, 3])]
    # 5 tokens, as the 2 is shared, and 4, as 1 1 is
    assert TrainingData(made, 2, packed=True).split(range(4)) == [[1, 3], [0, 2]]


def test_samples_of_a_game_stay_together_and_games_are_shuffled() -> None:
    games = ["", "", *(f"game-{number}" for number in range(5) for _ in range(7))]
    plan = offline_updates(samples(), seed=0, batch_size=7, total=2 * len(games), games=games)
    drawn = [index for update in plan for index in update.samples]
    orders = []
    for epoch in (drawn[:37], drawn[37:]):
        assert sorted(epoch) == [*range(37)]
        starts = [epoch.index(first) for first in range(2, 37, 7)]
        assert [epoch[start : start + 7] for start in starts] == [[*range(at, at + 7)] for at in range(2, 37, 7)]
        orders.append(starts)
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])


def test_seed_and_epoch_decide_the_order() -> None:
    assert order(seed=1) == order(seed=1) != order(seed=2)
    assert order(epochs=2)[:16] == order(epochs=1)[:16]
    seen = [i for batch in global_batches(1, 8) for i in batch]
    assert seen[:37] != seen[37:]


def test_groups_of_two_count_as_upstreams_micro_batches_do() -> None:
    # Pairs RL RL, RL SFT, SFT SFT, and a single RL. Upstream's loss is their mean, so with 1/4 for each pair: RL 1/8
    # 1/8, 1/4, -, 1/4 and SFT -, 1/4, 1/8 1/8, -. The global mean has 1/4 for each of 4 RL rows and 1/3 for each of 3
    # SFT rows: the factors are the quotients.
    kinds = [False, False, False, True, True, True, False]
    assert loss_shares(kinds, 2) == pytest.approx([0.5, 0.5, 1.0, 0.75, 0.375, 0.375, 1.0])
    assert loss_shares(kinds, None) == loss_shares(kinds, 7) == [1.0] * 7


@pytest.mark.slow
def test_the_papers_half_counts_a_third_when_averaged_in_pairs() -> None:
    # 99,740 RL and 52,002 SFT rows: a share p = 0.3427 is SFT. A pair has an SFT row with 1 - (1 - p)^2 = 0.568, an RL
    # row with 1 - p^2 = 0.883, and is 0 for a kind it lacks: so 0.5 counts 0.5 * 0.568 / 0.883 = 0.322 of the RL loss.
    kinds = [False] * 99_740 + [True] * 52_002
    random.Random(0).shuffle(kinds)
    batches = [kinds[start : start + 128] for start in range(0, len(kinds) - 127, 128)]
    seen = {False: 0.0, True: 0.0}
    for batch in batches:
        for kind, factor in zip(batch, loss_shares(batch, 2), strict=True):
            seen[kind] += factor / batch.count(kind) / len(batches)  # the factors' mean, by global batch
    p = 52_002 / 151_742
    assert seen[True] == pytest.approx(1 - (1 - p) ** 2, abs=3e-3) == pytest.approx(0.57, abs=5e-3)
    assert seen[False] == pytest.approx(1 - p**2, abs=3e-3) == pytest.approx(0.88, abs=5e-3)
    assert 0.5 * seen[True] / seen[False] == pytest.approx(0.322, abs=2e-3)


def test_groups_are_as_random_where_the_samples_of_a_game_stay_together() -> None:
    # 400 games of 5 samples and as many SFT rows: half of the random pairs hold one of each kind, in order a sixth
    games = [f"game-{number}" for number in range(400) for _ in range(5)] + [""] * 2000
    made = [EncodedSample.of([1, 2], 1, group=OTHER if game else SFT) for game in games]
    plan = list(offline_updates(made, seed=0, batch_size=400, total=4000, loss_group=2, games=games))
    pairs = [two for update in plan for two in zip(update.samples[::2], update.samples[1::2], strict=True)]
    mixed = sum((made[one].group == SFT) != (made[other].group == SFT) for one, other in pairs)
    assert mixed / len(pairs) == pytest.approx(0.5, abs=0.05)
    assert sum(len({games[index] for index in update.samples} - {""}) for update in plan) < 430  # still whole games


def test_groups_are_drawn_at_random_and_no_split_changes_them() -> None:
    kinds = [index % 3 == 0 for index in range(len(SEQUENCES))]

    def drawn(world_size: int, micro: int) -> list[list[tuple[int, float]]]:
        ranks = [steps(world_size, rank, micro=micro, kinds=kinds, loss_group=2) for rank in range(world_size)]
        return [
            sorted(place for rank in together for batch in rank for place in batch if place[0] != FILLER)
            for together in zip(*ranks, strict=True)
        ]

    alone = drawn(1, 2)
    assert alone == drawn(2, 1) == drawn(2, 4)
    [first, *_] = alone
    stream = list(range(37))
    random.Random("0-0").shuffle(stream)
    expected = zip(stream[:8], loss_shares([kinds[index] for index in stream[:8]], 2), strict=True)
    assert first == sorted(expected)


def test_online_minibatches_hold_every_sample_once_a_pass() -> None:
    plan = list(online_updates(samples()[:10], seed="0-1", epochs=2, minibatches=3))
    assert [len(update.samples) for update in plan] == [4, 3, 3] * 2
    for epoch in (plan[:3], plan[3:]):
        assert sorted(index for update in epoch for index in update.samples) == list(range(10))
    assert plan[0].samples != plan[3].samples


def shares(made: list[EncodedSample], minibatches: int, left_out: float = 0.0) -> list[list[float]]:
    """The weight of each sample in each update of a pass, over what the loss is divided by."""
    found = []
    for update in online_updates(made, seed="a", epochs=1, minibatches=minibatches, left_out=left_out):
        parts = dict.fromkeys(range(len(made)), 0.0)
        for index, factor in zip(update.samples, update.factors, strict=True):
            parts[index] += made[index].weight * factor / update.totals.weight
        found.append([*parts.values()])
    return found


def test_copies_of_a_merged_sample_are_drawn_one_by_one() -> None:
    # Samples that stand for 30, 1 and 1 equal ones, in two updates of 16. Cutting the three in two would divide one
    # update by 1 or 31, and the other by the rest: with AdamW a rare sample would count as much as thirty.
    made = [EncodedSample.of([1, n], 1, weight=w, copies=w) for n, w in enumerate((30, 1, 1))]
    updates = shares(made, 2)
    assert [sum(update) for update in updates] == [1.0, 1.0]
    assert [sum(parts) / 2 for parts in zip(*updates, strict=True)] == [30 / 32, 1 / 32, 1 / 32]
    assert all(update[0] >= 14 / 16 for update in updates)
    # weights are those of all copies: 3 of weight 0.5
    assert shares([EncodedSample.of([1, 2], 1, weight=1.5, copies=3)], 3) == [[1.0], [1.0], [1.0]]


def test_a_pass_counts_every_sample_alike_where_minibatches_differ_in_size() -> None:
    # 7 samples in updates of 4 and 3: each has 1 / 3.5 of one of them
    found = [part for update in shares(samples()[:7], 2) for part in update if part]
    assert found == pytest.approx([1 / 3.5] * 7)


def test_samples_that_are_left_out_count_in_the_divisor() -> None:
    # one sample of 256 has an advantage: its weight is that of one in 256, in the one update that has it that of 128
    assert shares(samples()[:1], 1, left_out=255.0) == [[1 / 256]]
    assert sorted(shares(samples()[:1], 2, left_out=255.0)) == [[0.0], [1 / 128]]
