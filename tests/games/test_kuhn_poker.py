"""Kuhn poker: what counts as a move, what the other player hears, and exact scores against known values."""

import random
from collections import Counter
from itertools import product

import pytest

from spag.core.errors import ConfigError, DataError
from spag.core.types import Split, State, Task, Utterance
from spag.games.base import Policy, SolvedGame
from spag.games.kuhn_poker import solver
from spag.games.kuhn_poker.kuhn import KuhnPoker

GAME = KuhnPoker()
ROLES = GAME.roles


def play(deal: str, *texts: str) -> State:
    state = GAME.start(Task(deal, {"player_0": deal[0], "player_1": deal[1]}), 0)
    for text in texts:
        role = GAME.to_move(state)
        assert role is not None
        state = GAME.apply(state, Utterance(role, text))
    return state


@pytest.mark.parametrize(
    ("moves", "chips"),  # player_0's, with the higher card and with the lower
    [
        ("[check] [check]", (1, -1)),
        ("[check] [bet] [fold]", (-1, -1)),
        ("[check] [bet] [call]", (2, -2)),
        ("[bet] [fold]", (1, 1)),
        ("[bet] [call]", (2, -2)),
    ],
)
def test_all_hands(moves: str, chips: tuple[int, int]) -> None:
    for deal in ("KQ", "KJ", "QJ"):
        for cards, won in ((deal, chips[0]), (deal[::-1], chips[1])):
            result = GAME.result(play(cards, *moves.split()))
            assert result.rewards == {"player_0": won, "player_1": -won}
            assert result.outcome == ("player_0_wins" if won > 0 else "player_1_wins")


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("[bet]", "bet"),
        ("I will [ BET ].", "bet"),
        ("[bet] and again [bet]", "bet"),
        ("[I think aloud] [bet]", "bet"),  # brackets around anything else are text
        ("[[bet]]", "bet"),
        ("bet", None),
        ("[bet", None),
        ("[bets]", None),
        ("[check] or [bet]", None),  # two moves: the player has not chosen
        ("", None),
    ],
)
def test_exactly_one_move_in_brackets_counts(text: str, move: str | None) -> None:
    state = play("KQ", text)
    if move is None:
        assert GAME.result(state).outcome == "player_0_illegal"
        assert "did not name one move" in GAME.result(state).reason
    else:
        assert GAME.observe(state, "player_1").history[-1].content == f"[{move}]"
        assert state.result is None


@pytest.mark.parametrize(
    "texts", [("[call]",), ("[check]", "[fold]"), ("[bet]", "[check]"), ("[check]", "[bet]", "[bet]")]
)
def test_an_illegal_move_costs_its_maker_two_chips(texts: tuple[str, ...]) -> None:
    state = play("KQ", *texts)
    maker, other = ROLES[(len(texts) - 1) % 2], ROLES[len(texts) % 2]
    assert GAME.result(state).outcome == f"{maker}_illegal"
    assert GAME.result(state).rewards == {maker: -2.0, other: 2.0}
    assert GAME.outcomes[f"{maker}_illegal"].fault == maker


def test_text_cannot_give_the_card_away() -> None:
    state = play("KQ", "I hold the K, believe me. [bet]")
    for role in ROLES:
        seen = GAME.observe(state, role)
        assert [said.content for said in seen.history] == ["[bet]"]
        assert seen.facts == {"card": "K" if role == "player_0" else "Q", "legal": ["fold", "call"]}
    assert "believe me" not in GAME.prompt(GAME.observe(state, "player_1"))
    assert GAME.prompt(GAME.observe(state, "player_1")).endswith(
        "You are player_1.\n\nplayer_0: [bet]\nYou hold Q. [fold] or [call]?\n"
    )


@pytest.mark.parametrize("count", [1, 5, 6, 7, 100, 600, None])
def test_deals_are_balanced(count: int | None) -> None:
    for split in Split:
        tasks = GAME.tasks(split, count, seed=3)
        deals = Counter((task.data["player_0"], task.data["player_1"]) for task in tasks)
        assert set(deals) <= set(solver.DEALS)
        assert max(deals.values()) - min(deals[deal] for deal in solver.DEALS) <= 1
        assert all(task.id.endswith(f"-{task.data['player_0']}{task.data['player_1']}") for task in tasks)
    assert {task.id for task in GAME.tasks(Split.TRAIN, 12, 0)} != {task.id for task in GAME.tasks(Split.TRAIN, 12, 1)}


def test_too_many_hands_name_the_setting() -> None:
    assert len(KuhnPoker(hands=12).tasks(Split.TRAIN, 12, 0)) == 12
    with pytest.raises(
        ConfigError, match=r"13 tasks asked for, but the split has 12; ask for fewer or raise game\.hands"
    ):
        KuhnPoker(hands=12).tasks(Split.TRAIN, 13, 0)


@pytest.mark.parametrize("text", ["K Q", "kq", " K, Q "])
def test_a_person_may_type_a_deal(text: str) -> None:
    assert GAME.custom_task(text) == Task("custom-KQ", {"player_0": "K", "player_1": "Q"})


@pytest.mark.parametrize("text", ["KK", "K", "KQJ", "AK", "1 2"])
def test_other_deals_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="is not a deal; write two different cards"):
        GAME.custom_task(text)
    with pytest.raises(DataError, match="is not a deal"):
        GAME.start(Task("x", {"player_0": "K", "player_1": "K"}), 0)


def test_figures() -> None:
    def measured(deal: str, *texts: str) -> dict[str, int]:
        state = play(deal, *texts)
        return dict(GAME.measure(state.task, state.history, GAME.result(state)))

    assert measured("KQ", "[check]", "[bet]", "[fold]") == {
        "bets": 1,
        "player_0_moves": 2,
        "player_1_moves": 1,
        "player_0_blunders": 1,
    }
    assert measured("QJ", "[bet]", "[call]") == {
        "bets": 1,
        "player_0_moves": 1,
        "player_1_moves": 1,
        "player_1_blunders": 1,
    }
    assert measured("QJ", "[check]", "?") == {"illegal": 1, "player_0_moves": 1}


def test_the_constant_bot_checks_and_folds() -> None:
    for texts, said in (((), "[check]"), (("[check]",), "[check]"), (("[bet]",), "[fold]")):
        state = play("KQ", *texts)
        role = str(GAME.to_move(state))
        assert GAME.bots["constant"](GAME.observe(state, role), random.Random(0)) == said


def test_turn_rewards_are_the_reward_at_each_roles_last_utterance() -> None:
    """player_0's jack checks and folds to a bet: it loses its ante at its second utterance."""
    state = play("JQ", "[check]", "[bet]", "[fold]")
    assert GAME.turn_rewards(state.task, state.history, GAME.result(state)) == [0.0, 1.0, -1.0]
    alone = play("JQ", "no move")  # player_1 never speaks
    assert GAME.turn_rewards(alone.task, alone.history, GAME.result(alone)) == [-2.0]
    later = (*state.history, Utterance("player_1", "Ha!"))  # after the end
    assert GAME.turn_rewards(state.task, later, GAME.result(state)) == [0.0, 1.0, -1.0, 0.0]


UNIFORM: Policy = {
    solver.information_set(card, moves): dict.fromkeys(solver.legal_moves(moves), 0.5)
    for card, moves in solver.INFORMATION_SETS
}


def always(*moves: str) -> Policy:
    """Return the policy that takes those of ``moves`` that are legal."""
    return {
        solver.information_set(card, before): {move: float(move in moves) for move in solver.legal_moves(before)}
        for card, before in solver.INFORMATION_SETS
    }


def test_uniform_play() -> None:
    """By hand, chips of a best response against moves of probability 1/2, by its card.

    player_0: K bets or checks, 3/2; Q bets: 1/2 * 1 (fold) + 1/2 * 0 (even showdown) = 1/2; J bets: 1/2 * 1 - 1/2 * 2 =
    -1/2. Mean 1/2. player_1, after a check and after a bet: K bets, 3/2, and calls, 2; Q bets, 1/2, and calls, 0; J
    bets, -1/2, and folds, -1. Mean (7/4 + 1/4 - 3/4) / 3 = 5/12. NashConv is 1/2 + 5/12 = 11/12, as OpenSpiel gives it.
    """
    assert solver.value(UNIFORM, 0) == pytest.approx(1 / 2)
    assert solver.value(UNIFORM, 1) == pytest.approx(5 / 12)
    assert solver.exploitability(UNIFORM) == pytest.approx(11 / 24)


def test_policies_that_never_mix() -> None:
    """Against bet and call: J folds (-1), Q calls (even), K calls (2): 1/3 for either player. Against check and fold,
    bets win 1.
    """
    bold, timid = always("bet", "call"), always("check", "fold")
    assert solver.value(bold, 0, bold) == solver.value(timid, 0, timid) == 0
    assert solver.value(timid, 0, bold) == 1
    assert solver.exploitability(bold) == pytest.approx(1 / 3)
    assert solver.exploitability(timid) == pytest.approx(1)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1 / 6, 1 / 3])
def test_equilibria(alpha: float) -> None:
    policy = solver.equilibrium(alpha)
    assert solver.value(policy, 0, policy) == pytest.approx(-1 / 18)
    assert solver.value(policy, 0) == pytest.approx(-1 / 18)
    assert solver.value(policy, 1) == pytest.approx(1 / 18)
    assert solver.exploitability(policy) == pytest.approx(0, abs=1e-12)


def test_neighbours_of_an_equilibrium_can_be_exploited() -> None:
    """A jack that never bluffs while the king always bets, or bluffs more than a third of what the king bets, loses
    chips.
    """
    for jack, king in ((0.0, 1.0), (1 / 3, 0.5), (0.5, 1.0)):
        policy = {**solver.equilibrium(), "J": {"check": 1 - jack, "bet": jack}, "K": {"check": 1 - king, "bet": king}}
        assert solver.exploitability(policy) > 0.001


def test_no_policy_scores_below_zero() -> None:
    rng = random.Random(0)
    for _ in range(10):
        policy = {key: {one: (chance := rng.random()), other: 1 - chance} for key, (one, other) in UNIFORM.items()}
        assert solver.exploitability(policy) > 0
        assert solver.value(policy, 0) >= -1 / 18
        assert solver.value(policy, 1) >= 1 / 18


def test_decisions_are_what_players_see() -> None:
    assert isinstance(GAME, SolvedGame)
    decisions = {decision.key: decision for decision in GAME.decisions()}
    assert len(decisions) == 12
    reached = set()
    for deal, moves in product(
        ("".join(deal) for deal in solver.DEALS), [(), ("[check]",), ("[bet]",), ("[check]", "[bet]")]
    ):
        state = play(deal, *moves)
        role = GAME.to_move(state)
        assert role is not None
        seen = GAME.observe(state, role)
        [key] = [key for key, decision in decisions.items() if decision.observation == seen]
        reached.add(key)
        for move in decisions[key].moves:
            after = GAME.apply(state, Utterance(role, move)).result
            assert after is None or GAME.outcomes[after.outcome].fault is None
    assert reached == set(decisions)


def test_scores_of_a_policy() -> None:
    policy = {
        key: {f"[{move}]": chance for move, chance in chances.items()} for key, chances in solver.equilibrium().items()
    }
    assert policy.keys() == {decision.key for decision in GAME.decisions()}
    scores = GAME.score_policy(policy)
    assert scores == pytest.approx(
        {"exploitability": 0, "player_0_worst_case": -1 / 18, "player_1_worst_case": 1 / 18}, abs=1e-12
    )
    bold = {
        key: {f"[{move}]": chance for move, chance in chances.items()} for key, chances in always("bet", "call").items()
    }
    assert GAME.score_policy(bold) == pytest.approx(
        {"exploitability": 1 / 3, "player_0_worst_case": -1 / 3, "player_1_worst_case": -1 / 3}
    )


@pytest.mark.slow
def test_the_equilibrium_bot_mixes() -> None:
    """The jack bluffs with probability 1/3 and the queen calls with 2/3: 3,000 draws are within 0.03 of that (3.5
    standard errors).
    """
    rng = random.Random(0)
    bluffs = Counter(GAME.bots["equilibrium"](GAME.observe(play("JK"), "player_0"), rng) for _ in range(3000))
    calls = Counter(
        GAME.bots["equilibrium"](GAME.observe(play("QK", "[check]", "[bet]"), "player_0"), rng) for _ in range(3000)
    )
    assert bluffs["[bet]"] / 3000 == pytest.approx(1 / 3, abs=0.03)
    assert calls["[call]"] / 3000 == pytest.approx(2 / 3, abs=0.03)


@pytest.mark.slow
def test_bots_earn_what_the_solver_says() -> None:
    """Mean chips of player_0 over 6,000 hands; the standard error is about 0.02."""
    rng, won = random.Random(1), 0.0
    for deal in [f"{first}{second}" for first, second in solver.DEALS] * 1000:
        state = play(deal)
        while (role := GAME.to_move(state)) is not None:
            bot = GAME.bots["equilibrium" if role == "player_0" else "random"]
            state = GAME.apply(state, Utterance(role, bot(GAME.observe(state, role), rng)))
        won += GAME.result(state).rewards["player_0"]
    assert won / 6000 == pytest.approx(solver.value(UNIFORM, 0, solver.equilibrium()), abs=0.07)
