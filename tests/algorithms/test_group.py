"""`group`: whole groups of games on one task against one opponent; advantages, loss and gradient by hand; the expected
gradient of all hands of Kuhn poker.
"""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import product

import pytest
import torch
from one_token import KUHN, Estimate, batch_of, hand, random_policy, trajectories
from pydantic import ValidationError

from spag.algorithms.group import Group, GroupSettings
from spag.core.episodes import Episode, TrainingSample
from spag.games.kuhn_poker import solver
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.nim.nim import Nim
from spag.rollout.matchmaking import draw_opponents, groups_by_weight, step_specs


def credit(games: list[Episode], learner: str | None = None, **settings: object) -> list[TrainingSample]:
    return Group(GroupSettings.model_validate(settings)).credit(games, KUHN, learner)


def test_games_on_one_task_are_compared_by_role() -> None:
    # Three games on KQ: player_0 gets 2, 1 and 2 (mean 5/3), player_1 the opposite; a game on QK has no other.
    games = [
        hand("K", "Q", ("bet", "call"), "a"),
        hand("K", "Q", ("bet", "fold"), "b"),
        hand("K", "Q", ("bet", "call"), "c"),
        hand("Q", "K", ("check", "check"), "d"),
    ]
    found = {(sample.role, sample.episode_id): sample.reward for sample in credit(games)}
    first = {"a": 1 / 3, "b": -2 / 3, "c": 1 / 3, "d": 0.0}
    for name, advantage in first.items():
        assert found["kuhn_poker/player_0", name] == pytest.approx(advantage)
        assert found["kuhn_poker/player_1", name] == pytest.approx(-advantage)
    scaled = credit(games, normalize_advantages=True)
    # the deviation of 1/3, -2/3, 1/3 is sqrt(2)/3 = 0.4714, above the floor of a tenth of 4
    assert [s.reward for s in scaled[:3]] == pytest.approx([0.70711, -1.41421, 0.70711], abs=1e-5)


SELF_AND_START = [
    hand("K", "Q", ("bet", "call"), "a"),
    hand("K", "Q", ("bet", "fold"), "b"),
    hand("K", "Q", ("bet", "call"), "c"),
    hand("K", "Q", ("bet", "call"), "d", player_1="start"),
    hand("K", "Q", ("bet", "fold"), "e", player_1="start"),
]
"""One task, in three games against itself and two against the frozen start, where player_0 alone is trained."""
ADVANTAGES = [1 / 3, -2 / 3, 1 / 3, 0.5, -0.5, -1 / 3, 2 / 3, -1 / 3]
"""Of player_0: 2, 1, 2 with mean 5/3, and 2, 1 with mean 3/2; then of player_1: -2, -1, -2 with mean -5/3."""


def test_games_against_other_opponents_are_other_groups() -> None:
    # All five in one group would give player_0 the mean 8/5.
    samples = credit(SELF_AND_START, "policy")
    assert [s.episode_id for s in samples] == [*"abcde", *"abc"]
    assert [s.reward for s in samples] == pytest.approx(ADVANTAGES)


def test_loss_and_gradient_by_hand() -> None:
    """From games to the gradient: sample 1 was 1.5 times as likely for the trainer as for the engine, sample 2 is now
    1.1 times as likely as before the step, and sample 4 1.5 times, which is clipped at 1.2.
    """
    settings = GroupSettings.model_validate({"epochs": 2, "sampling": {"max_new_tokens": 1}})
    samples = Group(settings).credit(SELF_AND_START, KUHN, "policy")
    old = [-0.5 + math.log(1.5), *[-0.5] * 7]  # play: -0.5
    ratios = [1.0, 1.1, 1.0, 1.5, *[1.0] * 4]
    batch = batch_of(samples, [before + math.log(ratio) for before, ratio in zip(old, ratios, strict=True)], old)
    loss, metrics = Group(settings).loss(batch)
    # c A r: 1.5/3 = 0.5, -2/3 * 1.1 = -0.733333, 0.333333, 0.5 * 1.2 = 0.6, -0.5, -0.333333, 0.666667, -0.333333;
    # their sum is 0.2, and the loss -0.2 / 8
    assert loss.item() == pytest.approx(-0.025, abs=1e-9)
    loss.backward()
    # -c A r / 8, 0 where it is clipped
    expected = [-0.0625, 0.0916666667, -1 / 24, 0.0, 0.0625, 1 / 24, -1 / 12, 1 / 24]
    assert batch.logprob.grad is not None
    assert batch.logprob.grad.tolist() == pytest.approx(expected, abs=1e-9)
    total, weight = metrics["clip_fraction"]
    assert (total / weight).item() == pytest.approx(1 / 8)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_the_expected_gradient_is_the_exact_one_but_for_the_games_own_part_in_the_mean(size: int) -> None:
    """Every group of ``size`` hands by its probability.

    Advantage of game i: r_i - (1/n) sum_j r_j. With g_i the gradient of log p(hand i), games independent and
    E[g_i] = 0: E[sum_i A_i g_i] = n E[r g] - (1/n) sum_i E[r_i g_i] = (n - 1) E[r g]; a mean over the n games makes
    that (n - 1)/n of the exact gradient E[r g].
    """
    policy = random_policy(4)
    estimate = Estimate(policy)
    for deal in solver.DEALS:
        hands = {moves: hand(*deal, moves) for moves in trajectories()}
        for played in product(hands, repeat=size):
            games = [replace(hands[moves], id=str(at)) for at, moves in enumerate(played)]
            weight = torch.stack([policy.chance(deal, moves) for moves in played]).prod().detach() / 6
            for sample in credit(games):
                estimate.add(sample, deal, played[int(str(sample.episode_id))], weight)
    expected = policy.gradient()
    settings = GroupSettings.model_validate({"sampling": {"max_new_tokens": 1}})
    Group(settings).loss(estimate.batch(float(size)))[0].backward()
    estimate.assert_is(expected, (size - 1) / size)


def test_a_mix_is_shared_out_in_whole_groups() -> None:
    """Three groups of three games: two of Kuhn poker (1.5 rounds to 2), one of Nim; not 4 and 5 games."""
    specs = step_specs([(KuhnPoker(), 1.0), (Nim(), 1.0)], 9, 1, 0, repeats=3)
    games = Counter((game.name, spec.task.id) for game, spec in specs)
    assert set(games.values()) == {3}
    assert Counter(name for name, _ in games) == {"kuhn_poker": 2, "nim": 1}
    assert len({spec.id for _, spec in specs}) == len({spec.seed for _, spec in specs}) == 9
    assert groups_by_weight([2, 1], 12) == [8, 4] and groups_by_weight([5, 1, 1], 3) == [2, 1, 0]


def test_groups_stay_whole_where_there_are_fewer_tasks_than_groups() -> None:
    """Ten groups of four on six deals: four deals have two groups."""
    specs = step_specs([(KuhnPoker(hands=6), 1.0)], 40, 1, 0, repeats=4)
    assert sorted(Counter(spec.task.id for _, spec in specs).values()) == [4, 4, 8, 8, 8, 8]
    assert len({spec.id for _, spec in specs}) == len({spec.seed for _, spec in specs}) == 40


def test_a_group_meets_one_opponent_in_one_seat_whatever_is_left_to_play() -> None:
    specs = [spec for _, spec in step_specs([(KuhnPoker(), 1.0)], 160, 1, 0, repeats=4)]
    weights = {"self": 1.0, "start": 1.0, "bot:random": 1.0}
    pairs = draw_opponents(specs, "policy", weights)
    assert len(pairs) == 5  # itself, and two others in either seat
    met = defaultdict(set)
    for pairing, games in pairs.items():
        for spec in games:
            met[spec.task.id].add(pairing)
    assert len(met) == 40 and all(len(pairings) == 1 for pairings in met.values())
    for pairing, games in draw_opponents(specs[1::3], "policy", weights).items():
        assert {spec.id for spec in games} <= {spec.id for spec in pairs[pairing]}


def test_games_that_make_no_whole_groups_are_refused() -> None:
    with pytest.raises(ValidationError, match="games=10 does not make whole groups of 4 games per task; choose"):
        GroupSettings.model_validate({"games": 10, "group_size": 4})
