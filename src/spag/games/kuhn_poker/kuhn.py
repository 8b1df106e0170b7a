"""Kuhn poker as a game of texts: moves in square brackets, rewards in chips, and exact scores of a policy
(``solver.py``).

There are only six deals. A task is a numbered hand, so there are many tasks with disjoint ids; both splits hold each
deal equally often.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.errors import DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task, Utterance
from spag.games.base import Bot, Decision, Figure, split_in_id
from spag.games.kuhn_poker import solver
from spag.games.moves import ROLES, MoveGame, Moves, constant_bot, drawn_move, in_rounds, move_outcomes, random_bot

RULES = """\
This is Kuhn poker, for two players, player_0 and player_1. The deck has three cards: K is the highest, Q is next, J \
is the lowest. Each player pays one chip into the pot and gets one card, which only that player sees. player_0 moves \
first. While nobody has bet, a player may [check] or [bet]; to bet is to pay one more chip into the pot. After a bet \
the other player may [call], by paying one more chip too, or [fold], which gives the pot away. When both have \
checked, or a bet was called, the higher card wins the pot. A player whose text does not name exactly one legal move \
in square brackets pays the other two chips, and the hand is over."""


def _task(id: str, first: str, second: str) -> Task:
    return Task(f"{id}-{first}{second}", {"player_0": first, "player_1": second})


def _equilibrium_bot(observation: Observation, rng: random.Random) -> str:
    moves = tuple(said.content.strip("[]") for said in observation.history)
    chances = solver.equilibrium()[solver.information_set(observation.facts["card"], moves)]
    return drawn_move(chances, rng)


@dataclass(frozen=True)
class KuhnPoker(MoveGame):
    """Three cards, one chip each, one bet."""

    name: ClassVar[str] = "kuhn_poker"
    title: ClassVar[str] = "Kuhn poker"
    summary: ClassVar[str] = "poker with three cards and one bet; its equilibria are known"
    role_help: ClassVar[Mapping[str, str]] = {
        "player_0": "You move first. Say [check] or [bet]; if you checked and the other bet, say [call] or [fold].",
        "player_1": "You move second. Say [check] or [bet] after a check, [call] or [fold] after a bet.",
    }
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {"player_0": ("player_1",), "player_1": ("player_0",)}
    outcomes = move_outcomes(
        "The higher card wins the pot, unless its holder folded.",
        "A player who does not name exactly one legal move pays the other two chips.",
        Outcome(
            "unfinished", "unfinished", "#a3a9b6", rule="A hand that was cut short is void: both take their chips back."
        ),
        wins="wins the pot",
    )
    figures = (
        *MoveGame.figures,
        Figure("bets", "hands with a bet"),
        *(Figure(f"{role}_blunders", f"{role}: folds a K, calls with a J", role, of=f"{role}_moves") for role in ROLES),
    )
    reward_range: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    bots: ClassVar[Mapping[str, Bot]] = {
        "random": random_bot,
        "equilibrium": _equilibrium_bot,
        "constant": constant_bot,
    }
    rules = RULES

    hands: Annotated[
        int, Field(ge=6, le=60_000, multiple_of=6, description="hands in each split, every deal equally often")
    ] = 600

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        deals = solver.DEALS
        numbers = in_rounds(self.hands, len(deals), count, seed, "hands")
        return [_task(f"{split}-{number:04d}", *deals[number % len(deals)]) for number in numbers]

    def split_of(self, task: Task) -> Split:
        """Return the split named in the id: both deal the same cards, and ``hands`` is the number of ids."""
        return split_in_id(task)

    def custom_task(self, text: str) -> Task:
        """Parse a typed deal: player_0's card, then player_1's."""
        cards = tuple(letter for letter in text.upper() if letter.isalpha())
        if cards not in solver.DEALS:
            raise DataError(f"{text!r} is not a deal; write two different cards of J, Q and K, as in: K Q")
        return _task("custom", *cards)

    def start(self, task: Task, seed: int) -> State:
        if (task.data.get("player_0"), task.data.get("player_1")) not in solver.DEALS:
            fault = f"{dict(task.data)} is not a deal; player_0 and player_1 must have different cards of J, Q, K"
            raise DataError(f"task {task.id!r}: {fault}")
        return State(task, seed)

    def vocabulary(self) -> Moves:
        return solver.MOVES

    def legal_moves(self, task: Task, moves: Moves) -> Moves:
        return solver.legal_moves(moves)

    def facts(self, task: Task, moves: Moves, role: str) -> Mapping[str, Any]:
        return {"card": task.data[role]}

    def illegal_rewards(self, task: Task, moves: Moves) -> tuple[float, float]:
        """Two chips: as many as the largest loss, so an illegal move never pays."""
        return -2.0, 2.0

    def prompt(self, observation: Observation) -> str:
        said = "".join(f"{said.role}: {said.content}\n" for said in observation.history)
        legal = " or ".join(f"[{move}]" for move in observation.facts["legal"])
        # The card is next to the decision: with the card before the history, a small model plays all cards alike for
        # many steps.
        return f"{RULES}\n\nYou are {observation.role}.\n\n{said}You hold {observation.facts['card']}. {legal}?\n"

    def final(self, state: State, moves: Moves) -> Result:
        deal = state.task.data
        won = solver.chips((deal["player_0"], deal["player_1"]), moves)
        winner, loser = self.roles if won > 0 else self.roles[::-1]
        reason = f"{loser} folded" if moves[-1] == "fold" else f"{winner}'s {deal[winner]} beat {loser}'s {deal[loser]}"
        return self.end(state, f"{winner}_wins", {"player_0": float(won), "player_1": float(-won)}, reason)

    def remarks(self, task: Task, moves: Moves, role: str) -> Iterable[str]:
        return ("blunders",) if (task.data[role], moves[-1]) in {("K", "fold"), ("J", "call")} else ()

    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        bet = "bet" in self.played(task, history[: result.length])
        return {**super().measure(task, history, result), **({"bets": 1} if bet else {})}

    def describe_task(self, task: Task) -> str:
        return f"{task.data['player_0']} against {task.data['player_1']}"

    def describe_view(self, observation: Observation) -> str:
        return f"Your card is {observation.facts['card']}."

    def decisions(self) -> Sequence[Decision]:
        """Return the 12 information sets; their keys are those of ``solver.information_set``."""
        return [
            self.decision(partial(solver.information_set, card), Task("", dict.fromkeys(ROLES, card)), moves)
            for card, moves in solver.INFORMATION_SETS
        ]

    def score_policy(self, policy: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
        """Return exploitability, and each player's chips a hand against a best response: -1/18 and 1/18 at
        equilibrium.
        """
        bare = {key: {move.strip("[]"): chance for move, chance in chances.items()} for key, chances in policy.items()}
        return {
            "exploitability": solver.exploitability(bare),
            "player_0_worst_case": -solver.best_response_value(bare, 1),
            "player_1_worst_case": -solver.best_response_value(bare, 0),
        }
