"""The board of tic-tac-toe, its symmetries, and perfect play by minimax.

A board is nine characters of ``X``, ``O`` and ``.``, row by row; its squares are numbered 1 to 9. X moves first. From the empty board
5,478 boards can be reached, few enough to remember the value of each.
"""

from collections.abc import Iterable
from functools import cache
from itertools import permutations

EMPTY = "." * 9
LINES = ((1, 2, 3), (4, 5, 6), (7, 8, 9), (1, 4, 7), (2, 5, 8), (3, 6, 9), (1, 5, 9), (3, 5, 7))
_ROTATED = (3, 6, 9, 2, 5, 8, 1, 4, 7)  # where a quarter turn takes squares 1 to 9
_MIRRORED = (3, 2, 1, 6, 5, 4, 9, 8, 7)


def mark_to_move(board: str) -> str:
    return "X" if board.count("X") == board.count("O") else "O"


def place(board: str, square: int) -> str:
    """Return ``board`` with the mark of the player to move on ``square``."""
    return f"{board[: square - 1]}{mark_to_move(board)}{board[square:]}"


def board_after(squares: Iterable[int]) -> str:
    """Return the board after moves on ``squares``, from the empty one; an illegal move leaves it as it is."""
    board = EMPTY
    for square in squares:
        board = place(board, square) if square in legal_moves(board) else board
    return board


def winning_line(board: str) -> tuple[int, ...] | None:
    """Return three squares in a row with the same mark."""
    return next((line for line in LINES if board[line[0] - 1] != "." and len({board[square - 1] for square in line}) == 1), None)


def legal_moves(board: str) -> tuple[int, ...]:
    """Return the free squares, none when somebody has won."""
    return () if winning_line(board) else tuple(square for square in range(1, 10) if board[square - 1] == ".")


@cache
def value(board: str) -> int:
    """Return what perfect play brings the player to move: 1 a win, 0 a draw, -1 a loss."""
    if winning_line(board):
        return -1  # the other has just won
    return max((-value(place(board, square)) for square in legal_moves(board)), default=0)


@cache
def best_moves(board: str) -> tuple[int, ...]:
    """Return the moves that keep the value of ``board``, slow wins among them."""
    return tuple(square for square in legal_moves(board) if -value(place(board, square)) == value(board))


@cache
def openings(plies: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return every sequence of up to ``plies`` first moves (4 at most: nobody has won by then) from which perfect play draws.

    Those that are rotations or reflections of one another are together.
    """
    classes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for length in range(plies + 1):
        for squares in permutations(range(1, 10), length):
            classes.setdefault(min(_images(squares)), []).append(squares)
    return tuple(tuple(same) for first, same in classes.items() if value(board_after(first)) == 0)


def _images(squares: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    for _ in range(4):
        yield squares
        yield tuple(_MIRRORED[square - 1] for square in squares)
        squares = tuple(_ROTATED[square - 1] for square in squares)
