"""Leduc poker as a game of texts: moves in square brackets, rewards in chips, and exact scores of a policy
(``solver.py``).

A task is a numbered hand. Both splits hold every deal of ranks in proportion to its probability, so any number of hands
is nearly balanced.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.errors import DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task
from spag.games.base import Bot, Decision, Figure, split_in_id
from spag.games.leduc_poker import betting, solver
from spag.games.moves import ROLES, MoveGame, Moves, drawn_move, in_rounds, move_outcomes

RULES = """\
Leduc poker: player_0 and player_1 pay one chip each and get one card each of J, J, Q, Q, K, K. There are two rounds \
of betting; player_0 begins both. A bet or raise is 2 chips in the first round and 4 in the second; a bet can be \
raised once. After the first round a board card is turned up. A card equal to the board wins, else the higher card \
(K, Q, J). Answer with one move in square brackets, as in [check]."""
_DEALS = [deal for deal, ways in betting.DEALS.items() for _ in range(ways // 4)]


def _deal(task: Task) -> betting.Deal:
    return task.data["player_0"], task.data["player_1"], task.data["board"]


def _task(id: str, deal: betting.Deal) -> Task:
    return Task(f"{id}-{''.join(deal)}", dict(zip(("player_0", "player_1", "board"), deal, strict=True)))


def _honest_bot(observation: Observation, rng: random.Random) -> str:
    facts = observation.facts
    return drawn_move(betting.honest_chances(facts["card"], facts.get("board"), facts["legal"]), rng)


@dataclass(frozen=True)
class LeducPoker(MoveGame):
    """Six cards, two rounds of betting."""

    name: ClassVar[str] = "leduc_poker"
    title: ClassVar[str] = "Leduc poker"
    summary: ClassVar[str] = "poker with six cards and two rounds of betting; exact distance from equilibrium"
    role_help: ClassVar[Mapping[str, str]] = {
        role: f"You move {place}. Say [check] or [bet]; after a bet say [fold], [call] or [raise]."
        for role, place in zip(ROLES, ("first", "second"), strict=True)
    }
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {"player_0": ("player_1",), "player_1": ("player_0",)}
    outcomes: ClassVar[Mapping[str, Outcome]] = {
        **move_outcomes(
            "A pair with the board wins, else the higher card, unless its holder folded.",
            "A player who does not name exactly one legal move pays the other its chips in the pot and one more.",
            Outcome("split", "split pot", "#6f7685", rule="Equal cards split the pot."),
            wins="wins the pot",
        ),
        "unfinished": Outcome(
            "unfinished", "unfinished", "#a3a9b6", rule="A hand that was cut short is void: both take their chips back."
        ),
    }
    bots: ClassVar[Mapping[str, Bot]] = {**MoveGame.bots, "honest": _honest_bot}
    figures = (
        *MoveGame.figures,
        *(Figure(f"{role}_blunders", f"{role}: folds a pair", role, of=f"{role}_moves") for role in ROLES),
    )
    reward_range: ClassVar[tuple[float, float]] = (-13.0, 13.0)  # the ante, two bets of 2 and two of 4
    rules = RULES

    hands: Annotated[int, Field(ge=30, le=60_000, multiple_of=30, description="hands in each split")] = 600

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        numbers = in_rounds(self.hands, len(_DEALS), count, seed, "hands")
        return [_task(f"{split}-{number:04d}", _DEALS[number % len(_DEALS)]) for number in numbers]

    def split_of(self, task: Task) -> Split:
        """Return the split named in the id: both deal the same cards."""
        return split_in_id(task)

    def custom_task(self, text: str) -> Task:
        """Parse a typed deal: the cards of player_0, player_1 and the board."""
        cards = [letter for letter in text.upper() if letter.isalpha()]
        if len(cards) != 3 or tuple(cards) not in betting.DEALS:
            raise DataError(f"{text[:40]!r} is not a deal; write three cards of J, J, Q, Q, K, K, as in: K Q J")
        return _task("custom", (cards[0], cards[1], cards[2]))

    def start(self, task: Task, seed: int) -> State:
        if tuple(map(task.data.get, ("player_0", "player_1", "board"))) not in list(betting.DEALS):
            fault = f"{dict(task.data)} is not a deal; player_0, player_1 and board must be of J, J, Q, Q, K, K"
            raise DataError(f"task {task.id!r}: {fault}")
        return State(task, seed)

    def to_move(self, state: State) -> str | None:
        moves = self.played(state.task, state.history)
        return self.roles[betting.player_to_move(moves)] if state.result is None else None

    def vocabulary(self) -> Moves:
        return betting.MOVES

    def legal_moves(self, task: Task, moves: Moves) -> Moves:
        return betting.legal_moves(moves)

    def facts(self, task: Task, moves: Moves, role: str) -> Mapping[str, Any]:
        board = {} if betting.rounds(moves)[1] is None else {"board": task.data["board"]}
        return {"card": task.data[role], **board}

    def illegal_rewards(self, task: Task, moves: Moves) -> tuple[float, float]:
        """One chip more than checking or folding can cost, so an illegal move never pays."""
        cost = 1.0 + betting.paid(moves)[betting.player_to_move(moves)]
        return -cost, cost

    def prompt(self, observation: Observation) -> str:
        moves = tuple(said.content.strip("[]") for said in observation.history)
        said = zip(("First", "Second"), betting.rounds(moves), strict=True)
        rounds = "".join(f"{name} round: {' '.join(part)}".strip() + "\n" for name, part in said if part is not None)
        legal = " or ".join(f"[{move}]" for move in observation.facts["legal"])
        # Cards come last, as in Kuhn poker: next to the decision, and after the prefix that prompts share.
        return f"{RULES}\n\n{rounds}You are {observation.role}. {self.describe_view(observation)} {legal}?\n"

    def final(self, state: State, moves: Moves) -> Result:
        won, deal = betting.chips(_deal(state.task), moves), state.task.data
        rewards = {"player_0": float(won), "player_1": float(-won)}
        if won == 0:
            return self.end(state, "split", rewards, f"both have {deal['player_0']}")
        winner, loser = self.roles if won > 0 else self.roles[::-1]
        pair = "pair of " if deal[winner] == deal["board"] else ""
        shown = f"{winner}'s {pair}{deal[winner]} beat {loser}'s {deal[loser]}"
        return self.end(state, f"{winner}_wins", rewards, f"{loser} folded" if moves[-1] == "fold" else shown)

    def remarks(self, task: Task, moves: Moves, role: str) -> Iterable[str]:
        """Nothing beats a pair: the other cannot have one too."""
        paired = betting.rounds(moves[:-1])[1] is not None and task.data[role] == task.data["board"]
        return ("blunders",) if paired and moves[-1] == "fold" else ()

    def describe_task(self, task: Task) -> str:
        first, second, board = _deal(task)
        return f"{first} against {second}, board {board}"

    def describe_view(self, observation: Observation) -> str:
        card, board = observation.facts["card"], observation.facts.get("board")
        if board is None:
            return f"You hold {card}."
        # Small models do not see by themselves that two cards are equal.
        return f"You hold {card}, the board is {board}{': a pair' if card == board else ''}."

    def decisions(self) -> Sequence[Decision]:
        """Return the 288 information sets; their keys are those of ``solver.information_set``, their prompts share
        prefixes in this order.
        """
        return [
            self.decision(partial(solver.information_set, rank, board), _task("", (rank, rank, board)), moves)
            for moves in betting.histories()
            for board in (betting.RANKS if betting.rounds(moves)[1] is not None else ("",))
            for rank in betting.RANKS
        ]

    def score_policy(self, policy: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
        """Return exploitability, and each player's chips a hand against a best response."""
        bare = {key: {move.strip("[]"): chance for move, chance in chances.items()} for key, chances in policy.items()}
        return {
            "exploitability": solver.exploitability(bare),
            "player_0_worst_case": -solver.value(bare, 1),
            "player_1_worst_case": -solver.value(bare, 0),
        }
