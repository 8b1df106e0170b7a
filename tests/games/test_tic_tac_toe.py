"""Tic-tac-toe: what counts as a move, openings, and perfect play against known values."""

import random
from collections.abc import Callable, Sequence

import pytest

from spag.core.errors import ConfigError, DataError
from spag.core.types import Split, State, Task, Utterance
from spag.games.base import SolvedGame
from spag.games.tic_tac_toe import solver
from spag.games.tic_tac_toe.board import TicTacToe

GAME = TicTacToe()


def play(opening: list[int], *texts: str) -> State:
    state = GAME.start(Task("x", {"opening": opening}), 0)
    for text in texts:
        role = GAME.to_move(state)
        assert role is not None
        state = GAME.apply(state, Utterance(role, text))
    return state


@pytest.mark.parametrize(
    "line", [(1, 2, 3), (4, 5, 6), (7, 8, 9), (1, 4, 7), (2, 5, 8), (3, 6, 9), (1, 5, 9), (3, 5, 7)]
)
def test_three_in_a_row_win(line: tuple[int, int, int]) -> None:
    others = [square for square in range(1, 10) if square not in line]
    moves = [square for pair in zip(line, others, strict=False) for square in pair][:5]
    result = GAME.result(play([], *(f"[{square}]" for square in moves)))
    assert (result.outcome, result.length) == ("player_0_wins", 5)
    assert result.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert result.reason == f"player_0 has squares {', '.join(map(str, line))}"


def test_the_second_player_wins_too() -> None:
    result = GAME.result(play([1], "[4]", "[2]", "[5]", "[9]", "[6]"))
    assert (result.outcome, result.rewards) == ("player_1_wins", {"player_0": -1.0, "player_1": 1.0})


def test_the_last_square_may_win() -> None:
    assert GAME.result(play([1, 2, 3, 4], "[5]", "[7]", "[6]", "[9]", "[8]")).outcome == "draw"
    assert GAME.result(play([1, 2, 3, 4], "[6]", "[5]", "[8]", "[7]", "[9]")).outcome == "player_0_wins"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("[2]", None),
        ("I take [ 2 ], not 3.", None),
        ("[2] [two] [2]", None),
        ("[5]", "player_0_illegal"),  # taken
        ("[0]", "player_0_illegal"),
        ("[10]", "player_0_illegal"),
        ("[²]", "player_0_illegal"),
        ("2", "player_0_illegal"),
        ("[2] or [3]", "player_0_illegal"),
        ("[1,2]", "player_0_illegal"),
    ],
)
def test_exactly_one_free_square_in_brackets_counts(text: str, outcome: str | None) -> None:
    state = play([5, 1], text)
    assert (state.result.outcome if state.result else None) == outcome
    if state.result:
        assert state.result.rewards == {"player_0": -2.0, "player_1": 1.0}
        did = "said [5]" if text == "[5]" else "did not name one move in square brackets"
        assert state.result.reason == f"player_0 {did}; legal moves: [2], [3], [4], [6], [7], [8], [9]"
        assert GAME.describe_view(GAME.observe(state, "player_1")) == "O | 2 | 3\n4 | X | 6\n7 | 8 | 9"
    else:
        assert GAME.observe(state, "player_1").history == (Utterance("player_0", "[2]"),)


def test_openings_decide_who_moves() -> None:
    assert [GAME.to_move(play(opening)) for opening in ([], [5], [5, 1])] == ["player_0", "player_1", "player_0"]


def test_splits_hold_whole_classes_of_symmetry() -> None:
    """Perfect play draws 34 openings of up to two moves: the empty board, 9 first moves, and 24 replies to them.

    Those are the centre after a corner (4), a corner after the centre (4), and four replies to each edge (16).
    """
    train, held_out = (
        [tuple(task.data["opening"]) for task in TicTacToe(opening=2).tasks(split, None, 0)] for split in Split
    )
    assert (len(train), len(held_out), len(solver.openings(2))) == (18, 16, 9)
    assert () in train
    assert {(1, 5), (5, 1), (2, 1), (2, 3), (2, 5), (2, 8)} <= {*train, *held_out}
    for same in solver.openings(2):
        assert set(same) <= set(train) or set(same) <= set(held_out)
    assert set(next(same for same in solver.openings(2) if (1, 5) in same)) == {(1, 5), (3, 5), (7, 5), (9, 5)}


@pytest.mark.parametrize("plies", [3, 4])
def test_no_held_out_board_is_in_training(plies: int) -> None:
    """Other orders of the same moves lead to the same board, which is all that a prompt shows."""
    train, held_out = (
        {solver.board_after(task.data["opening"]) for task in TicTacToe(opening=plies).tasks(split, None, 0)}
        for split in Split
    )
    assert train and held_out and not train & held_out


def test_an_opening_keeps_its_split_whatever_the_longest_one_may_be() -> None:
    """A file names the openings of its games, not the setting under which they were drawn."""
    drawn = {split: TicTacToe(opening=4).tasks(split, None, 0) for split in Split}
    for game in map(TicTacToe, (2, 3, 4)):
        assert all(game.split_of(task) is split for split, tasks in drawn.items() for task in tasks)


def test_too_many_openings_name_the_setting() -> None:
    assert len(GAME.tasks(Split.HELD_OUT, 100, 0)) == 100
    with pytest.raises(
        ConfigError,
        match=r"113 openings asked for, but the held_out split has 112; ask for fewer or raise game\.opening",
    ):
        GAME.tasks(Split.HELD_OUT, 113, 0)


@pytest.mark.parametrize("opening", [[5, 5], [0], [10], ["5"], [True], "51", None, [1, 2, 3, 4, 5]])
def test_impossible_openings_are_refused(opening: object) -> None:
    with pytest.raises(DataError, match="is not an opening; it must list up to 4 different squares"):
        GAME.start(Task("x", {"opening": opening}), 0)


def test_a_person_may_type_an_opening() -> None:
    task = GAME.custom_task("5, 1")
    assert (task.data, GAME.describe_task(task)) == ({"opening": [5, 1]}, "X on 5, O on 1")
    assert GAME.describe_task(GAME.custom_task("")) == "the empty board"
    with pytest.raises(DataError, match=r"^'the centre' names no square; type the moves already made, as in: 5 1$"):
        GAME.custom_task("the centre")


def test_the_game_tree() -> None:
    """5,478 boards can be reached; 958 of them end the game: 626 won by X, 316 by O, 16 drawn (known from
    enumeration).
    """
    boards, new = {solver.EMPTY}, {solver.EMPTY}
    while new:
        new = {solver.place(board, square) for board in new for square in solver.legal_moves(board)}
        boards |= new
    assert len(boards) == 5478
    ended = [board for board in boards if not solver.legal_moves(board)]
    won_by_x = sum(board.count("X") > board.count("O") for board in ended if solver.winning_line(board))
    drawn = sum(solver.winning_line(board) is None for board in ended)
    assert (len(ended), won_by_x, len(ended) - won_by_x - drawn, drawn) == (958, 626, 316, 16)


@pytest.mark.parametrize(
    ("squares", "value", "best"),
    [
        ([], 0, (1, 2, 3, 4, 5, 6, 7, 8, 9)),
        ([5], 0, (1, 3, 7, 9)),  # against the centre only corners hold
        ([1], 0, (5,)),  # against a corner only the centre holds
        ([1, 2], 1, (4, 5, 7)),  # X forks
        ([1, 5, 9], 0, (2, 4, 6, 8)),  # between two corners only an edge holds
        ([1, 4, 2, 5], 1, (3,)),  # X completes the row
        ([1, 9, 2], 1, (3,)),  # O stops the row, and wins by a fork
    ],
)
def test_known_positions(squares: list[int], value: int, best: tuple[int, ...]) -> None:
    task = Task("x", {"opening": squares})
    assert (GAME.value(task, ()), GAME.best_moves(task)) == (value, tuple(map(str, best)))


def test_perfect_play_draws_against_itself() -> None:
    for seed, task in enumerate(GAME.tasks(Split.TRAIN, None, 0)):
        rng, state = random.Random(seed), GAME.start(task, seed)
        while (role := GAME.to_move(state)) is not None:
            state = GAME.apply(state, Utterance(role, GAME.bots["perfect"](GAME.observe(state, role), rng)))
        assert GAME.result(state).outcome == "draw"


@pytest.mark.parametrize("mark", "XO")
def test_perfect_play_never_loses(mark: str) -> None:
    """Against every reply, whichever of its best moves it takes."""
    boards = {solver.EMPTY: Task("x", {"opening": []})}
    while boards:
        moves_of = {
            board: GAME.best_moves(task) if solver.mark_to_move(board) == mark else GAME.legal_moves(task, ())
            for board, task in boards.items()
        }
        boards = {
            solver.place(board, int(move)): Task("x", {"opening": [*boards[board].data["opening"], int(move)]})
            for board, moves in moves_of.items()
            for move in moves
        }
        assert not any(solver.winning_line(board) and solver.mark_to_move(board) == mark for board in boards)


def test_equal_boards_have_equal_prompts() -> None:
    prompts = {GAME.prompt(GAME.observe(state, "player_1")) for state in (play([5, 1, 9]), play([9, 1], "Hm, [5]."))}
    assert prompts == {f"{GAME.rules}\n\nx23\n4o6\n78o\nx47\n2o8\n36o\nxoo\n3o7\n"}
    assert len(GAME.rules) < 300


def test_a_player_is_x_in_its_prompt_whichever_mark_it_has() -> None:
    state = play([5, 1, 9])
    swapped = {"x": "o", "o": "x"}
    prompts = {role: GAME.prompt(GAME.observe(state, role)).removeprefix(GAME.rules) for role in GAME.roles}
    assert prompts["player_0"] == "".join(swapped.get(cell, cell) for cell in prompts["player_1"])


def rewards_of(state: State) -> Sequence[float]:
    return GAME.turn_rewards(state.task, state.history, GAME.result(state))


def test_a_turns_reward_is_the_change_of_value() -> None:
    """After X on 1, only the centre draws: O on 9 goes from 0 to -1. X on 2 gives the win away, from 1 to -1: O on 3
    stops the row and threatens 6, and after X on 6, O on 7 threatens both 5 and 8. O keeps its win, 1 to 1, three
    times; X in a lost position has nothing to lose.
    """
    state = play([1], "[9]", "[2]", "[3]", "[6]", "[7]", "[5]", "[8]")
    assert GAME.result(state).outcome == "player_1_wins"
    assert rewards_of(state) == [-1, -2, 0, 0, 0, 0, 0]


def test_an_illegal_move_gets_its_reward_minus_the_value_before() -> None:
    """-2 for the illegal move: minus 0 in a drawn position, minus 1 in a won and minus -1 in a lost one."""
    assert rewards_of(play([5], "?")) == [-2]
    assert rewards_of(play([1], "[9]", "[1]")) == [-1, -3]
    assert rewards_of(play([1], "[9]", "[3]", "no")) == [-1, 0, -1]  # X on 1 and 3 with O on 9 threatens 2, and wins


def test_turn_rewards_of_a_game_cut_short() -> None:
    task, history = Task("x", {"opening": [1]}), play([1], "[9]").history
    assert GAME.turn_rewards(task, history, GAME.replay(task, history)) == [-1]


def policy_of(moves: Callable[[str], Sequence[int]]) -> dict[str, dict[str, float]]:
    """The policy that draws one of the ``moves`` on a board."""
    found = {decision.key: (decision.moves, moves(decision.key)) for decision in GAME.decisions()}
    return {
        key: {move: 1 / len(drawn) if int(move[1]) in drawn else 0.0 for move in legal}
        for key, (legal, drawn) in found.items()
    }


def best_moves(board: str) -> list[int]:
    return [
        square
        for square in solver.legal_moves(board)
        if -solver.value(solver.place(board, square)) == solver.value(board)
    ]


@pytest.mark.slow
def test_decisions_are_what_players_see() -> None:
    assert isinstance(GAME, SolvedGame)
    decisions = {decision.key: decision for decision in GAME.decisions()}
    assert len(decisions) == 5478 - 958  # boards that do not end the game
    for seed, task in enumerate(GAME.tasks(Split.TRAIN, 20, 0)):
        rng, state = random.Random(seed), GAME.start(task, seed)
        while (role := GAME.to_move(state)) is not None:
            seen = GAME.observe(state, role)
            decision = decisions[seen.facts["board"]]
            assert GAME.prompt(decision.observation) == GAME.prompt(seen)
            assert decision.observation.role == role
            state = GAME.apply(state, Utterance(role, rng.choice(decision.moves)))
            assert state.result is None or GAME.outcomes[state.result.outcome].fault is None


@pytest.mark.slow
def test_scores_of_known_policies() -> None:
    perfect = GAME.score_policy(policy_of(best_moves))
    assert (perfect["value_kept"], perfect["value_lost"], perfect["against_perfect"]) == pytest.approx((1, 0, 0))
    uniform = GAME.score_policy(policy_of(solver.legal_moves))
    assert uniform["against_random"] == pytest.approx(0)  # as X and as O, against itself
    assert uniform["against_perfect"] == pytest.approx(
        -perfect["against_random"]
    )  # the same games, seen from the other side
    assert uniform["value_lost"] > -uniform["against_perfect"] > 0.5  # a best response takes more than perfect play


@pytest.mark.slow
def test_scores_by_hand() -> None:
    """Perfect but for one board, X on 2, where O takes 4, which loses. Of the 112 held-out openings only [2] leads
    there, and there only as O: one of 224 games is lost.
    """
    assert 4 not in best_moves(".X.......")
    policy = policy_of(best_moves)
    choices = sum(len(best_moves(board)) < len(moves) for board, moves in policy.items())
    policy[".X......."] = dict.fromkeys(policy[".X......."], 0.0) | {"[4]": 1.0}
    scores = GAME.score_policy(policy)
    assert scores["value_kept"] == pytest.approx(1 - 1 / choices)
    assert scores["value_lost"] == pytest.approx(1 / 224) == -scores["against_perfect"]


def test_figures() -> None:
    state = play(
        [1], "[9]", "[2]", "[3]", "[3]"
    )  # O's corner loses, X's threat gives that away, O stops it, X plays a taken square
    assert GAME.measure(state.task, state.history, GAME.result(state)) == {
        "player_1_moves": 2,
        "player_1_optimal": 1,
        "player_0_moves": 1,
        "illegal": 1,
    }
