"""Nim: what counts as a move, prompts of positions, the curriculum's splits, and exact scores against known values."""

import random
from collections import Counter

import pytest

from spag.core.errors import ConfigError, DataError
from spag.core.types import Split, State, Task, Utterance
from spag.games import get
from spag.games.base import SolvedGame
from spag.games.nim.nim import Nim

GAME = Nim()


def play(stones: int, *texts: str) -> State:
    state = GAME.start(Task("x", {"stones": stones}), 0)
    for text in texts:
        role = GAME.to_move(state)
        assert role is not None
        state = GAME.apply(state, Utterance(role, text))
    return state


def test_whoever_takes_the_last_stone_wins() -> None:
    result = GAME.result(play(5, "[1]", "I say [3].", "[1]"))
    assert (result.outcome, result.rewards) == ("player_0_wins", {"player_0": 1.0, "player_1": -1.0})
    assert GAME.result(play(5, "[3]", "[2]")).outcome == "player_1_wins"


@pytest.mark.parametrize("text", ["[0]", "[4]", "2", "[1] or [2]", "[-1]", "", "[3]"])
def test_other_texts_are_illegal(text: str) -> None:
    result = GAME.result(play(5, "[3]", text))  # two stones are left
    assert (result.outcome, result.rewards) == ("player_1_illegal", {"player_0": 1.0, "player_1": -2.0})
    assert result.reason.endswith("legal moves: [1], [2]")


def test_equal_positions_have_equal_prompts() -> None:
    positions = [(play(13), "player_0"), (play(15, "[2]"), "player_1"), (play(17, "[1]", "Well, [3]"), "player_0")]
    prompts = {GAME.prompt(GAME.observe(state, role)) for state, role in positions}
    assert prompts == {f"{GAME.rules}\n\nStones left: 13\n"}
    assert len(GAME.rules) < 150


def test_turn_rewards_are_changes_of_value() -> None:
    """13 is won for the player to move, by taking 1. Taking 2 instead gives it away: 1 to -1. Against 11 the other
    takes 3 and keeps its win; in a lost position every move keeps the loss; with 5 left it takes 2 and loses its own.
    """
    state = play(13, "[2]", "[3]", "[3]", "[2]", "[3]")
    assert GAME.result(state).outcome == "player_0_wins"
    assert GAME.turn_rewards(state.task, state.history, GAME.result(state)) == [-2, 0, 0, -2, 0]


@pytest.mark.parametrize(("stones", "reward"), [(5, -3.0), (4, -1.0)])  # -2 minus 1 in a won position, -1 in a lost one
def test_an_illegal_move_is_worse_than_any_other(stones: int, reward: float) -> None:
    state = play(stones, "none")
    assert GAME.turn_rewards(state.task, state.history, GAME.result(state)) == [reward]


def test_figures() -> None:
    state = play(13, "[2]", "[3]", "[3]", "[2]", "?")
    assert GAME.measure(state.task, state.history, GAME.result(state)) == {
        "player_0_moves": 2,
        "player_0_optimal": 1,
        "player_1_moves": 2,
        "player_1_optimal": 1,
        "illegal": 1,
    }


def test_heaps_are_held_out_alike_at_every_size() -> None:
    """Multiples of 5 with ``take`` 3; won and lost ones (20) are among them."""
    small, large = get("nim", largest_heap=8), get("nim", largest_heap=20, smallest_heap=6, games_per_heap=2)
    heaps = {
        split: [Counter(task.data["stones"] for task in game.tasks(split, None, 0)) for game in (small, large)]
        for split in Split
    }
    assert heaps[Split.HELD_OUT] == [{5: 25}, {10: 2, 15: 2, 20: 2}]
    assert set(heaps[Split.TRAIN][0]) == {1, 2, 3, 4, 6, 7, 8}
    for task in large.tasks(Split.HELD_OUT, None, 0):
        assert small.split_of(task) is Split.HELD_OUT
    few = Counter(task.data["stones"] for task in GAME.tasks(Split.TRAIN, 50, 3))
    assert sorted(few.values()) == [2] * 22 + [3] * 2  # 24 heaps
    with pytest.raises(ConfigError, match=r"151 tasks asked for, but the split has 150; .* game\.games_per_heap"):
        GAME.tasks(Split.HELD_OUT, 151, 0)


def test_settings_that_leave_a_split_empty_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"game\.largest_heap: heaps of 1 to 4 .*; choose 6 or more"):
        get("nim", largest_heap=4)


def test_a_person_may_type_a_heap() -> None:
    assert GAME.custom_task(" 13 ") == Task("heap-13", {"stones": 13})
    for text in ("", "0", "201", "many", "1.5", "9" * 5000):
        with pytest.raises(DataError):
            GAME.custom_task(text)


@pytest.mark.parametrize("take", [2, 3, 5])
def test_values_are_those_of_the_whole_tree(take: int) -> None:
    values = {0: -1}
    for stones in range(1, 41):
        after = {taken: -values[stones - taken] for taken in range(1, min(take, stones) + 1)}
        values[stones] = max(after.values())
        best = tuple(str(taken) for taken, value in after.items() if value == values[stones])
        game, heap = Nim(take=take), Task("heap", {"stones": stones})
        assert game.legal_moves(heap, ()) == tuple(map(str, after))
        assert (game.value(heap, ()), game.best_moves(heap)) == (values[stones], best)


def perfect_chances() -> dict[int, dict[int, float]]:
    """With 3 as the most stones: the winning move, or any."""
    return {stones: {stones % 4: 1.0} if stones % 4 else dict.fromkeys((1, 2, 3), 1 / 3) for stones in range(1, 7)}


def policy_of(chances: dict[int, dict[int, float]]) -> dict[str, dict[str, float]]:
    return {
        decision.key: {
            move: chances[decision.observation.facts["stones"]].get(int(move[1]), 0.0) for move in decision.moves
        }
        for decision in Nim(largest_heap=6).decisions()
    }


def test_scores_by_hand() -> None:
    """Heaps up to 6, held out: 5. A policy that always takes 1 has the winning move at 1 and 5, of the five positions
    1, 2, 3, 5 and 6.

    Against perfect play from 5, moving first: it leaves 4, and the other takes 1, 2 or 3 alike. From 3 and 2 the policy
    leaves 2 and 1 to a perfect player, which wins; from 1 it wins itself: (-1 - 1 + 1) / 3 = -1/3.

    Against random play, W(n) its reward with n left and itself to move, V(n) with the other to move: V(1) = -1, W(1)
    = 1; W(2) = V(1) = -1; V(2) = (W(1) - 1) / 2 = 0; W(3) = V(2) = 0; V(3) = (W(2) + W(1) - 1) / 3 = -1/3; W(4) = V(3)
    = -1/3; V(4) = (W(3) + W(2) + W(1)) / 3 = 0; W(5) = V(4) = 0; V(5) = (W(4) + W(3) + W(2)) / 3 = -4/9. Mean of W(5)
    and V(5): -2/9.
    """
    game = Nim(largest_heap=6)
    assert isinstance(game, SolvedGame)
    scores = game.score_policy(policy_of({stones: {1: 1.0} for stones in range(1, 7)}))
    assert scores == pytest.approx({"winning_moves": 2 / 5, "against_perfect": -1 / 3, "against_random": -2 / 9})
    perfect = policy_of(perfect_chances())
    assert game.score_policy(perfect)["winning_moves"] == game.score_policy(perfect)["against_perfect"] == 1


def test_roles_are_scored_apart() -> None:
    """player_1 plays perfectly, player_0 always takes 1: half of the winning moves is theirs, and from 5, where
    player_0 can win, only its own play counts.
    """
    one = policy_of({stones: {1: 1.0} for stones in range(1, 7)})
    best = policy_of(perfect_chances())
    mixed = {key: (one if key.startswith("player_0") else best)[key] for key in one}
    scores = Nim(largest_heap=6).score_policy(mixed)
    assert scores["winning_moves"] == pytest.approx((2 / 5 + 1) / 2)
    assert scores["against_perfect"] == pytest.approx(-1 / 3)


def test_decisions_are_what_players_see() -> None:
    decisions = {decision.key: decision for decision in GAME.decisions()}
    assert len(decisions) == 60
    for seed, task in enumerate(GAME.tasks(Split.TRAIN, 30, 0)):
        rng, state = random.Random(seed), GAME.start(task, seed)
        while (role := GAME.to_move(state)) is not None:
            seen = GAME.observe(state, role)
            decision = decisions[f"{role} {seen.facts['stones']}"]
            assert (decision.observation.role, decision.observation.facts) == (role, seen.facts)
            assert GAME.prompt(decision.observation) == GAME.prompt(seen)
            state = GAME.apply(state, Utterance(role, rng.choice(decision.moves)))
            assert state.result is None or GAME.outcomes[state.result.outcome].fault is None
