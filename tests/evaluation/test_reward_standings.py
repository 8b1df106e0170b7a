"""Standings come from rewards: worked out by hand where counting wins would say the opposite."""

from itertools import permutations

import numpy as np
import pytest
from arena_games import FOUL, HANDSHAKE, LOSS, TIE, WIN, ending, shake

from spag.core.episodes import Episode, PlayerInfo
from spag.core.types import Task, Utterance
from spag.evaluation.arena.grid import Grid, reward_range, sole_winner
from spag.evaluation.arena.ratings import bradley_terry
from spag.evaluation.arena.standings import arena_report
from spag.games import get
from spag.games.kuhn_poker.kuhn import KuhnPoker
from taboo_games import TABOO

KUHN = get("kuhn_poker")


def maniac(card: str, heard: tuple[str, ...]) -> str:
    """Bets and calls whatever it holds."""
    return "[call]" if heard and heard[-1] == "[bet]" else "[bet]"


def rock(card: str, heard: tuple[str, ...]) -> str:
    """Bets and calls with a K; calls with a Q, too, after its own check."""
    if heard and heard[-1] == "[bet]":
        return "[call]" if card == "K" or (card == "Q" and len(heard) == 2) else "[fold]"
    return "[bet]" if card == "K" else "[check]"


PLAYERS = {"maniac": maniac, "rock": rock}


def hand(first: str, second: str, cards: tuple[str, ...]) -> Episode:
    task = Task("".join(cards), dict(zip(KUHN.roles, cards, strict=True)))
    state = KUHN.start(task, 0)
    while role := KUHN.to_move(state):
        side = KUHN.roles.index(role)
        move = PLAYERS[(first, second)[side]](cards[side], tuple(said.content for said in state.history))
        state = KUHN.apply(state, Utterance(role, move))
    players = dict(zip(KUHN.roles, map(PlayerInfo, (first, second)), strict=True))
    return Episode(game="kuhn_poker", task=task, history=state.history, players=players)


HANDS = [hand(*sides, cards) for sides in permutations(PLAYERS) for cards in permutations("JQK", 2)]


def test_who_wins_more_hands_and_loses_more_chips_is_behind() -> None:
    # maniac first: rock folds J and Q, +1 four times, and calls with K, -2 twice: 0 chips, 4 hands of 6
    # rock first: with K it bets, -2 twice; with Q it calls, -2 against J and +2 against K; with J it folds, +1 twice:
    # -2 chips, 3 hands of 6
    report = arena_report(HANDS, KUHN, ("rock", "maniac"))
    [pair], [_, rated] = report["pairs"], report["ratings"]
    assert (pair["players"], pair["wins"], pair["undecided"]) == (("rock", "maniac"), (5, 7), 0)
    # rock is 4 chips ahead on six deals, of 2 hands x 4 chips of range each
    assert pair["score"]["mean"] == pytest.approx(4 / 48)
    # maniac scores 12 x 0.5 - 4 chips / 4 of range / 2 = 5.5 of 12; counting wins it would be 7 of 12
    assert rated["points"] == pytest.approx(400 * np.log10(6 / 7), abs=0.01)
    by_wins = bradley_terry(np.array([[0, 5.0], [7.0, 0]]))[1]
    assert rated["points"] < 0 < by_wins == pytest.approx(400 * np.log10(7.5 / 5.5))
    rewards = {(row["name"], row["role"]): row["reward"]["mean"] for row in report["roles"]}
    assert rewards["maniac", "player_0"] == 0 and rewards["maniac", "player_1"] == pytest.approx(-2 / 6)
    paired = {row["role"]: row for row in report["paired"] if row["outcome"] is None}
    # in the same role: as player_0 rock earns 2 / 6 a hand and maniac 0; as player_1 0 and -2 / 6
    assert [(row["one"], row["other"]) for row in paired.values()] == [
        (pytest.approx(1 / 3), pytest.approx(0)),
        (pytest.approx(0), pytest.approx(-1 / 3)),
    ]
    assert all(row["difference"]["mean"] == pytest.approx(1 / 3) for row in paired.values())


def test_breaking_a_rule_is_worse_than_a_tie() -> None:
    words = [f"word{number}" for number in range(8)]
    games = [ending("a", "b", word, FOUL) for word in words] + [ending("b", "a", word, TIE) for word in words]
    report = arena_report(games, TABOO)
    [pair], [_, rated] = report["pairs"], report["ratings"]
    assert (pair["wins"], pair["undecided"]) == ((0, 0), 16)  # nobody wins a game in which a rule is broken
    assert pair["score"]["mean"] == pytest.approx(-1 / 4)  # -1 of at most 2 games x 2 of range
    assert pair["score"]["p_value"] == pytest.approx(2 / 2**8)
    assert rated["points"] == pytest.approx(400 * np.log10(10.5 / 6.5), abs=0.01)  # 8 x 0.75 + 8 x 0.5 of 16


def test_players_who_win_together_are_compared_in_the_same_role() -> None:
    # a asks well, b does not: both players earn 1 when a asks, 0 when b does
    class Paid(type(HANDSHAKE)):  # type: ignore[misc]
        def rule(self, state):  # type: ignore[no-untyped-def]
            result = super().rule(state)
            together = result is not None and result.outcome == "together"
            return type(result)(result.outcome, {"ask": 1.0, "tell": 1.0}, 2, "") if together else result

    games = [shake("a", "b", str(task), "1", str(task)) for task in range(5)]
    games += [shake("b", "a", str(task), "1", "none") for task in range(5)]
    report = arena_report(games, Paid())
    [pair] = report["pairs"]
    assert (pair["score"]["mean"], pair["wins"]) == (0.0, (0, 0))  # a game's reward is the same for both
    by_role = {row["role"]: row["difference"]["mean"] for row in report["paired"] if row["outcome"] is None}
    assert by_role == {"ask": pytest.approx(1.0), "tell": pytest.approx(-1.0)}


def test_the_range_is_what_the_game_declares_or_paid_beyond_it() -> None:
    chips = [KUHN.replay(one.task, one.history) for one in HANDS]
    assert reward_range(KUHN, chips[:1]) == (-2.0, 2.0) and KuhnPoker.reward_range == (-2.0, 2.0)
    assert reward_range(TABOO, chips) == (-2.0, 2.0)
    results = {("a", "b", str(place)): chips[place] for place in range(6)}
    grid = Grid.of(KUHN, "ab", results)
    assert (grid.lowest, grid.step, grid.steps) == (-2.0, 1.0, 4)
    assert (grid.rewards.sum(axis=0)[0, 1] == 4).all()  # zero-sum: together always two chips above two losses


@pytest.mark.parametrize(("outcome", "winner"), [(WIN, "attacker"), (LOSS, "defender"), (FOUL, None), (TIE, None)])
def test_a_fault_is_a_win_only_where_the_game_pays_for_it(outcome: str, winner: str | None) -> None:
    episode = ending("a", "b", "river", outcome)
    assert sole_winner(TABOO, TABOO.replay(episode.task, episode.history)) == winner
    paid = shake("a", "b", "1", "1", "?")
    assert sole_winner(HANDSHAKE, HANDSHAKE.replay(paid.task, paid.history)) == "ask"
    shared = shake("a", "b", "1", "1", "1")
    assert sole_winner(HANDSHAKE, HANDSHAKE.replay(shared.task, shared.history)) is None
