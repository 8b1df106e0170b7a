"""Leduc poker as a game of texts: moves in square brackets, rewards in chips, exact scores of a policy."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.types import Observation, Outcome, Task
from spag.games.base import Bot
from spag.games.leduc_poker import solver
from spag.games.moves import ROLES, MoveGame, Moves, drawn_move, move_outcomes, shares_of_moves
from spag.games.poker import VOID, PokerGame

RULES = """\
Leduc poker: player_0 and player_1 pay one chip each and get one card each of J, J, Q, Q, K, K. There are two rounds \
of betting; player_0 begins both. A bet or raise is 2 chips in the first round and 4 in the second; a bet can be \
raised once. After the first round a board card is turned up. A card equal to the board wins, else the higher card \
(K, Q, J). Answer with one move in square brackets, as in [check]."""
_DEALS = [deal for deal, ways in solver.DEALS.items() for _ in range(ways // 4)]


def _honest_bot(observation: Observation, rng: random.Random) -> str:
    facts = observation.facts
    return drawn_move(solver.honest_chances(facts["card"], facts.get("board"), facts["legal"]), rng)


@dataclass(frozen=True)
class LeducPoker(PokerGame):
    """Six cards, two rounds of betting."""

    name: ClassVar[str] = "leduc_poker"
    title: ClassVar[str] = "Leduc poker"
    summary: ClassVar[str] = "poker with six cards and two rounds of betting; exact distance from equilibrium"
    role_help: ClassVar[Mapping[str, str]] = {
        role: f"You move {place}. Say [check] or [bet]; after a bet say [fold], [call] or [raise]."
        for role, place in zip(ROLES, ("first", "second"), strict=True)
    }
    outcomes: ClassVar[Mapping[str, Outcome]] = {
        **move_outcomes(
            "A pair with the board wins, else the higher card, unless its holder folded.",
            "A player who does not name exactly one legal move pays the other its chips in the pot and one more.",
            Outcome("split", "split pot", "#6f7685", rule="Equal cards split the pot."),
            wins="wins the pot",
        ),
        VOID.name: VOID,
    }
    bots: ClassVar[Mapping[str, Bot]] = {**MoveGame.bots, "honest": _honest_bot}
    figures = (*MoveGame.figures, *shares_of_moves("blunders", "folds a pair"))
    reward_range: ClassVar[tuple[float, float]] = (-13.0, 13.0)  # the ante, two bets of 2 and two of 4
    rules = RULES
    tree, deals = solver.TREE, _DEALS
    cards = "three cards of J, J, Q, Q, K, K, as in: K Q J"

    hands: Annotated[int, Field(ge=30, le=60_000, multiple_of=30, description="hands in each split")] = 600

    def vocabulary(self) -> Moves:
        return solver.MOVES

    def facts(self, task: Task, moves: Moves, role: str) -> Mapping[str, Any]:
        board = {} if solver.rounds(moves)[1] is None else {"board": task.data["board"]}
        return {"card": task.data[role], **board}

    def illegal_rewards(self, task: Task, moves: Moves) -> tuple[float, float]:
        """One chip more than checking or folding can cost, so an illegal move never pays."""
        cost = 1.0 + solver.paid(moves)[solver.player_to_move(moves)]
        return -cost, cost

    def prompt(self, observation: Observation) -> str:
        moves = tuple(said.content.strip("[]") for said in observation.history)
        said = zip(("First", "Second"), solver.rounds(moves), strict=True)
        rounds = "".join(f"{name} round: {' '.join(part)}".strip() + "\n" for name, part in said if part is not None)
        legal = " or ".join(f"[{move}]" for move in observation.facts["legal"])
        # Cards come last, as in Kuhn poker: next to the decision, and after the prefix that prompts share.
        return f"{RULES}\n\n{rounds}You are {observation.role}. {self.describe_view(observation)} {legal}?\n"

    def remarks(self, task: Task, moves: Moves, role: str) -> Iterable[str]:
        """Nothing beats a pair: the other cannot have one too."""
        paired = solver.rounds(moves[:-1])[1] is not None and task.data[role] == task.data["board"]
        return (f"{role}_blunders",) if paired and moves[-1] == "fold" else ()

    def describe_task(self, task: Task) -> str:
        first, second, board = (task.data[place] for place in (*ROLES, "board"))
        return f"{first} against {second}, board {board}"

    def describe_view(self, observation: Observation) -> str:
        card, board = observation.facts["card"], observation.facts.get("board")
        if board is None:
            return f"You hold {card}."
        # Small models do not see by themselves that two cards are equal.
        return f"You hold {card}, the board is {board}{': a pair' if card == board else ''}."
