"""Online policy gradient: numbers worked out by hand, and the estimator against the exact gradient of a whole game."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from spag import algorithms
from spag.algorithms.base import TokenBatch, Totals
from spag.algorithms.credit import DRIFT, normalized, prompt_digest, without_drift
from spag.algorithms.policy_gradient import (
    importance_correction,
    policy_gradient_loss,
    policy_gradient_terms,
    scheduled,
)
from spag.algorithms.reinforce import Baselines, Reinforce, ReinforceSettings
from spag.core.episodes import Episode, PlayerInfo, TrainingSample
from spag.core.errors import DataError
from spag.core.types import State, Task, Utterance
from spag.games.kuhn_poker import solver
from spag.games.kuhn_poker.kuhn import KuhnPoker

KUHN = KuhnPoker()
MOVES = {move: index for index, move in enumerate(solver.MOVES)}


def hand(first: str, second: str, moves: tuple[str, ...], id: str = "") -> Episode:
    """A hand in which each move is one token, the move's index."""
    state = State(Task(id or f"{first}{second}", {"player_0": first, "player_1": second}))
    for move in moves:
        role = KUHN.to_move(state)
        assert role is not None
        digest = prompt_digest(KUHN.prompt(KUHN.observe(state, role)))
        said = Utterance(role, f"[{move}]", "eos", (MOVES.get(move, 9),), (-0.5,), digest)
        state = KUHN.apply(state, said)
    result = KUHN.result(state)
    players = {role: PlayerInfo("policy") for role in KUHN.roles}
    return Episode(
        id=state.task.id, game=KUHN.name, task=state.task, history=state.history, outcome=result.outcome,
        rewards=result.rewards,
        length=result.length, players=players,
    )  # fmt: skip


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


def test_normalized_advantages_are_centred_and_the_divisor_has_a_floor() -> None:
    # 2 and -1 have the mean 0.5 and deviate by 1.5
    assert normalized([2.0, -1.0], 4.0) == [1.0, -1.0]
    # sixteen near ties are not blown up: the divisor is a tenth of the range
    assert normalized([-0.06] * 15 + [-0.02], 4.0) == pytest.approx([-0.00625] * 15 + [0.09375])
    assert normalized([0.0] * 16, 4.0) == [0.0] * 16
    rewards = [s.reward for s in credit(GAMES, normalize_advantages=True)]
    assert rewards == pytest.approx([1.0, -1.0, -1.0, 1.0])


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
    with pytest.raises(DataError, match="utterance 1 answered another prompt"):
        credit([other])


def test_group_compares_games_on_one_task_by_role() -> None:
    # Three games on KQ: player_0 gets 2, 1 and 2 (mean 5/3), player_1 the opposite; a game on QK has no other.
    games = [
        hand("K", "Q", ("bet", "call"), "a"),
        hand("K", "Q", ("bet", "fold"), "b"),
        hand("K", "Q", ("bet", "call"), "c"),
        hand("Q", "K", ("check", "check"), "d"),
    ]
    games = [replace(game, task=Task(f"{game.task.data}", game.task.data)) for game in games]
    settings = algorithms.get("group").Settings.model_validate({"games": 8, "group_size": 4})
    samples = algorithms.get("group")(settings).credit(games, KUHN, None)
    found = {(sample.role, sample.episode_id): sample.reward for sample in samples}
    first = {"a": 1 / 3, "b": -2 / 3, "c": 1 / 3, "d": 0.0}
    for name, advantage in first.items():
        assert found["kuhn_poker/player_0", name] == pytest.approx(advantage)
        assert found["kuhn_poker/player_1", name] == pytest.approx(-advantage)
    grpo = settings.model_copy(update={"normalize_advantages": True})
    scaled = algorithms.get("group")(grpo).credit(games, KUHN, None)
    # the deviation of 1/3, -2/3, 1/3 is sqrt(2)/3 = 0.4714, above the floor of a tenth of 4
    assert [s.reward for s in scaled[:3]] == pytest.approx([0.70711, -1.41421, 0.70711], abs=1e-5)


def test_turnwise_charges_each_turn_with_what_follows() -> None:
    # check, bet, call with J against K: player_0 loses 2 at its last utterance, player_1 wins 2 at its only one.
    game = hand("J", "K", ("check", "bet", "call"))
    plain = {"normalize_advantages": False, "discount": 0.5}
    settings = algorithms.get("turnwise").Settings.model_validate(plain)
    samples = algorithms.get("turnwise")(settings).credit([game, GAMES[1]], KUHN, None)
    # Returns of player_0: 0.5 * -2 = -1 and -2, in the other game -1; their mean is -4/3. Player_1: 2 and 1, mean 1.5.
    assert [round(s.reward, 6) for s in samples] == [round(value, 6) for value in (1 / 3, -2 / 3, 1 / 3, 0.5, -0.5)]
    scaled = algorithms.get("turnwise")(settings.model_copy(update={"normalize_advantages": True}))
    # the deviation of 1/3, -2/3, 1/3 is 0.4714; of 0.5, -0.5 it is 0.5; both above the floor of 0.4
    assert [s.reward for s in scaled.credit([game, GAMES[1]], KUHN, None)] == pytest.approx(
        [0.70711, -1.41421, 0.70711, 1.0, -1.0], abs=1e-5
    )


def tokens(settings: ReinforceSettings | None = None, **values: list[float]) -> TokenBatch:
    """A batch of one-token samples, each of weight 1."""
    size = len(next(iter(values.values())))
    names = ("logprob", "old_logprob", "sampling_logprob", "ref_logprob", "entropy", "advantage", "weight")
    columns = {
        name: torch.tensor(values.get(name, [float(name == "weight")] * size), dtype=torch.float64) for name in names
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
    one = torch.ones(2, dtype=torch.float64)
    loss = policy_gradient_terms(batch, one, clip_range=0.2, kl_coef=0.0, entropy_coef=0.0).sum()
    assert loss.item() == pytest.approx(0.8 + 2.0)
    loss.backward()
    assert batch.logprob.grad.tolist() == pytest.approx([0.0, 2.0])


def test_importance_correction_by_token_by_utterance_and_masked() -> None:
    # one utterance of two tokens, 3 and 0.5 times as likely for the trainer as for the engine; another of one token
    batch = tokens(logprob=[0.0] * 3, old_logprob=[math.log(3), math.log(0.5), math.log(1.1)])
    batch = replace(batch, sample=torch.tensor([0, 0, 1]), weight=torch.ones(2, dtype=torch.float64))
    found = {kind: importance_correction(batch, kind, 2.0).tolist() for kind in ("token", "sequence", "mask")}
    assert found["token"] == pytest.approx([2.0, 0.5, 1.1])
    assert found["sequence"] == pytest.approx([1.5, 1.5, 1.1])  # 3 * 0.5
    assert found["mask"] == pytest.approx([0.0, 0.5, 1.1])
    assert importance_correction(batch, "sequence", 1.2).tolist() == pytest.approx([1.2, 1.2, 1.1])


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
    assert scheduled(0.5, None, 3, 5) == scheduled(0.5, 0.1, 1, 1) == 0.5


def trajectories(deal: tuple[str, str], moves: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not solver.legal_moves(moves):
        yield moves
    for move in solver.legal_moves(moves):
        yield from trajectories(deal, (*moves, move))


def chance(policy: dict[str, dict[str, torch.Tensor]], deal: tuple[str, str], moves: tuple[str, ...]) -> torch.Tensor:
    found = torch.tensor(1.0, dtype=torch.float64)
    for at, move in enumerate(moves):
        found = found * policy[solver.information_set(deal[at % 2], moves[:at])][move]
    return found


def test_the_estimator_is_the_gradient_of_the_expected_rewards() -> None:
    """All 30 hands of Kuhn poker by their probability: the loss falls along what each role expects of its own moves."""
    torch.manual_seed(3)
    sets = [solver.information_set(card, moves) for card, moves in solver.INFORMATION_SETS]
    logits = {key: torch.randn(2, dtype=torch.float64).requires_grad_() for key in sets}
    legal = {solver.information_set(card, moves): solver.legal_moves(moves) for card, moves in solver.INFORMATION_SETS}
    logprobs = {key: dict(zip(legal[key], logits[key].log_softmax(-1), strict=True)) for key in sets}
    policy = {key: {move: value.exp() for move, value in row.items()} for key, row in logprobs.items()}

    expected = {key: torch.zeros(2, dtype=torch.float64) for key in sets}
    for player in (0, 1):
        worth = sum(
            chance(policy, deal, moves) / 6 * (1 - 2 * player) * solver.chips(deal, moves)
            for deal in solver.DEALS
            for moves in trajectories(deal)
        )
        own = [key for key in sets if len(key.split()[1:]) % 2 == player]
        for key, gradient in zip(
            own, torch.autograd.grad(worth, [logits[key] for key in own], retain_graph=True), strict=True
        ):
            expected[key] = gradient

    columns: dict[str, list[torch.Tensor]] = {name: [] for name in ("logprob", "advantage", "weight")}
    state = {"baselines": {"kuhn_poker/player_0": 0.37, "kuhn_poker/player_1": -0.81}}
    for deal in solver.DEALS:
        for moves in trajectories(deal):
            weight = chance(policy, deal, moves).detach() / 6
            algorithm = Reinforce(ReinforceSettings(baseline_decay=0.5), state=state)
            for sample in algorithm.credit([hand(*deal, moves)], KUHN, None):
                at = 2 * ((sample.turn or 0) - 1) + int((sample.role or "").endswith("1"))
                columns["logprob"].append(logprobs[solver.information_set(deal[at % 2], moves[:at])][moves[at]])
                columns["advantage"].append(torch.tensor(sample.reward, dtype=torch.float64))
                columns["weight"].append(weight)
    logprob = torch.stack(columns["logprob"])
    fixed = logprob.detach()
    batch = TokenBatch(
        sample=torch.arange(len(fixed)),
        logprob=logprob,
        old_logprob=fixed,
        sampling_logprob=fixed,
        ref_logprob=fixed,
        entropy=torch.zeros_like(fixed),
        advantage=torch.stack(columns["advantage"]),
        weight=torch.stack(columns["weight"]),
        group=torch.full((len(fixed),), 2),
        groups=("sft", "other", "kuhn_poker"),
        totals=Totals(len(fixed), 0, 1.0),
    )
    policy_gradient_loss(batch, ReinforceSettings(sampling={"max_new_tokens": 1}))[0].backward()
    for key in sets:
        torch.testing.assert_close(-logits[key].grad, expected[key], atol=1e-10, rtol=0)
    assert max(gradient.abs().max() for gradient in expected.values()) > 0.01
