"""Tic-tac-toe as a game of texts: squares in square brackets, measured against perfect play (``solver.py``).

A task is an opening: up to ``opening`` moves that stand on the board already, so player_1 may be the first to speak. Only openings that
perfect play draws are tasks, so a perfect player never loses. Rotations and reflections of one opening are in the same split. The other
player hears the bare move.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.errors import DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task, Utterance
from spag.games.base import Bot, Figure, TextGame, bracketed, drawn, outcome_map
from spag.games.tic_tac_toe import solver

MARKS = {"player_0": "X", "player_1": "O"}

RULES = """\
This is tic-tac-toe, for two players: player_0 plays X, player_1 plays O. The squares of the board are numbered 1 to 9, row by row, \
and the players mark free squares in turn. Three marks in a row, a column or a diagonal win; a full board without them is a draw. Write \
the number of your square in square brackets, as in [5]. A player whose text does not name exactly one free square in square brackets \
loses."""
_WIN = "Three marks in a row, a column or a diagonal win."
_ILLEGAL = "A player who does not name exactly one free square loses."
_SQUARES = tuple(str(square) for square in range(1, 10))
_HELD_OUT_IN = 3


def _task(squares: Sequence[int]) -> Task:
    return Task("-".join(["opening", *map(str, squares)]), {"opening": list(squares)})


def _squares(opening: Sequence[int], history: Sequence[Utterance]) -> tuple[int, ...]:
    """Return the squares of the opening and of the utterances; 0 for an utterance that names none or several."""
    return (*opening, *(int(bracketed(said.content, _SQUARES) or 0) for said in history))


def _won_by(winner: str) -> dict[str, float]:
    return {role: 1.0 if role == winner else -1.0 for role in MARKS}


def _board(observation: Observation) -> str:
    return solver.board_after(_squares(observation.facts["opening"], observation.history))


def _random_bot(observation: Observation, rng: random.Random) -> str:
    return f"[{rng.choice(solver.legal_moves(_board(observation)))}]"


def _perfect_bot(observation: Observation, rng: random.Random) -> str:
    return f"[{rng.choice(solver.best_moves(_board(observation)))}]"


@dataclass(frozen=True)
class TicTacToe(TextGame):
    """Three in a row, from openings that perfect play draws."""

    name: ClassVar[str] = "tic_tac_toe"
    title: ClassVar[str] = "Tic-tac-toe"
    summary: ClassVar[str] = "three in a row on a board of nine squares; perfect play is known"
    roles = tuple(MARKS)
    role_help: ClassVar[Mapping[str, str]] = {
        role: f"You play {mark}. Name a free square in square brackets, as in [5]." for role, mark in MARKS.items()
    }
    outcomes = outcome_map(
        Outcome("player_0_wins", "player_0 (X) wins", "#0072b2", winners=("player_0",), rule=_WIN),
        Outcome("player_1_wins", "player_1 (O) wins", "#e69f00", winners=("player_1",), rule=_WIN),
        Outcome("draw", "draw", "#a3a9b6", rule="A full board without three in a row is a draw, and so is a game that was cut short."),
        Outcome("player_0_illegal", "player_0 (X) breaks a rule", "#56b4e9", fault="player_0", rule=_ILLEGAL),
        Outcome("player_1_illegal", "player_1 (O) breaks a rule", "#d55e00", fault="player_1", rule=_ILLEGAL),
    )
    figures = (
        Figure("illegal", "illegal or unreadable moves", limit=0.05, warning="of games end with an illegal or unreadable move"),
        *(Figure(f"{role}_moves", f"{mark}: legal moves", role, is_count=True) for role, mark in MARKS.items()),
        *(Figure(f"{role}_optimal", f"{mark}: optimal moves", role, of=f"{role}_moves") for role, mark in MARKS.items()),
    )
    fixed_form = roles
    bots: ClassVar[Mapping[str, Bot]] = {"random": _random_bot, "perfect": _perfect_bot}

    opening: Annotated[int, Field(ge=2, le=4, description="moves that stand on the board already, at most")] = 3

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        classes = enumerate(solver.openings(self.opening), start=1)
        found = [squares for number, same in classes for squares in same if (number % _HELD_OUT_IN == 0) == (split is Split.HELD_OUT)]
        shortage = f"openings asked for, but the {split} split has {len(found)}; ask for fewer or raise game.opening"
        return [_task(squares) for squares in drawn(found, count, seed, shortage)]

    def split_of(self, task: Task) -> Split:
        squares = task.data.get("opening")
        return super().split_of(_task(squares) if isinstance(squares, list) else task)

    def custom_task(self, text: str) -> Task:
        """Return the opening that a person typed: the squares of the moves already made."""
        task = _task([int(character) for character in text if character in "0123456789"])
        self.start(task, 0)
        return task

    def start(self, task: Task, seed: int) -> State:
        squares: Any = task.data.get("opening")
        numbers = isinstance(squares, list) and all(type(square) is int and 1 <= square <= 9 for square in squares)
        if not numbers or len(set(squares)) < len(squares) or len(squares) > 4:
            raise DataError(f"task {task.id!r}: {squares!r} is not an opening; it must list up to 4 different squares of 1 to 9")
        return State(task, seed)

    def to_move(self, state: State) -> str | None:
        played = len(state.task.data["opening"]) + len(state.history)
        return self.roles[played % 2] if state.result is None else None

    def observe(self, state: State, role: str) -> Observation:
        squares = _squares((), state.history)
        bare = (
            Utterance(said.role, f"[{square}]" if square else "(no square)") for said, square in zip(state.history, squares, strict=True)
        )
        return Observation(role, tuple(bare), {"opening": state.task.data["opening"]})

    def prompt(self, observation: Observation) -> str:
        squares = _squares(observation.facts["opening"], observation.history)
        said = "".join(f"{self.roles[turn % 2]}: [{square}]\n" for turn, square in enumerate(squares))
        you = f"You are {observation.role} and play {MARKS[observation.role]}. Your move:"
        return f"{RULES}\n\n{said}\n{self.describe_view(observation)}\n{you}\n"

    def stop_strings(self) -> tuple[str, ...]:
        return tuple(f"\n{role}:" for role in self.roles)

    def template_texts(self) -> tuple[str, ...]:
        return (RULES,)

    def rule(self, state: State) -> Result | None:
        role = state.history[-1].role
        other = self.roles[1 - self.roles.index(role)]
        *before, square = _squares(state.task.data["opening"], state.history)
        board = solver.board_after(before)
        if square not in solver.legal_moves(board):
            did = f"named square {square}, which is taken" if square else "did not name one square in square brackets"
            return self.end(state, f"{role}_illegal", _won_by(other), f"{role} {did}")
        board = solver.place(board, square)
        if line := solver.winning_line(board):
            return self.end(state, f"{role}_wins", _won_by(role), f"{role} has squares {', '.join(map(str, line))}")
        return None if solver.legal_moves(board) else self.draw(state)

    def draw(self, state: State) -> Result:
        full = len(state.task.data["opening"]) + len(state.history) == 9
        reason = "the board is full and nobody has three in a row" if full else "the game was cut short"
        return self.end(state, "draw", dict.fromkeys(self.roles, 0.0), reason)

    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        """Count each role's legal moves, and those that keep what perfect play would bring from there."""
        found: Counter[str] = Counter()
        board = solver.board_after(task.data["opening"])
        for said, square in zip(history[: result.length], _squares((), history), strict=False):
            if square not in solver.legal_moves(board):
                return {**found, "illegal": 1}
            found[f"{said.role}_moves"] += 1
            found.update([f"{said.role}_optimal"] * (square in solver.best_moves(board)))
            board = solver.place(board, square)
        return found

    def describe_task(self, task: Task) -> str:
        marks = [f"{mark} on {square}" for mark, square in zip("XOXO", task.data["opening"], strict=False)]
        return ", ".join(marks) or "the empty board"

    def describe_view(self, observation: Observation) -> str:
        """Return the board, free squares by number."""
        cells = [str(number) if mark == "." else mark for number, mark in enumerate(_board(observation), start=1)]
        return "\n".join(" | ".join(cells[row : row + 3]) for row in (0, 3, 6))
