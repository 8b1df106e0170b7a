"""The tic-tac-toe board, its symmetries, and the value of every board by minimax.

A board is nine characters of ``X``, ``O`` and ``.``, row by row; its squares are numbered 1 to 9. X moves first. 5,478
boards can be reached from the empty one, few enough to cache the value of each.
"""

from collections.abc import Iterable
from functools import cache
from itertools import cycle, permutations

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
    board = list(EMPTY)
    for mark, square in zip(cycle("XO"), squares):  # one of them is endless
        board[square - 1] = mark
    return "".join(board)


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


def decisions() -> list[str]:
    """Return every board with a player to move."""
    found, new = [], [EMPTY]
    while new:
        found += new
        after = dict.fromkeys(place(board, square) for board in new for square in legal_moves(board))
        new = [board for board in after if legal_moves(board)]
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
