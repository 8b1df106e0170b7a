"""Kuhn poker as a game of texts: moves in square brackets, rewards in chips, exact scores of a policy. Six deals."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.types import Observation, Task
from spag.games.base import Bot, Figure
from spag.games.kuhn_poker import solver
from spag.games.moves import MoveGame, Moves, drawn_move, move_outcomes, shares_of_moves
from spag.games.poker import VOID, PokerGame

RULES = """\
This is Kuhn poker, for two players, player_0 and player_1. The deck has three cards: K is the highest, Q is next, J \
is the lowest. Each player pays one chip into the pot and gets one card, which only that player sees. player_0 moves \
first. While nobody has bet, a player may [check] or [bet]; to bet is to pay one more chip into the pot. After a bet \
the other player may [call], by paying one more chip too, or [fold], which gives the pot away. When both have \
checked, or a bet was called, the higher card wins the pot. A player whose text does not name exactly one legal move \
in square brackets pays the other two chips, and the hand is over."""


def _equilibrium_bot(observation: Observation, rng: random.Random) -> str:
    moves = tuple(said.content.strip("[]") for said in observation.history)
    chances = solver.equilibrium()[solver.information_set(observation.facts["card"], moves)]
    return drawn_move(chances, rng)


@dataclass(frozen=True)
class KuhnPoker(PokerGame):
    """Three cards, one chip each, one bet."""

    name: ClassVar[str] = "kuhn_poker"
    title: ClassVar[str] = "Kuhn poker"
    summary: ClassVar[str] = "poker with three cards and one bet; its equilibria are known"
    role_help: ClassVar[Mapping[str, str]] = {
        "player_0": "You move first. Say [check] or [bet]; if you checked and the other bet, say [call] or [fold].",
        "player_1": "You move second. Say [check] or [bet] after a check, [call] or [fold] after a bet.",
    }
    outcomes = move_outcomes(
        "The higher card wins the pot, unless its holder folded.",
        "A player who does not name exactly one legal move pays the other two chips.",
        VOID,
        wins="wins the pot",
    )
    figures = (
        *MoveGame.figures,
        Figure("bets", "hands with a bet"),
        *shares_of_moves("blunders", "folds a K, calls with a J"),
    )
    reward_range: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    bots: ClassVar[Mapping[str, Bot]] = {**MoveGame.bots, "equilibrium": _equilibrium_bot}
    rules = RULES
    tree, deals = solver.TREE, solver.DEALS
    cards = "two different cards of J, Q and K, as in: K Q"

    hands: Annotated[
        int, Field(ge=6, le=60_000, multiple_of=6, description="hands in each split, every deal equally often")
    ] = 600

    def vocabulary(self) -> Moves:
        return solver.MOVES

    def facts(self, task: Task, moves: Moves, role: str) -> Mapping[str, Any]:
        return {"card": task.data[role]}

    def illegal_rewards(self, task: Task, moves: Moves) -> tuple[float, float]:
        """Two chips: as many as the largest loss, so an illegal move never pays."""
        return -2.0, 2.0

    def prompt(self, observation: Observation) -> str:
        said = "".join(f"{said.role}: {said.content}\n" for said in observation.history)
        legal = " or ".join(f"[{move}]" for move in observation.facts["legal"])
        # With the card before the history, a small model plays all cards alike for many steps.
        return f"{RULES}\n\nYou are {observation.role}.\n\n{said}You hold {observation.facts['card']}. {legal}?\n"

    def remarks(self, task: Task, moves: Moves, role: str) -> Iterable[str]:
        if moves[-1] == "bet":  # one per hand
            yield "bets"
        if (task.data[role], moves[-1]) in {("K", "fold"), ("J", "call")}:
            yield f"{role}_blunders"

    def describe_task(self, task: Task) -> str:
        return f"{task.data['player_0']} against {task.data['player_1']}"

    def describe_view(self, observation: Observation) -> str:
        return f"Your card is {observation.facts['card']}."
