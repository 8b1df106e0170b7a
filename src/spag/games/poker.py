"""Poker with a few cards: what its games share, and the exact value and exploitability of any policy.

A task is a numbered hand, so there are many tasks with disjoint ids; both splits hold each deal in proportion to its
probability. Chips are always player_0's net gain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from spag.core.errors import DataError
from spag.core.types import Outcome, Result, Split, State, Task, Utterance
from spag.games.base import Decision, Policy, SolvedGame, split_in_id
from spag.games.moves import MoveGame, Moves, in_rounds, without_brackets

Deal = tuple[str, ...]
"""The cards of player_0, of player_1 and, in games that have one, of the board."""
_PLACES = ("player_0", "player_1", "board")
_VOID_RULE = "A hand that was cut short is void: both take their chips back."
VOID = Outcome("unfinished", "unfinished", "#a3a9b6", rule=_VOID_RULE)


@dataclass(frozen=True, slots=True)
class Tree:
    """A poker game as a tree, small enough to traverse.

    ``deals`` counts the ways to draw each; ``player_to_move`` is 0 or 1; ``information_set`` names what a player knows,
    from the deal, the player and the moves; ``chips`` are those at the end.
    """

    deals: Mapping[Deal, int]
    legal_moves: Callable[[Moves], Moves]
    player_to_move: Callable[[Moves], int]
    information_set: Callable[[Deal, int, Moves], str]
    chips: Callable[[Deal, Moves], int]

    def histories(self, moves: Moves = ()) -> Iterator[Moves]:
        """Yield every sequence of moves after which a player decides, prefixes first."""
        if self.legal_moves(moves):
            yield moves
            for move in self.legal_moves(moves):
                yield from self.histories((*moves, move))

    def value(self, policy: Policy, player: int, own: Policy | None = None) -> float:
        """Return the expected chips of ``player`` (0 or 1) with ``own``, or a best response, against ``policy``."""
        return self._value((), self.deals, policy, player, own) / sum(self.deals.values())

    def exploitability(self, policy: Policy) -> float:
        """Return NashConv / 2, as OpenSpiel does: the mean of both players' gains from a best response to ``policy``.

        Gains are relative to self-play, whose values cancel in the sum. 0 at an equilibrium, and only there.
        """
        return (self.value(policy, 0) + self.value(policy, 1)) / 2

    def _value(
        self, moves: Moves, weights: Mapping[Deal, float], policy: Policy, player: int, own: Policy | None
    ) -> float:
        """Return the sum of values after ``moves`` over deals, weighted by ways and the opponent's probabilities."""
        legal = self.legal_moves(moves)
        if not legal:
            won = sum(weight * self.chips(deal, moves) for deal, weight in weights.items())
            return won if player == 0 else -won
        mover = self.player_to_move(moves)
        sets = {deal: self.information_set(deal, mover, moves) for deal in weights}
        if mover != player:
            chances = {
                move: {deal: weight * policy[sets[deal]][move] for deal, weight in weights.items()} for move in legal
            }
            return sum(self._value((*moves, move), chances[move], policy, player, own) for move in legal)
        total = 0.0
        for key in dict.fromkeys(sets.values()):
            alike = {deal: weight for deal, weight in weights.items() if sets[deal] == key}
            after = {move: self._value((*moves, move), alike, policy, player, own) for move in legal}
            total += max(after.values()) if own is None else sum(own[key][move] * after[move] for move in legal)
        return total


@dataclass(frozen=True)
class PokerGame(MoveGame, SolvedGame):
    """A game of numbered hands, with rewards in chips. Subclasses define the rest of ``MoveGame``.

    ``deals`` holds each deal in proportion to its probability; ``cards`` says what a deal is made of.
    """

    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {"player_0": ("player_1",), "player_1": ("player_0",)}
    tree: ClassVar[Tree]
    deals: ClassVar[Sequence[Deal]]
    cards: ClassVar[str]

    hands: int = 600

    @property
    def _places(self) -> Sequence[str]:
        return _PLACES[: len(self.deals[0])]

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        numbers = in_rounds(self.hands, len(self.deals), count, seed, "hands")
        return [deal_task(f"{split}-{number:04d}", self.deals[number % len(self.deals)]) for number in numbers]

    def split_of(self, task: Task) -> Split:
        """Return the split named in the id: both deal the same cards, and ``hands`` is the number of ids."""
        return split_in_id(task)

    def custom_task(self, text: str) -> Task:
        """Parse a typed deal: the cards of player_0, of player_1 and, if there is one, of the board."""
        cards = tuple(letter for letter in text.upper() if letter.isalpha())
        if cards not in self.deals:
            raise DataError(f"{text[:40]!r} is not a deal; write {self.cards}")
        return deal_task("custom", cards)

    def start(self, task: Task, seed: int) -> State:
        places = self._places
        if tuple(map(task.data.get, places)) not in self.deals:
            fault = f"{dict(task.data)} is not a deal; {', '.join(places)} must have {self.cards}"
            raise DataError(f"task {task.id!r}: {fault}")
        return State(task, seed)

    def to_move(self, state: State) -> str | None:
        moves = self.played(state.task, state.history)
        return self.roles[self.tree.player_to_move(moves)] if state.result is None else None

    def legal_moves(self, task: Task, moves: Moves) -> Moves:
        return self.tree.legal_moves(moves)

    def final(self, state: State, moves: Moves) -> Result:
        cards = state.task.data
        won = self.tree.chips(tuple(cards[place] for place in self._places), moves)
        rewards = {"player_0": float(won), "player_1": float(-won)}
        if won == 0:
            return self.end(state, "split", rewards, f"both have {cards['player_0']}")
        winner, loser = self.roles if won > 0 else self.roles[::-1]
        pair = "pair of " if cards[winner] == cards.get("board") else ""
        shown = f"{winner}'s {pair}{cards[winner]} beat {loser}'s {cards[loser]}"
        return self.end(state, f"{winner}_wins", rewards, f"{loser} folded" if moves[-1] == "fold" else shown)

    def decisions(self) -> Sequence[Decision]:
        """Return the decision of each information set; in this order, their prompts share prefixes."""
        found = {}
        for moves in self.tree.histories():
            roles = [self.roles[self.tree.player_to_move(moves[:at])] for at in range(len(moves) + 1)]
            said = tuple(Utterance(role, f"[{move}]") for role, move in zip(roles, moves, strict=False))
            for deal in self.tree.deals:
                key = partial(self.tree.information_set, deal, self.tree.player_to_move(moves))
                if key(moves) not in found:
                    own = tuple((key(moves[:at]), one.content) for at, one in enumerate(said) if one.role == roles[-1])
                    state = State(deal_task("", deal), history=said)
                    found[key(moves)] = self.decision(key(moves), state, roles[-1], own)
        return list(found.values())

    def score_policy(self, policy: Policy) -> Mapping[str, float]:
        """Return exploitability, and each player's chips per hand against a best response."""
        bare = without_brackets(policy)
        return {
            "exploitability": self.tree.exploitability(bare),
            "player_0_worst_case": -self.tree.value(bare, 1),
            "player_1_worst_case": -self.tree.value(bare, 0),
        }


def deal_task(id: str, deal: Deal) -> Task:
    """Return the task of ``deal``, with its cards in the id."""
    return Task(f"{id}-{''.join(deal)}", dict(zip(_PLACES, deal, strict=False)))
