"""Tic-tac-toe as a game of texts: squares in square brackets, measured against perfect play (``solver.py``).

A prompt shows the eight lines of the board, not the moves that led there, so equal boards have equal prompts. A task is
an opening: up to ``opening`` moves already made, so player_1 may speak first. Only openings that perfect play draws are
tasks, so a perfect player never loses. Openings with the same board, rotated or reflected, are in the same split.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.errors import DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task
from spag.games.base import Bot, Decision, Policy, drawn
from spag.games.moves import Moves, OpenGame, any_of, move_outcomes
from spag.games.tic_tac_toe import solver

MARKS = {"player_0": "X", "player_1": "O"}
RULES = """\
Tic-tac-toe: you are x and take a free square, then the other player, o, does. Three in a row, column or diagonal win. \
Numbers are free squares. Answer with the number of one free square in square brackets, as in [5]. The three rows, \
three columns and two diagonals:"""
_OWN_AND_OTHERS = {"player_0": str.maketrans("XO", "xo"), "player_1": str.maketrans("XO", "ox")}
_SQUARES = tuple(str(square) for square in range(1, 10))
_HELD_OUT_IN = 3
_LONGEST_OPENING = 4


def _task(squares: Sequence[int]) -> Task:
    return Task("-".join(["opening", *map(str, squares)]), {"opening": list(squares)})


def _task_of(board: str) -> Task:
    """Return an opening that leads to ``board``."""
    squares = ([square for square in range(1, 10) if board[square - 1] == mark] for mark in "XO")
    return _task([square for pair in zip_longest(*squares) for square in pair if square])


def _cells(observation: Observation) -> list[str]:
    """Return the squares of the board: a mark, or the number of a free square."""
    return [str(number) if mark == "." else mark for number, mark in enumerate(observation.facts["board"], start=1)]


def _perfect_bot(observation: Observation, rng: random.Random) -> str:
    return f"[{rng.choice(TicTacToe().best_moves(_task_of(observation.facts['board'])))}]"


@dataclass(frozen=True)
class TicTacToe(OpenGame):
    """Three in a row, from openings that perfect play draws."""

    name: ClassVar[str] = "tic_tac_toe"
    title: ClassVar[str] = "Tic-tac-toe"
    summary: ClassVar[str] = "three in a row on a board of nine squares; perfect play is known"
    role_help: ClassVar[Mapping[str, str]] = {
        role: f"You play {mark}. Name a free square in square brackets, as in [5]." for role, mark in MARKS.items()
    }
    outcomes = move_outcomes(
        "Three marks in a row, a column or a diagonal win.",
        "A player who does not name exactly one free square loses.",
        Outcome(
            "draw",
            "draw",
            "#a3a9b6",
            rule="A full board without three in a row is a draw, and so is a game that was cut short.",
        ),
        labels=("player_0 (X)", "player_1 (O)"),
    )
    bots: ClassVar[Mapping[str, Bot]] = {**OpenGame.bots, "perfect": _perfect_bot}
    rules = RULES

    opening: Annotated[
        int, Field(ge=2, le=_LONGEST_OPENING, description="maximum number of moves already made when a game starts")
    ] = 3

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        classes = enumerate(solver.openings(self.opening), start=1)
        found = [
            squares
            for number, same in classes
            for squares in same
            if (number % _HELD_OUT_IN == 0) == (split is Split.HELD_OUT)
        ]
        shortage = f"the {split} split has {len(found)}; ask for fewer or raise game.opening"
        return [_task(squares) for squares in drawn(found, count, seed, shortage, "opening")]

    def split_of(self, task: Task) -> Split:
        """Return the split of any opening: a file may contain longer ones than this game starts from."""
        squares = task.data.get("opening")
        longest = replace(self, opening=_LONGEST_OPENING)
        return OpenGame.split_of(longest, _task(squares) if isinstance(squares, list) else task)

    def custom_task(self, text: str) -> Task:
        """Parse a typed opening: the squares of the moves already made."""
        task = _task([int(character) for character in text if character in "0123456789"])
        if text.strip() and not task.data["opening"]:
            raise DataError(f"{text[:40]!r} names no square; type the moves already made, as in: 5 1")
        self.start(task, 0)
        return task

    def start(self, task: Task, seed: int) -> State:
        squares: Any = task.data.get("opening")
        numbers = isinstance(squares, list) and all(type(square) is int and 1 <= square <= 9 for square in squares)
        if not numbers or len(set(squares)) < len(squares) or len(squares) > _LONGEST_OPENING:
            what = f"it must list up to {_LONGEST_OPENING} different squares of 1 to 9"
            raise DataError(f"task {task.id!r}: {squares!r} is not an opening; {what}")
        return State(task, seed)

    def to_move(self, state: State) -> str | None:
        played = len(state.task.data["opening"]) + len(state.history)
        return self.roles[played % 2] if state.result is None else None

    def vocabulary(self) -> Moves:
        return _SQUARES

    def position(self, task: Task, moves: Moves) -> str:
        return solver.board_after((*task.data["opening"], *map(int, moves)))

    def legal_moves(self, task: Task, moves: Moves) -> Moves:
        return tuple(map(str, solver.legal_moves(self.position(task, moves))))

    def value(self, task: Task, moves: Moves) -> float:
        return solver.value(self.position(task, moves))

    def facts(self, task: Task, moves: Moves, role: str) -> Mapping[str, Any]:
        return {"board": self.position(task, moves)}

    def prompt(self, observation: Observation) -> str:
        """Show the board as its eight lines, the player's own marks as x: each line shows who may still win by it."""
        cells = _cells(observation)
        lines = "\n".join("".join(cells[square - 1] for square in line) for line in solver.LINES)
        return f"{RULES}\n\n{lines.translate(_OWN_AND_OTHERS[observation.role])}\n"

    def final(self, state: State, moves: Moves) -> Result:
        role, line = state.history[-1].role, solver.winning_line(self.position(state.task, moves))
        if line is None:
            return self._drawn(state, "the board is full and nobody has three in a row")
        rewards = {one: 1.0 if one == role else -1.0 for one in self.roles}
        return self.end(state, f"{role}_wins", rewards, f"{role} has squares {', '.join(map(str, line))}")

    def draw(self, state: State) -> Result:
        return self._drawn(state, "the game was cut short")

    def _drawn(self, state: State, reason: str) -> Result:
        return self.end(state, "draw", dict.fromkeys(self.roles, 0.0), reason)

    def describe_task(self, task: Task) -> str:
        marks = [f"{mark} on {square}" for mark, square in zip("XOXO", task.data["opening"], strict=False)]
        return ", ".join(marks) or "the empty board"

    def describe_view(self, observation: Observation) -> str:
        """Return the board, free squares by number."""
        cells = _cells(observation)
        return "\n".join(" | ".join(cells[row : row + 3]) for row in (0, 3, 6))

    def decisions(self) -> Sequence[Decision]:
        """Return the 4,520 boards with a player to move."""
        states = {board: State(_task_of(board)) for board in solver.decisions()}
        return [self.decision(board, state, str(self.to_move(state))) for board, state in states.items()]

    def score_policy(self, policy: Policy) -> Mapping[str, float]:
        """Return ``value_kept``, the mean probability of a move that keeps the game value on boards where some move
        loses it; and mean results of games from the held-out openings, as either player: ``value_lost`` against a best
        response, ``against_perfect`` and ``against_random``.
        """
        player, starts = self.player_of(policy), self.tasks(Split.HELD_OUT, None, 0)
        best = {board: [f"[{move}]" for move in self.best_moves(_task_of(board))] for board in policy}
        choices = [board for board in policy if len(best[board]) < len(policy[board])]
        return {
            "value_kept": fmean(sum(policy[board][move] for move in best[board]) for board in choices),
            "value_lost": 0.0 - self.mean_reward(player, None, starts),
            "against_perfect": self.mean_reward(player, any_of(self.best_moves), starts),
            "against_random": self.mean_reward(player, any_of(self.legal_moves), starts),
        }
