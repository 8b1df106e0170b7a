"""`turnwise`: what is charged to which turn, with the game's own rewards of turns and without; loss and gradient by
hand; the exact gradient of Kuhn poker.
"""

import math
from dataclasses import replace

import pytest
import torch
from one_token import KUHN, SETS, Estimate, Policy, batch_of, game_of, hand, trajectories

from spag.algorithms.credit import RoleRewards
from spag.algorithms.online_settings import RewardOverride
from spag.algorithms.turnwise import Turnwise, TurnwiseSettings, turn_rewards
from spag.core.episodes import Episode, TrainingSample
from spag.core.types import Task
from spag.games.base import Game
from spag.games.kuhn_poker import solver
from spag.games.nim.nim import Nim
from spag.games.tic_tac_toe.board import TicTacToe

PLAIN = {"normalize_advantages": False}
NIM_GAME = game_of(Nim(), Task("13", {"stones": 13}), ("2", "3", "3", "2", "3"))
"""13 stones are won for player_0, who gives that away (2 instead of 1), as player_1 does with 5 left (2 instead of 1).
Changes of value: -2, 0, 0, -2, 0.
"""


def credit(
    games: list[Episode], game: Game = KUHN, learner: str | None = None, **settings: object
) -> list[TrainingSample]:
    return Turnwise(TurnwiseSettings.model_validate(settings)).credit(games, game, learner)


def test_each_turn_is_charged_with_what_follows() -> None:
    # check, bet, call with J against K: player_0 loses 2 at its last utterance, player_1 wins 2 at its only one.
    games = [hand("J", "K", ("check", "bet", "call"), "a"), hand("Q", "K", ("check", "check"), "b")]
    samples = credit(games, discount=0.5, **PLAIN)
    # Returns of player_0: 0.5 * -2 = -1 and -2, in the other game -1; their mean is -4/3. Player_1: 2 and 1, mean 1.5.
    assert [s.reward for s in samples] == pytest.approx([1 / 3, -2 / 3, 1 / 3, 0.5, -0.5])
    # the deviation of 1/3, -2/3, 1/3 is 0.4714; of 0.5, -0.5 it is 0.5; both above the floor of 0.4
    scaled = [0.70711, -1.41421, 0.70711, 1.0, -1.0]
    assert [s.reward for s in credit(games, discount=0.5)] == pytest.approx(scaled, abs=1e-5)


@pytest.mark.parametrize(
    ("discount", "advantages"),
    [
        # returns -2, 0, 0 of player_0, whatever the discount: mean -2/3. Player_1: 0, -2 (mean -1), -1, -2 (mean -1.5),
        # or -2, -2: its first move, which was right, is charged as far as the discount says
        (0.0, [-4 / 3, 2 / 3, 2 / 3, 1.0, -1.0]),
        (0.5, [-4 / 3, 2 / 3, 2 / 3, 0.5, -0.5]),
        (1.0, [-4 / 3, 2 / 3, 2 / 3, 0.0, 0.0]),
    ],
)
def test_a_blunder_in_nim_is_charged_to_the_move_that_made_it(discount: float, advantages: list[float]) -> None:
    samples = credit([NIM_GAME], Nim(), discount=discount, **PLAIN)
    assert [(s.role, s.turn) for s in samples] == [
        *(("nim/player_0", turn) for turn in (1, 2, 3)),
        *(("nim/player_1", turn) for turn in (1, 2)),
    ]
    assert [s.reward for s in samples] == pytest.approx(advantages)


def test_nim_loss_and_gradient_by_hand() -> None:
    """From a game to the gradient: sample 1, the blunder, was 1.5 times as likely for the trainer as for the engine."""
    algorithm = Turnwise(TurnwiseSettings.model_validate({**PLAIN, "discount": 0.5, "sampling": {"max_new_tokens": 1}}))
    samples = algorithm.credit([NIM_GAME], Nim(), None)
    old = [-0.5 + math.log(1.5), *[-0.5] * 4]  # play: -0.5
    batch = batch_of(samples, old, old)
    loss, _ = algorithm.loss(batch)
    # -c A: 1.5 * 4/3 = 2, -2/3, -2/3, -0.5, 0.5; a mean of 5
    assert loss.item() == pytest.approx((2 - 4 / 3) / 5, abs=1e-9)
    loss.backward()
    assert batch.logprob.grad is not None
    assert batch.logprob.grad.tolist() == pytest.approx([0.4, -2 / 15, -2 / 15, -0.1, 0.1], abs=1e-9)


def test_tic_tac_toe_gradient_by_hand() -> None:
    """X on 1; O on 9 loses the draw (-1), X on 2 gives the win away (-2); nothing after that changes the value. The
    moves that lost are made less likely, all others more, though X lost the game.
    """
    game = game_of(TicTacToe(), Task("1", {"opening": [1]}), ("9", "2", "3", "6", "7", "5", "8"))
    assert game.outcome == "player_1_wins"
    algorithm = Turnwise(TurnwiseSettings.model_validate({"discount": 0, "sampling": {"max_new_tokens": 1}}))
    samples = algorithm.credit([game], TicTacToe(), None)
    assert [s.completion for s in samples] == [*("[2]", "[6]", "[5]"), *("[9]", "[3]", "[7]", "[8]")]
    batch = batch_of(samples, [-0.5] * 7, [-0.5] * 7)
    loss, _ = algorithm.loss(batch)
    assert loss.item() == pytest.approx(0.0, abs=1e-9)  # ratios are 1, and advantages sum to 0
    loss.backward()
    # X: -4/3, 2/3, 2/3 over sqrt(8/9): -sqrt(2), 1/sqrt(2), 1/sqrt(2). O: -3/4, 1/4, 1/4, 1/4 over sqrt(3)/4:
    # -sqrt(3), 1/sqrt(3), three times
    advantages = [-math.sqrt(2), *[math.sqrt(0.5)] * 2, -math.sqrt(3), *[math.sqrt(1 / 3)] * 3]
    assert batch.logprob.grad is not None
    assert batch.logprob.grad.tolist() == pytest.approx([-advantage / 7 for advantage in advantages], abs=1e-9)


def test_an_override_changes_the_last_turn_of_the_role() -> None:
    """13 stones: 2 gives the win away (-2), 3 keeps it (0), and with 8 left, a lost position (-1), player_0 says no
    legal move: its reward of -2 minus -1. An override of -5 makes that -1 a -4; player_1 gets what it got.
    """
    game = game_of(Nim(), Task("13", {"stones": 13}), ("2", "3", "x"))
    assert game.outcome == "player_0_illegal"
    assert turn_rewards(game, RoleRewards(Nim(), RewardOverride())) == [-2.0, 0.0, -1.0]
    assert turn_rewards(game, RoleRewards(Nim(), RewardOverride(illegal=-5.0))) == [-2.0, 0.0, -4.0]
    samples = credit([game], Nim(), discount=0, rewards={"nim": {"illegal": -5.0}}, **PLAIN)
    assert [s.reward for s in samples] == [1.0, -1.0, 0.0]  # player_0: -2 and -4, mean -3
    # the range of rewards stays 3, from -2 to 1, whatever an illegal move costs: the floor of the divisor is 0.3
    assert RoleRewards(Nim(), RewardOverride(illegal=-5.0)).spread == RoleRewards(Nim(), RewardOverride()).spread == 3
    assert [s.reward for s in credit([game], Nim(), discount=0, rewards={"nim": {"illegal": -5.0}})] == [1.0, -1.0, 0.0]


def test_values_of_positions_may_stay_uncentred() -> None:
    """9 stones: 1 keeps the win. With 8 left no move is better than another. With 5 left 2 gives the win away, with 3
    left 1 gives it back. Around their mean, moves of a player without a choice would be praised.
    """
    game = game_of(Nim(), Task("9", {"stones": 9}), ("1", "3", "2", "1", "2"))
    assert game.outcome == "player_0_wins"
    assert turn_rewards(game, RoleRewards(Nim(), RewardOverride())) == [0.0, 0.0, -2.0, -2.0, 0.0]
    assert [s.reward for s in credit([game], Nim(), discount=0, **PLAIN)][3:] == [1.0, -1.0]  # player_1: 0 and -2
    kept = credit([game], Nim(), discount=0, centre=False, **PLAIN)
    assert [s.reward for s in kept] == [0.0, -2.0, 0.0, 0.0, -2.0]
    with pytest.raises(ValueError, match="set it to false"):
        TurnwiseSettings(centre=False)


def test_an_override_of_draws_reaches_both_roles() -> None:
    """A hand of Kuhn poker that was cut short after two utterances; what is said behind the end gets nothing."""
    void = hand("K", "Q", ("check", "bet"))
    assert void.outcome == "unfinished" and void.length == 2
    for override, rewards in (
        (RewardOverride(), [0.0, 0.0]),
        (RewardOverride(tie=-0.5), [-0.5, -0.5]),
        (RewardOverride(tie=-0.5, tie_by_role={"player_1": 0.5}), [-0.5, 0.5]),
        (RewardOverride(illegal=-5.0), [0.0, 0.0]),
    ):
        assert turn_rewards(void, RoleRewards(KUHN, override)) == rewards
    talked_on = replace(void, history=(*void.history, void.history[0]))
    assert turn_rewards(talked_on, RoleRewards(KUHN, RewardOverride(tie=-0.5))) == [-0.5, -0.5, 0.0]
    won = hand("K", "Q", ("bet", "fold"))
    games = [void, won]
    assert [s.reward for s in credit(games, **PLAIN)] == [-0.5, 0.5, 0.5, -0.5]  # 0 and 1; 0 and -1
    dear = credit(games, rewards={"kuhn_poker": {"tie": -3.0}}, **PLAIN)
    assert [s.reward for s in dear] == [-2.0, 2.0, -1.0, 1.0]  # -3 and 1, mean -1; -3 and -1, mean -2


def test_each_opponent_has_a_mean_and_a_deviation_of_its_own() -> None:
    games = [
        hand("K", "Q", ("bet", "call"), "a"),  # 2 for player_0
        hand("K", "Q", ("check", "check"), "b"),  # 1
        hand("J", "Q", ("bet", "call"), "c", player_1="start"),  # -2
        hand("J", "Q", ("bet", "fold"), "d", player_1="start"),  # 1
    ]
    # Means: 1.5 against itself, -0.5 against the start; together it would be 0.5.
    samples = credit(games, KUHN, "policy", **PLAIN)
    assert [(s.episode_id, s.reward) for s in samples[:4]] == [("a", 0.5), ("b", -0.5), ("c", -1.5), ("d", 1.5)]
    assert [s.reward for s in samples[4:]] == [-0.5, 0.5]  # player_1, against itself alone
    scaled = credit(games, KUHN, "policy")  # deviations 0.5 and 1.5
    assert [s.reward for s in scaled] == [1.0, -1.0, -1.0, 1.0, -1.0, 1.0]


def test_the_estimator_is_the_gradient_of_the_expected_rewards() -> None:
    """With discount 1 and without normalisation, in a step in which every hand is as frequent as it is likely.

    Every probability is a multiple of 1/4, so 64 games a deal hold each hand exactly as often as expected (at most
    three moves). The mean return is then a constant, under which sum p(hand) * sum_turns grad log p(move) vanishes at
    every information set, and what is left is the exact gradient.
    """
    shares = torch.tensor([1, 2, 3], dtype=torch.float64)[torch.arange(len(SETS)) * 7 % 3] / 4
    chances = {key: torch.stack([share, 1 - share]) for key, share in zip(SETS, shares, strict=True)}
    policy = Policy({key: chance.log().requires_grad_() for key, chance in chances.items()})
    hands, games = {}, []
    for deal in solver.DEALS:
        for moves in trajectories():
            times = 64 * policy.chance(deal, moves).item()
            assert times == pytest.approx(round(times), abs=1e-9)
            for _ in range(round(times)):
                id = str(len(games))
                hands[id] = deal, moves
                games.append(replace(hand(*deal, moves), id=id))
    assert len(games) == 6 * 64
    estimate = Estimate(policy)
    for sample in credit(games, **PLAIN):
        estimate.add(sample, *hands[str(sample.episode_id)], weight=1.0)
    expected = policy.gradient()
    settings = TurnwiseSettings.model_validate({"sampling": {"max_new_tokens": 1}})
    Turnwise(settings).loss(estimate.batch(float(len(games))))[0].backward()
    estimate.assert_is(expected)
