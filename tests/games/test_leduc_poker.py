"""Leduc poker: betting, showdowns, what each player learns when, and exact scores against known values."""

import random
from collections import Counter
from statistics import fmean

import pytest

from spag.core.errors import ConfigError, DataError
from spag.core.types import Split, State, Task, Utterance
from spag.games.base import Policy, SolvedGame
from spag.games.leduc_poker import solver
from spag.games.leduc_poker.leduc import LeducPoker

GAME = LeducPoker()
SETS = {
    solver.information_set(rank, board, moves): solver.legal_moves(moves)
    for moves in solver.histories()
    for rank in solver.RANKS
    for board in solver.RANKS
}
UNIFORM = {key: dict.fromkeys(legal, 1 / len(legal)) for key, legal in SETS.items()}


def play(deal: str, *texts: str) -> State:
    state = GAME.start(Task(deal, dict(zip(("player_0", "player_1", "board"), deal, strict=True))), 0)
    for text in texts:
        role = GAME.to_move(state)
        assert role is not None
        state = GAME.apply(state, Utterance(role, f"[{text}]"))
    return state


@pytest.mark.parametrize(
    ("deal", "moves", "won"),  # player_0's chips: what the loser paid in
    [
        ("KQJ", "check check check check", 1),
        ("KQQ", "check check check check", -1),  # a pair beats the king
        ("KKQ", "bet call bet call", 0),  # equal cards
        ("JQK", "bet fold", 1),
        ("JQK", "bet raise fold", -3),  # the ante and the bet
        ("JQK", "check bet raise fold", 3),
        ("JQJ", "bet raise call bet raise call", 13),  # 1 + 2 + 2 + 4 + 4
        ("JQK", "check bet call check bet fold", -3),  # player_0 begins the second round too
        ("QJK", "check bet raise call check bet raise call", 13),
    ],
)
def test_hands(deal: str, moves: str, won: int) -> None:
    result = GAME.result(play(deal, *moves.split()))
    assert result.rewards == {"player_0": won, "player_1": -won}
    assert result.outcome == ("player_0_wins" if won > 0 else "player_1_wins" if won < 0 else "split")


@pytest.mark.parametrize(
    ("moves", "legal"),
    [
        ("", "check bet"),
        ("check", "check bet"),
        ("bet", "fold call raise"),
        ("bet raise", "fold call"),  # two raises a round, the bet among them
        ("check bet raise", "fold call"),
        ("check bet raise call", "check bet"),
    ],
)
def test_legal_moves(moves: str, legal: str) -> None:
    assert solver.legal_moves(tuple(moves.split())) == tuple(legal.split())


@pytest.mark.parametrize(
    ("moves", "cost"), [("", 2), ("bet", 2), ("bet raise", 4), ("bet raise call", 6), ("check check bet raise", 6)]
)
def test_an_illegal_move_costs_a_chip_more_than_is_paid_in(moves: str, cost: int) -> None:
    state = play("KQJ", *moves.split())
    role = GAME.to_move(state)
    result = GAME.result(GAME.apply(state, Utterance(str(role), "I pass.")))
    assert result.outcome == f"{role}_illegal"
    assert result.rewards == {one: -cost if one == role else cost for one in GAME.roles}


def test_the_honest_bot_bets_what_it_holds() -> None:
    """A known weakness: it never bluffs. Its chances are exactly those by which it is scored."""
    honest = {
        solver.information_set(rank, board, moves): solver.honest_chances(
            rank, None if solver.rounds(moves)[1] is None else board, solver.legal_moves(moves)
        )
        for moves in solver.histories()
        for rank in solver.RANKS
        for board in solver.RANKS
    }
    assert solver.exploitability(honest) == pytest.approx(0.88409, abs=1e-5)
    assert solver.exploitability(UNIFORM) == pytest.approx(2.37361, abs=1e-5)
    rng, seen = random.Random(0), Counter[tuple[str, str]]()
    paired, high = play("JQJ", "check", "check"), play("QKJ", "bet")
    for _ in range(1000):
        seen["paired", GAME.bots["honest"](GAME.observe(paired, "player_0"), rng)] += 1
        seen["high", GAME.bots["honest"](GAME.observe(high, "player_1"), rng)] += 1
    assert 840 < seen["paired", "[bet]"] < 910  # 0.875
    assert 790 < seen["high", "[raise]"] < 875 and seen["high", "[fold]"] < 110  # 5 / 6 and 1 / 12


def test_the_board_is_hidden_in_the_first_round() -> None:
    """Only then: with the board as the only difference, prompts are equal up to the second round."""
    before, after = ("bet",), ("bet", "call")
    prompts = [
        {GAME.prompt(GAME.observe(play(f"KQ{board}", *moves), role)) for board in "JQK"}
        for moves, role in ((before, "player_1"), (after, "player_0"))
    ]
    assert [len(found) for found in prompts] == [1, 3]
    assert GAME.prompt(GAME.observe(play("KQJ", *after), "player_0")).endswith(
        "\n\nFirst round: bet call\nSecond round:\nYou are player_0. You hold K, the board is J. [check] or [bet]?\n"
    )
    assert "You hold K, the board is K: a pair." in GAME.prompt(GAME.observe(play("KQK", *after), "player_0"))


@pytest.mark.parametrize("count", [1, 7, 30, 100, None])
def test_deals_are_as_likely_as_with_six_cards(count: int | None) -> None:
    """In 30 hands, each of the 6 deals of three ranks twice (8 of 120 ways), the 18 others once (4 of 120)."""
    for split in Split:
        deals = Counter("".join(map(str, task.data.values())) for task in GAME.tasks(split, count, 3))
        rounds = sum(deals.values()) // 30
        for deal in solver.DEALS:
            share = 2 if len(set(deal)) == 3 else 1
            assert rounds * share <= deals["".join(deal)] <= (rounds + 1) * share
    assert sum(solver.DEALS.values()) == 6 * 5 * 4
    with pytest.raises(ConfigError, match=r"601 tasks asked for, but the split has 600; .* game\.hands"):
        GAME.tasks(Split.TRAIN, 601, 0)


def test_a_person_may_type_a_deal() -> None:
    assert GAME.describe_task(GAME.custom_task("k q, j")) == "K against Q, board J"
    for text in ("KKK", "KQ", "KQJJ", "KQA"):
        with pytest.raises(DataError, match="is not a deal"):
            GAME.custom_task(text)
    with pytest.raises(DataError, match="is not a deal"):
        GAME.start(Task("x", {"player_0": "K", "player_1": ["K"], "board": "K"}), 0)


def test_folding_a_pair_is_a_blunder() -> None:
    state = play("KQQ", "check", "check", "bet", "fold")
    assert GAME.measure(state.task, state.history, GAME.result(state)) == {
        "player_0_moves": 2,
        "player_1_moves": 2,
        "player_1_blunders": 1,
    }
    state = play("KQQ", "bet", "fold")  # the board is not known yet
    assert "player_1_blunders" not in GAME.measure(state.task, state.history, GAME.result(state))


@pytest.mark.slow
def test_the_size_of_the_tree() -> None:
    """In a round there are 6 decisions, and 5 ways to go on to the second (check check, bet call, bet raise call, and
    the latter two after a check): 36 decisions. By ranks 3 * 6 + 5 * 6 * 9 = 288 information sets; by cards 6 * 6 + 5 *
    6 * 6 * 5 = 936, the published number.
    """
    first = [moves for moves in solver.histories() if solver.rounds(moves)[1] is None]
    assert (len(first), len(list(solver.histories())) - len(first)) == (6, 30)
    assert len(SETS) == len(GAME.decisions()) == 288


def test_uniform_play() -> None:
    """OpenSpiel's figures for its uniform random policy: NashConv 4.7472, exploitability (its half) 2.3736, and a value
    of -0.0781 for player_0.
    """
    assert solver.exploitability(UNIFORM) == pytest.approx(2.3736, abs=1e-3)
    assert solver.value(UNIFORM, 0) + solver.value(UNIFORM, 1) == pytest.approx(4.7472, abs=1e-3)
    assert solver.value(UNIFORM, 0, UNIFORM) == pytest.approx(-0.0781, abs=1e-4)
    assert solver.value(UNIFORM, 0, UNIFORM) == pytest.approx(-solver.value(UNIFORM, 1, UNIFORM))


def always(*preferred: str) -> Policy:
    """Return the policy that takes the first of ``preferred`` that is legal."""
    chosen = {key: next(move for move in preferred if move in legal) for key, legal in SETS.items()}
    return {key: {move: float(move == chosen[key]) for move in legal} for key, legal in SETS.items()}


def test_policies_that_never_mix() -> None:
    """Who always checks and folds loses its ante to any bet, and no more: 1 chip, as either player."""
    timid, calling = always("check", "fold"), always("check", "call")
    assert solver.value(timid, 0) == pytest.approx(1) == solver.exploitability(timid)
    assert solver.value(timid, 0, timid) == solver.value(calling, 0, calling) == pytest.approx(0)  # nobody bets


def test_a_best_response_is_best() -> None:
    rng = random.Random(0)
    for _ in range(5):
        drawn = {key: [rng.random() for _ in legal] for key, legal in SETS.items()}
        policy = {
            key: {move: part / sum(drawn[key]) for move, part in zip(legal, drawn[key], strict=True)}
            for key, legal in SETS.items()
        }
        for player in (0, 1):
            others = (UNIFORM, policy, always("bet", "raise", "call"), always("check", "call"))
            assert solver.value(policy, player) >= max(solver.value(policy, player, own) for own in others)
        assert solver.exploitability(policy) > 0


def test_decisions_are_what_players_see() -> None:
    assert isinstance(GAME, SolvedGame)
    decisions = {decision.key: decision for decision in GAME.decisions()}
    reached = set()
    for seed, task in enumerate(GAME.tasks(Split.TRAIN, 600, 0)):
        rng, state = random.Random(seed), GAME.start(task, seed)
        while (role := GAME.to_move(state)) is not None:
            moves = tuple(said.content.strip("[]") for said in state.history)
            key = solver.information_set(task.data[role], task.data["board"], moves)
            assert decisions[key].observation == GAME.observe(state, role)
            reached.add(key)
            state = GAME.apply(state, Utterance(role, rng.choice(decisions[key].moves)))
            assert state.result is None or GAME.outcomes[state.result.outcome].fault is None
    assert len(reached) > 200


def test_scores_of_a_policy() -> None:
    policy = {key: {f"[{move}]": chance for move, chance in moves.items()} for key, moves in UNIFORM.items()}
    assert policy.keys() == {decision.key for decision in GAME.decisions()}
    scores = GAME.score_policy(policy)
    assert scores == pytest.approx(
        {
            "exploitability": solver.exploitability(UNIFORM),
            "player_0_worst_case": -solver.value(UNIFORM, 1),
            "player_1_worst_case": -solver.value(UNIFORM, 0),
        }
    )


def test_the_solver_walks_the_game_itself() -> None:
    """Every hand, played by the game's rules with the chance of uniform play, adds up to the solver's value."""

    def expected(state: State) -> float:
        if state.result is not None:
            return state.result.rewards["player_0"]
        role = str(GAME.to_move(state))
        legal = GAME.observe(state, role).facts["legal"]
        return fmean(expected(GAME.apply(state, Utterance(role, f"[{move}]"))) for move in legal)

    mean = sum(ways / 120 * expected(play("".join(deal))) for deal, ways in solver.DEALS.items())
    assert mean == pytest.approx(solver.value(UNIFORM, 0, UNIFORM))
