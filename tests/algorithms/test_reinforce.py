"""Online policy gradient: numbers worked out by hand, and the estimator against the exact gradient of a whole game."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from spag.algorithms.reinforce import (
    Baselines,
    CreditSettings,
    TokenBatch,
    credit,
    merge_equal,
    reinforce_loss,
    scheduled,
    token_share,
)
from spag.core.episodes import Episode, PlayerInfo
from spag.core.errors import DataError
from spag.core.types import State, Task, Utterance
from spag.games.kuhn_poker import solver
from spag.games.kuhn_poker.rules import KuhnPoker
from spag.rollout.runner import prompt_digest

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
        id=state.task.id, game=KUHN.name, task=state.task, history=state.history, outcome=result.outcome, rewards=result.rewards,
        players=players,
    )  # fmt: skip


def test_baselines_are_taken_before_their_update() -> None:
    baselines = Baselines(decay=0.95)
    # b: 0 -> 0.05 * 2 = 0.1 -> 0.95 * 0.1 + 0.05 * (-1) = 0.045; the other role's stays apart
    assert baselines.advantage("kuhn_poker/player_0", 2.0) == 2.0
    assert baselines.advantage("kuhn_poker/player_1", -2.0) == -2.0
    assert baselines.advantage("kuhn_poker/player_0", -1.0) == pytest.approx(-1.1)
    assert baselines.values["kuhn_poker/player_0"] == pytest.approx(0.045)
    assert baselines.values["kuhn_poker/player_1"] == pytest.approx(-0.1)
    still = Baselines(decay=1.0)
    assert [still.advantage("a", 1.0), still.advantage("a", 1.0)] == [1.0, 1.0]


def test_both_roles_get_their_reward_minus_their_own_baseline() -> None:
    # K against Q, bet and called: player_0 wins 2 chips. Then Q against K, both check: player_0 loses 1.
    games = [hand("K", "Q", ("bet", "call"), "a"), hand("Q", "K", ("check", "check"), "b")]
    samples = credit(games, KUHN, CreditSettings(), Baselines(0.95))
    # player_0: 2 - 0, then -1 - 0.05 * 2; player_1: -2 - 0, then 1 + 0.05 * 2
    assert [(s.role, s.episode_id, round(s.reward, 6)) for s in samples] == [
        ("kuhn_poker/player_0", "a", 2.0),
        ("kuhn_poker/player_0", "b", -1.1),
        ("kuhn_poker/player_1", "a", -2.0),
        ("kuhn_poker/player_1", "b", 1.1),
    ]
    assert [s.completion_ids for s in samples] == [(MOVES["bet"],), (MOVES["check"],), (MOVES["call"],), (MOVES["check"],)]
    assert samples[0].logprobs == (-0.5,)
    assert samples[0].prompt == KUHN.prompt(KUHN.observe(KUHN.start(games[0].task, 0), "player_0"))


def test_discount_counts_the_players_own_later_utterances() -> None:
    # J against K: check, bet, call: player_0 speaks twice and loses 2; half of it reaches its first utterance.
    game = hand("J", "K", ("check", "bet", "call"))
    rewards = [s.reward for s in credit([game], KUHN, CreditSettings(discount=0.5), Baselines())]
    assert rewards == [-1.0, -2.0, 2.0]


def test_normalized_advantages_have_deviation_one_in_each_role() -> None:
    games = [hand("K", "Q", ("bet", "call"), "a"), hand("Q", "K", ("check", "check"), "b")]
    samples = credit(games, KUHN, CreditSettings(normalize=True), Baselines(1.0))
    # rewards 2 and -1 deviate by 1.5 from their mean
    assert [s.reward for s in samples] == pytest.approx([2 / 1.5, -1 / 1.5, -2 / 1.5, 1 / 1.5])
    alike = credit(games[:1] * 2, KUHN, CreditSettings(normalize=True), Baselines(1.0))
    assert [s.reward for s in alike] == [2.0, 2.0, -2.0, -2.0]  # no deviation: not divided


def test_ties_and_broken_rules_may_pay_otherwise() -> None:
    illegal = hand("K", "Q", ("bet", "pass"))
    assert illegal.outcome == "player_1_illegal"
    plain = credit([illegal], KUHN, CreditSettings(), Baselines())
    dear = credit([illegal], KUHN, CreditSettings(illegal_reward=-5.0), Baselines())
    assert [s.reward for s in plain] == [2.0, -2.0]
    assert [s.reward for s in dear] == [2.0, -5.0]  # the other role's pay stays
    void = replace(illegal, outcome="unfinished", rewards={"player_0": 0.0, "player_1": 0.0})
    assert [s.reward for s in credit([void], KUHN, CreditSettings(tie_reward=-0.5), Baselines())] == [-0.5, -0.5]


def test_only_the_learner_and_the_wanted_roles_are_trained() -> None:
    game = hand("K", "Q", ("bet", "call"))
    against = replace(game, players={"player_0": PlayerInfo("snapshot"), "player_1": PlayerInfo("policy")})
    baselines = Baselines()
    assert [s.role for s in credit([against], KUHN, CreditSettings(learner="policy"), baselines)] == ["kuhn_poker/player_1"]
    assert set(baselines.values) == {"kuhn_poker/player_1"}  # what the other side earned moves nothing
    one = credit([game], KUHN, CreditSettings(roles=frozenset({"player_0"})), Baselines())
    assert [s.role for s in one] == ["kuhn_poker/player_0"]


def test_games_that_cannot_be_trained_are_refused() -> None:
    game = hand("K", "Q", ("bet", "call"))
    mute = replace(game, history=tuple(replace(said, token_ids=None) for said in game.history))
    with pytest.raises(DataError, match="utterance 1 has no token ids"):
        credit([mute], KUHN, CreditSettings(), Baselines())
    other = replace(game, history=tuple(replace(said, prompt_digest="0" * 12) for said in game.history))
    with pytest.raises(DataError, match="utterance 1 answered another prompt"):
        credit([other], KUHN, CreditSettings(), Baselines())


def test_equal_samples_are_one_with_their_mean_advantage() -> None:
    games = [hand("K", "Q", ("bet", "call"), "a"), hand("K", "Q", ("bet", "fold"), "b"), hand("K", "Q", ("bet", "call"), "c")]
    merged = merge_equal(credit(games, KUHN, CreditSettings(), Baselines(1.0)))
    # player_0 bet thrice, for 2, 1 and 2; player_1 called twice for -2 and folded once for -1
    assert [(s.reward, s.weight) for s in merged] == [(pytest.approx(5 / 3), 3.0), (-2.0, 2.0), (-1.0, 1.0)]


def tokens(**values: list[float]) -> TokenBatch:
    size = len(next(iter(values.values())))
    names = ("logprob", "old_logprob", "sampling_logprob", "ref_logprob", "entropy", "advantage", "share")
    columns = {name: torch.tensor(values.get(name, [0.0] * size), dtype=torch.float64) for name in names}
    columns["logprob"].requires_grad_()
    return TokenBatch(**columns)


def test_loss_and_gradient_by_hand() -> None:
    """Three tokens: on policy; policy twice as likely as before and clipped at 1.2; engine half as likely as the policy was."""
    batch = tokens(
        logprob=[math.log(0.5), math.log(0.4), math.log(0.2)],
        old_logprob=[math.log(0.5), math.log(0.2), math.log(0.2)],
        sampling_logprob=[math.log(0.5), math.log(0.2), math.log(0.1)],
        ref_logprob=[math.log(0.25), math.log(0.4), math.log(0.2)],
        entropy=[0.7, 0.5, 0.3],
        advantage=[2.0, 1.0, -1.0],
        share=[0.5, 0.25, 0.25],
    )
    loss = reinforce_loss(batch, clip_range=0.2, kl_coef=0.1, entropy_coef=0.01, correction_limit=1.5)
    # token 1: c = 1, r = 1: -(2 - 0.05 * ln(2)^2) - 0.01 * 0.7          = -2 + 0.0240226507 - 0.007 = -1.9829773493
    # token 2: c = 1, r = 2 clipped to 1.2: -1.2 - 0.005                                              = -1.205
    # token 3: c = min(2, 1.5), r = 1: -1.5 * (-1) - 0.003                                            = 1.497
    # 0.5 * -1.9829773493 + 0.25 * -1.205 + 0.25 * 1.497                                              = -0.9184886747
    assert loss.item() == pytest.approx(-0.9184886747, abs=1e-9)
    loss.backward()
    # d/dlp: token 1: -0.5 * (2 - 0.1 * ln 2) = -0.9653426410; token 2: clipped, 0; token 3: -0.25 * 1.5 * (-1) = 0.375
    assert batch.logprob.grad.tolist() == pytest.approx([-0.9653426410, 0.0, 0.375], abs=1e-9)


def test_a_falling_token_of_a_lost_game_is_clipped_too() -> None:
    # A < 0 and r = 0.5 < 0.8: min(A r, A clip) = min(-0.5, -0.8) = -0.8, a constant; r = 2: min(-2, -1.2) = -2, not clipped
    batch = tokens(logprob=[math.log(0.1), math.log(0.4)], old_logprob=[math.log(0.2)] * 2, sampling_logprob=[math.log(0.2)] * 2,
                   advantage=[-1.0, -1.0], share=[1.0, 1.0])  # fmt: skip
    loss = reinforce_loss(batch)
    assert loss.item() == pytest.approx(0.8 + 2.0)
    loss.backward()
    assert batch.logprob.grad.tolist() == pytest.approx([0.0, 2.0])


def test_shares_of_the_two_divisors() -> None:
    # two samples of 2 and 8 tokens: a constant divisor of 16 gives all ten tokens 1/32, their lengths 1/4 and 1/16
    assert [token_share(1.0, n, 2.0, 16) for n in (2, 8)] == [1 / 32, 1 / 32]
    assert [token_share(1.0, n, 2.0, None) for n in (2, 8)] == [1 / 4, 1 / 16]
    assert token_share(3.0, 2, 4.0, None) == 3 / 8  # a sample that stands for three


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
        for key, gradient in zip(own, torch.autograd.grad(worth, [logits[key] for key in own], retain_graph=True), strict=True):
            expected[key] = gradient

    baselines = Baselines(decay=1.0, values={"kuhn_poker/player_0": 0.37, "kuhn_poker/player_1": -0.81})
    columns: dict[str, list[torch.Tensor]] = {name: [] for name in ("logprob", "advantage", "share")}
    for deal in solver.DEALS:
        for moves in trajectories(deal):
            weight = chance(policy, deal, moves).detach() / 6
            before = dict(baselines.values)
            for sample in credit([hand(*deal, moves)], KUHN, CreditSettings(), baselines):
                at = 2 * ((sample.turn or 0) - 1) + int((sample.role or "").endswith("1"))
                columns["logprob"].append(logprobs[solver.information_set(deal[at % 2], moves[:at])][moves[at]])
                columns["advantage"].append(torch.tensor(sample.reward, dtype=torch.float64))
                columns["share"].append(weight * token_share(1.0, 1, 1.0, 1))
            baselines.values = before
    logprob = torch.stack(columns["logprob"])
    fixed = logprob.detach()
    batch = TokenBatch(
        logprob, fixed, fixed, fixed, torch.zeros_like(fixed), torch.stack(columns["advantage"]), torch.stack(columns["share"])
    )
    reinforce_loss(batch).backward()
    for key in sets:
        torch.testing.assert_close(-logits[key].grad, expected[key], atol=1e-10, rtol=0)
    assert max(gradient.abs().max() for gradient in expected.values()) > 0.01
