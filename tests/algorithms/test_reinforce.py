"""Online policy gradient: numbers worked out by hand, and the estimator against the exact gradient of a whole game."""

import math
from dataclasses import replace

import pytest
import torch
from one_token import KUHN, MOVES, Estimate, hand, random_policy, trajectories

from spag.algorithms.base import Needs, TokenBatch, Totals
from spag.algorithms.credit import DRIFT, relative_to_mean, without_drift
from spag.algorithms.reinforce import (
    Baselines,
    Reinforce,
    ReinforceSettings,
    importance_correction,
    policy_gradient_loss,
    scheduled,
)
from spag.core.episodes import Episode, PlayerInfo, TrainingSample
from spag.core.errors import DataError
from spag.games.kuhn_poker import solver


def credit(games: list[Episode], learner: str | None = None, **settings: object) -> list[TrainingSample]:
    """The samples of a step, by a fresh algorithm; without baselines unless ``settings`` say so."""
    return Reinforce(ReinforceSettings(**{"baseline_decay": 1, **settings})).credit(games, KUHN, learner)


def advantages(games: list[Episode], **settings: object) -> list[tuple[str | None, str, float]]:
    return [(sample.role, sample.episode_id, round(sample.reward, 6)) for sample in credit(games, **settings)]


GAMES = [hand("K", "Q", ("bet", "call"), "a"), hand("Q", "K", ("check", "check"), "b")]
"""K against Q, bet and called: player_0 wins 2 chips. Then Q against K, both check: player_0 loses 1."""


def test_baselines_move_once_a_step_and_games_of_a_step_share_them() -> None:
    baselines = Baselines(decay=0.5)
    # The first step gets its own mean, 1; the next step the average of the steps before.
    assert baselines.move([("a", 2.0), ("a", 0.0), ("b", -1.0)]) == {"a": 1.0, "b": -1.0}
    assert baselines.values == {"a": 1.0, "b": -1.0}
    assert baselines.move([("a", -1.0)]) == {"a": 1.0}
    assert baselines.values == {"a": 0.0, "b": -1.0}  # 0.5 * 1 + 0.5 * -1; the other stays
    many = [f"against {number}" for number in range(9)]
    baselines.move([(name, 1.0) for name in many])
    assert [*baselines.values] == ["a", "b", *many]  # rows of metrics have the same order in every process
    still = Baselines(decay=1.0)
    assert still.move([("a", 1.0)]) == {"a": 0.0} and still.values == {}


def test_both_roles_get_their_reward_minus_their_own_baseline() -> None:
    # Step 1, plain means: player_0 2 and -1, so 0.5; player_1 -0.5. Advantages 1.5, -1.5; -1.5, 1.5.
    roles = ["kuhn_poker/player_0", "kuhn_poker/player_1"]
    algorithm = Reinforce(ReinforceSettings(baseline_decay=0.5))
    first = algorithm.credit(GAMES, KUHN, None)
    assert [(s.role, s.episode_id, s.reward) for s in first] == [
        (roles[0], "a", 1.5),
        (roles[0], "b", -1.5),
        (roles[1], "a", -1.5),
        (roles[1], "b", 1.5),
    ]
    # Step 2 has the first game alone: 2 - 0.5, and -2 + 0.5; then b = 0.5 * 0.5 + 0.5 * 2 = 1.25
    assert [s.reward for s in algorithm.credit(GAMES[:1], KUHN, None)] == [1.5, -1.5]
    assert algorithm.state() == {"baselines": {roles[0]: 1.25, roles[1]: -1.25}}
    resumed = Reinforce(ReinforceSettings(baseline_decay=0.5), state=algorithm.state())
    assert [s.reward for s in resumed.credit(GAMES[:1], KUHN, None)] == [0.75, -0.75]
    assert [s.completion_ids for s in first] == [
        (MOVES["bet"],),
        (MOVES["check"],),
        (MOVES["call"],),
        (MOVES["check"],),
    ]
    assert first[0].logprobs == (-0.5,)
    assert first[0].prompt == KUHN.prompt(KUHN.observe(KUHN.start(GAMES[0].task, 0), "player_0"))


def test_the_discount_shrinks_the_whole_advantage_not_the_reward_alone() -> None:
    # J against K: check, bet, call: player_0 speaks twice and loses 2. With b = -3 its advantage is 1, of which half
    # reaches its first utterance: 0.5 * (-2 + 3); gamma * r - b would give 2.
    game = hand("J", "K", ("check", "bet", "call"))
    algorithm = Reinforce(
        ReinforceSettings(discount=0.5, baseline_decay=0.5), state={"baselines": {"kuhn_poker/player_0": -3.0}}
    )
    assert [s.reward for s in algorithm.credit([game], KUHN, None)][:2] == [0.5, 1.0]
    assert [s.reward for s in credit([game], discount=0.5)] == [-1.0, -2.0, 2.0]


def test_advantages_that_are_only_drift_are_none() -> None:
    # Kuhn poker's rewards range over 4 chips: below 0.04 nothing is left to learn.
    assert without_drift([0.039, -0.039, 0.04, 2.0], 4.0) == [0.0, 0.0, 0.04, 2.0] and DRIFT == 0.01
    algorithm = Reinforce(ReinforceSettings(baseline_decay=0.5), state={"baselines": {"kuhn_poker/player_0": 1.97}})
    assert algorithm.credit(GAMES[:1], KUHN, None)[0].reward == 0.0


def test_what_a_step_needs_follows_the_coefficients() -> None:
    """Once a term has fallen to 0, a step without advantages trains nothing."""
    falling = {"kl_coef": 0.1, "kl_coef_end": 0.0, "entropy_coef": 0.1, "entropy_coef_end": 0.0, "anneal_steps": 5}
    algorithm = Reinforce(ReinforceSettings(**falling))
    assert algorithm.needs == algorithm.needs_at(1) == algorithm.needs_at(4) == Needs(reference=True, entropy=True)
    assert algorithm.needs_at(5) == algorithm.needs_at(9) == Needs()


def test_normalized_advantages_are_centred_and_the_divisor_has_a_floor() -> None:
    def normalized(values: list[float], spread: float) -> list[float]:
        return relative_to_mean(values, [0] * len(values), spread, normalize=True)

    # 2 and -1 have the mean 0.5 and deviate by 1.5
    assert normalized([2.0, -1.0], 4.0) == [1.0, -1.0]
    # sixteen near ties are not blown up: the divisor is a tenth of the range, and drift is cut once they are centred
    assert normalized([0.05, -0.05] * 8, 4.0) == pytest.approx([0.125, -0.125] * 8)
    assert normalized([-0.06] * 15 + [-0.02], 4.0) == normalized([0.0] * 16, 4.0) == [0.0] * 16
    # a frequent result at the baseline is worse than the others: it is pushed down as they are pushed up
    assert normalized([1.0] * 12 + [0.01] * 4, 2.0) == pytest.approx([3**-0.5] * 12 + [-(3**0.5)] * 4)
    rewards = [s.reward for s in credit(GAMES, normalize_advantages=True)]
    assert rewards == pytest.approx([1.0, -1.0, -1.0, 1.0])
    # against each opponent by itself: 2 and -1 against the policy; against the bot alone 2, which is its own mean
    alone = {"player_0": PlayerInfo("policy"), "player_1": PlayerInfo("policy")}
    bot = replace(GAMES[0], id="c", players={"player_0": PlayerInfo("policy"), "player_1": PlayerInfo("bot:random")})
    met = [*(replace(game, players=alone) for game in GAMES), bot]
    found = {(s.role, s.episode_id): s.reward for s in credit(met, "policy", normalize_advantages=True)}
    assert [found["kuhn_poker/player_0", game] for game in "abc"] == pytest.approx([1.0, -1.0, 0.0])


def test_ties_and_broken_rules_may_pay_otherwise() -> None:
    illegal = hand("K", "Q", ("bet", "pass"))
    assert illegal.outcome == "player_1_illegal"
    assert [s.reward for s in credit([illegal])] == [2.0, -2.0]
    dear = credit([illegal], rewards={"kuhn_poker": {"illegal": -5.0}})
    assert [s.reward for s in dear] == [2.0, -5.0]  # the other role's reward stays
    void = replace(illegal, outcome="unfinished", rewards={"player_0": 0.0, "player_1": 0.0})
    assert [s.reward for s in credit([void], rewards={"kuhn_poker": {"tie": -0.5}})] == [-0.5, -0.5]
    by_role = {"kuhn_poker": {"tie": -0.5, "tie_by_role": {"player_1": 0.5}}}
    assert [s.reward for s in credit([void], rewards=by_role)] == [-0.5, 0.5]


def test_only_the_learner_and_the_wanted_roles_are_trained() -> None:
    against = replace(GAMES[0], players={"player_0": PlayerInfo("snapshot"), "player_1": PlayerInfo("policy")})
    algorithm = Reinforce(ReinforceSettings())
    assert [s.role for s in algorithm.credit([against], KUHN, "policy")] == ["kuhn_poker/player_1"]
    assert set(algorithm.baselines.values) == {"kuhn_poker/player_1 against snapshot"}  # by opponent
    assert [s.role for s in credit(GAMES[:1], roles="player_0")] == ["kuhn_poker/player_0"]


def test_games_that_cannot_be_trained_are_refused() -> None:
    mute = replace(GAMES[0], history=tuple(replace(said, token_ids=None) for said in GAMES[0].history))
    with pytest.raises(DataError, match="utterance 1 has no token ids"):
        credit([mute])
    other = replace(GAMES[0], history=tuple(replace(said, prompt_digest="0" * 12) for said in GAMES[0].history))
    with pytest.raises(DataError, match="utterance 1 answered a different prompt"):
        credit([other])


def tokens(settings: ReinforceSettings | None = None, **values: list[float]) -> TokenBatch:
    """A batch of one-token samples, each of weight 1."""
    size = len(next(iter(values.values())))
    names = ("logprob", "old_logprob", "sampling_logprob", "played_logprob", "ref_logprob")
    names += ("entropy", "advantage", "weight")
    values = {"played_logprob": values.get("sampling_logprob", []), **values}  # at temperature 1, unless told
    columns = {
        name: torch.tensor(values.get(name) or [float(name == "weight")] * size, dtype=torch.float64) for name in names
    }
    columns["logprob"].requires_grad_()
    order = torch.arange(size)
    totals = Totals(samples=size, sft=0, weight=float(columns["weight"].sum()))
    return TokenBatch(
        sample=order, group=torch.full((size,), 2), groups=("sft", "other", "g/r"), totals=totals, **columns
    )


def test_loss_and_gradient_by_hand() -> None:
    """Three tokens: on policy; policy twice as likely as before and clipped at 1.2; engine half as likely as the policy
    was.
    """
    settings = ReinforceSettings(kl_coef=0.1, entropy_coef=0.01, correction_limit=1.5, sampling={"max_new_tokens": 1})
    batch = tokens(
        logprob=[math.log(0.5), math.log(0.4), math.log(0.2)],
        old_logprob=[math.log(0.5), math.log(0.2), math.log(0.2)],
        sampling_logprob=[math.log(0.5), math.log(0.2), math.log(0.1)],
        ref_logprob=[math.log(0.25), math.log(0.4), math.log(0.2)],
        entropy=[0.7, 0.5, 0.3],
        advantage=[2.0, 1.0, -1.0],
        weight=[2.0, 1.0, 1.0],
    )
    loss, metrics = policy_gradient_loss(batch, settings)
    # token 1: c = 1, r = 1: -(2 - 0.05 * ln(2)^2) - 0.01 * 0.7          = -2 + 0.0240226507 - 0.007 = -1.9829773493
    # token 2: c = 1, r = 2 clipped to 1.2: -1.2 - 0.005                                              = -1.205
    # token 3: c = min(2, 1.5), r = 1: -1.5 * (-1) - 0.003                                            = 1.497
    # 0.5 * -1.9829773493 + 0.25 * -1.205 + 0.25 * 1.497                                              = -0.9184886747
    assert loss.item() == pytest.approx(-0.9184886747, abs=1e-9)
    loss.backward()
    # d/dlp: token 1: -0.5 * (2 - 0.1 * ln 2) = -0.9653426410; token 2: clipped, 0; token 3: -0.25 * 1.5 * (-1) = 0.375
    assert batch.logprob.grad.tolist() == pytest.approx([-0.9653426410, 0.0, 0.375], abs=1e-9)
    total, weight = metrics["g/r/entropy"]
    assert (total / weight).item() == pytest.approx((2 * 0.7 + 0.5 + 0.3) / 4)
    assert "importance_ratio" not in metrics  # a single update a step has no ratio


def test_a_falling_token_of_a_lost_game_is_clipped_too() -> None:
    # A < 0 and r = 0.5 < 0.8: min(A r, A clip) = min(-0.5, -0.8) = -0.8, a constant; r = 2: min(-2, -1.2) = -2, not
    # clipped
    batch = tokens(
        logprob=[math.log(0.1), math.log(0.4)],
        old_logprob=[math.log(0.2)] * 2,
        sampling_logprob=[math.log(0.2)] * 2,
        advantage=[-1.0, -1.0],
    )
    loss, _ = policy_gradient_loss(batch, ReinforceSettings(sampling={"max_new_tokens": 1}))
    assert loss.item() == pytest.approx((0.8 + 2.0) / 2)  # over the total weight
    loss.backward()
    assert batch.logprob.grad.tolist() == pytest.approx([0.0, 2.0 / 2])


def test_games_that_are_a_step_old_have_a_trust_region() -> None:
    """One update: the ratio to the policy before it is 1, so with ``overlap`` that to the engine is clipped."""
    # the policy is 1.5, 1.5, 0.5 and 1.1 times as likely to say it as the engine was; advantages 2, -2, -2, 2
    ratios = [1.5, 1.5, 0.5, 1.1]
    now = [math.log(0.1 * ratio) for ratio in ratios]
    found = {}
    for overlap in (0, 1):
        batch = tokens(
            logprob=now, old_logprob=now, sampling_logprob=[math.log(0.1)] * 4, advantage=[2.0, -2.0, -2.0, 2.0]
        )
        settings = ReinforceSettings(overlap=overlap, sampling={"max_new_tokens": 1})
        loss, metrics = policy_gradient_loss(batch, settings)
        loss.backward()
        found[overlap] = loss.item(), [4 * value for value in batch.logprob.grad.tolist()], metrics
    # without: -c A, c the ratio. With: a good token that is 1.2 times likelier, and a bad one that is below 0.8, are
    # left alone; the loss is -A times the clipped ratio: -(2 * 1.2 - 2 * 1.5 - 2 * 0.8 + 2 * 1.1) / 4
    assert found[False][1] == pytest.approx([-3.0, 3.0, 1.0, -2.2])
    assert found[True][1] == pytest.approx([0.0, 3.0, 0.0, -2.2])
    assert found[True][0] == pytest.approx(0.0)
    total, weight = found[True][2]["clip_fraction"]
    assert (total / weight).item() == 0.75 and "clip_fraction" not in found[False][2]


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_temperature_is_no_staleness_and_no_disagreement_of_engine_and_trainer(overlap: int) -> None:
    """Equal weights: the engine's own ratio is 1, whatever it sampled from, and only the correction knows of that."""
    now = [math.log(0.5), math.log(0.03)]
    drawn = [math.log(0.7), math.log(0.005)]  # at a low temperature
    batch = tokens(
        logprob=now,
        old_logprob=now,
        sampling_logprob=drawn,
        played_logprob=now,
        advantage=[-1.0, 1.0],
        weight=[1.0, 1.0],
    )
    settings = ReinforceSettings(overlap=overlap, correction_limit=2.0, sampling={"max_new_tokens": 1})
    loss, metrics = policy_gradient_loss(batch, settings)
    loss.backward()
    assert batch.logprob.grad.tolist() == pytest.approx([0.5 * 0.5 / 0.7, -0.5 * 2.0])  # -c A / 2, c at most 2
    total, _ = metrics["mismatch_kl"]
    assert total.item() == 0.0
    assert not overlap or metrics["clip_fraction"][0].item() == 0.0


def test_the_share_of_truncated_and_masked_tokens() -> None:
    # two tokens of one utterance, 3 and 0.4 times as likely for the trainer; one of another, 1.1 times
    batch = tokens(logprob=[0.0] * 3, old_logprob=[math.log(3), math.log(0.4), math.log(1.1)])
    batch = replace(batch, sample=torch.tensor([0, 0, 1]), weight=torch.ones(2, dtype=torch.float64))
    found = {kind: importance_correction(batch, kind, 2.0)[1].tolist() for kind in ("token", "sequence", "mask")}
    assert found == {"token": [1.0, 0.0, 0.0], "sequence": [0.0, 0.0, 0.0], "mask": [1.0, 1.0, 0.0]}
    assert importance_correction(batch, "sequence", 1.15)[1].tolist() == [1.0, 1.0, 0.0]  # 3 * 0.4 = 1.2


def test_importance_correction_by_token_by_utterance_and_masked() -> None:
    # one utterance of two tokens, 3 and 0.5 times as likely for the trainer as for the engine; another of one token
    batch = tokens(logprob=[0.0] * 3, old_logprob=[math.log(3), math.log(0.5), math.log(1.1)])
    batch = replace(batch, sample=torch.tensor([0, 0, 1]), weight=torch.ones(2, dtype=torch.float64))
    found = {kind: importance_correction(batch, kind, 2.0)[0].tolist() for kind in ("token", "sequence", "mask")}
    assert found["token"] == pytest.approx([2.0, 0.5, 1.1])
    assert found["sequence"] == pytest.approx([1.5, 1.5, 1.1])  # 3 * 0.5
    assert found["mask"] == pytest.approx([0.0, 0.5, 1.1])
    assert importance_correction(batch, "sequence", 1.2)[0].tolist() == pytest.approx([1.2, 1.2, 1.1])


def test_every_token_of_an_update_counts_alike() -> None:
    # samples of 1 and 3 tokens, advantage 1: the loss is -(1 + 3) / (2 * 16), whatever their lengths
    settings = ReinforceSettings(sampling={"max_new_tokens": 16})
    batch = tokens(logprob=[0.0] * 4, advantage=[1.0] * 4)
    batch = replace(
        batch,
        sample=torch.tensor([0, 1, 1, 1]),
        advantage=torch.ones(2, dtype=torch.float64),
        weight=torch.ones(2, dtype=torch.float64),
        group=torch.full((2,), 2),
        totals=Totals(2, 0, 2.0),
    )
    assert policy_gradient_loss(batch, settings)[0].item() == pytest.approx(-4 / 32)


def test_schedules_are_lines() -> None:
    assert [scheduled(0.5, 0.1, step, 5) for step in range(1, 8)] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1])
    assert [scheduled(0.5, 0.1, step, 1) for step in (1, 2, 3)] == pytest.approx([0.5, 0.1, 0.1])
    assert scheduled(0.5, None, 3, 5) == 0.5


def test_a_moving_reference_without_a_kl_term_is_refused() -> None:
    with pytest.raises(ValueError, match="kl_coef is 0; set kl_coef"):
        ReinforceSettings(reference={"ema": 0.02})
    assert ReinforceSettings(reference={"ema": 0.02}, kl_coef_end=0.1).needs_reference


def test_snapshots_that_no_step_can_meet_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kept after step 20 of 20: none is ever met; set snapshot_every to fewer"):
        ReinforceSettings(opponents={"self": 1, "snapshot": 1}, steps=20)
    assert ReinforceSettings(opponents={"self": 1, "snapshot": 1}, steps=20, snapshot_every=19).steps == 20
    with pytest.raises(ValueError, match="set snapshot_every to fewer than steps - overlap"):
        ReinforceSettings(opponents={"self": 1, "snapshot": 1}, steps=20, snapshot_every=19, overlap=1)


def test_evaluations_need_an_opponent() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        ReinforceSettings(evaluation_opponents=[])


def test_the_estimator_is_the_gradient_of_the_expected_rewards() -> None:
    """All 30 hands of Kuhn poker by their probability: the loss falls along what each role expects of its own moves."""
    policy = random_policy(3)
    estimate = Estimate(policy)
    state = {"baselines": {"kuhn_poker/player_0": 0.37, "kuhn_poker/player_1": -0.81}}
    for deal in solver.DEALS:
        for moves in trajectories():
            algorithm = Reinforce(ReinforceSettings(baseline_decay=0.5), state=state)
            for sample in algorithm.credit([hand(*deal, moves)], KUHN, None):
                estimate.add(sample, deal, moves, policy.chance(deal, moves).detach() / 6)
    expected = policy.gradient()
    policy_gradient_loss(estimate.batch(1.0), ReinforceSettings(sampling={"max_new_tokens": 1}))[0].backward()
    estimate.assert_is(expected)
