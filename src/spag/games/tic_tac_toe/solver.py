"""The tic-tac-toe board, its symmetries, perfect play by minimax, and the expected reward of a policy.

A board is nine characters of ``X``, ``O`` and ``.``, row by row; its squares are numbered 1 to 9. X moves first. 5,478
boards can be reached from the empty one, few enough to cache the value of each. A policy gives each move's probability
on every board.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import permutations

Policy = Mapping[str, Mapping[int, float]]

EMPTY = "." * 9
LINES = ((1, 2, 3), (4, 5, 6), (7, 8, 9), (1, 4, 7), (2, 5, 8), (3, 6, 9), (1, 5, 9), (3, 5, 7))
_ROTATED = (3, 6, 9, 2, 5, 8, 1, 4, 7)  # where a quarter turn moves squares 1 to 9
_MIRRORED = (3, 2, 1, 6, 5, 4, 9, 8, 7)


def mark_to_move(board: str) -> str:
    """Return the mark to move: ``X``, which begins, or ``O``."""
    return "X" if board.count("X") == board.count("O") else "O"


def place(board: str, square: int) -> str:
    """Return ``board`` with the mark of the player to move on ``square``."""
    return f"{board[: square - 1]}{mark_to_move(board)}{board[square:]}"


def board_after(squares: Iterable[int]) -> str:
    """Return the board after moves on ``squares``, from the empty one."""
    board = EMPTY
    for square in squares:
        board = place(board, square)
    return board


def winning_line(board: str) -> tuple[int, ...] | None:
    """Return three squares in a row with the same mark."""
    won = ({"X"}, {"O"})
    return next((line for line in LINES if {board[square - 1] for square in line} in won), None)


@cache
def legal_moves(board: str) -> tuple[int, ...]:
    """Return the free squares, or none once a player has won."""
    return () if winning_line(board) else tuple(square for square in range(1, 10) if board[square - 1] == ".")


@cache
def value(board: str) -> int:
    """Return the value of perfect play for the player to move: 1 a win, 0 a draw, -1 a loss."""
    if winning_line(board):
        return -1  # the other has just won
    return max((-value(place(board, square)) for square in legal_moves(board)), default=0)


@cache
def best_moves(board: str) -> tuple[int, ...]:
    """Return the moves that keep the value of ``board``, including slow wins."""
    return tuple(square for square in legal_moves(board) if -value(place(board, square)) == value(board))


def decisions() -> Mapping[str, tuple[int, ...]]:
    """Return every board on which the game goes on, with moves that lead to it."""
    found: dict[str, tuple[int, ...]] = {}
    new: dict[str, tuple[int, ...]] = {EMPTY: ()}
    while new:
        found |= new
        moves = [(board, squares, square) for board, squares in new.items() for square in legal_moves(board)]
        after = {place(board, square): (*squares, square) for board, squares, square in moves}
        new = {board: squares for board, squares in after.items() if legal_moves(board)}
    return found


@cache
def openings(plies: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return every opening of up to ``plies`` moves (at most 4: nobody has won yet) from which perfect play draws.

    Those that lead to the same board, or to rotations and reflections of it, are grouped.
    """
    classes: dict[str, list[tuple[int, ...]]] = {}
    for length in range(plies + 1):
        for squares in permutations(range(1, 10), length):
            classes.setdefault(min(map(board_after, _images(squares))), []).append(squares)
    return tuple(tuple(same) for board, same in classes.items() if value(board) == 0)


def _images(squares: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    for _ in range(4):
        yield squares
        yield tuple(_MIRRORED[square - 1] for square in squares)
        squares = tuple(_ROTATED[square - 1] for square in squares)


def uniform(board: str) -> Mapping[int, float]:
    """Return the move probabilities of a player that takes any free square."""
    return dict.fromkeys(legal_moves(board), 1 / len(legal_moves(board)))


def perfect(board: str) -> Mapping[int, float]:
    """Return the move probabilities of a player that takes any square that keeps the value."""
    return dict.fromkeys(best_moves(board), 1 / len(best_moves(board)))


def reward(policy: Policy, mark: str, opponent: Callable[[str], Mapping[int, float]] | None) -> Callable[[str], float]:
    """Return the expected reward of ``mark`` with ``policy`` against ``opponent``, ``None`` for a best response."""

    @cache
    def expected(board: str) -> float:
        if not legal_moves(board):
            return float(value(board) if mark_to_move(board) == mark else -value(board))
        after = {square: expected(place(board, square)) for square in legal_moves(board)}
        if mark_to_move(board) != mark and opponent is None:
            return min(after.values())
        chances = policy[board] if mark_to_move(board) == mark else opponent(board) if opponent else {}
        return sum(chance * after[square] for square, chance in chances.items())

    return expected
