"""Kuhn poker as a game of texts: moves in square brackets, rewards in chips, and exact scores of a policy (``solver.py``).

A player may write what it likes around its move; the other hears the bare move, so that no text can give a card away or feign one. There
are only six deals. A task is a numbered hand, so that tasks are many and their ids disjoint; both splits hold each deal equally often.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from spag.core.errors import ConfigError, DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task, Utterance
from spag.games.base import Bot, Decision, Figure, TextGame, bracketed, outcome_map
from spag.games.kuhn_poker import solver

ROLES = ("player_0", "player_1")
RULES = """\
This is Kuhn poker, for two players, player_0 and player_1. The deck has three cards: K is the highest, Q is next, J is the lowest. \
Each player pays one chip into the pot and gets one card, which only that player sees. player_0 moves first. While nobody has bet, a \
player may [check] or [bet]; to bet is to pay one more chip into the pot. After a bet the other player may [call], by paying one more \
chip too, or [fold], which gives the pot away. When both have checked, or a bet was called, the higher card wins the pot. A player whose \
text does not name exactly one legal move in square brackets pays the other two chips, and the hand is over."""
_WIN = "The higher card wins the pot, unless its holder folded."
_ILLEGAL = "A player who does not name exactly one legal move pays the other two chips."
ILLEGAL_COST = 2.0
"""Chips that the maker of an illegal move pays to the other: as many as the dearest loss costs, so that it never pays."""


def _task(id: str, first: str, second: str) -> Task:
    return Task(f"{id}-{first}{second}", {"player_0": first, "player_1": second})


def _moves(history: Sequence[Utterance]) -> solver.Moves:
    """Return the move that each utterance names, empty where it names none or several."""
    return tuple(bracketed(said.content, solver.MOVES) or "" for said in history)


def _bot(policy: solver.Policy) -> Bot:
    def move(observation: Observation, rng: random.Random) -> str:
        chances = policy[solver.information_set(observation.facts["card"], _moves(observation.history))]
        return f"[{rng.choices(list(chances), list(chances.values()))[0]}]"

    return move


@dataclass(frozen=True)
class KuhnPoker(TextGame):
    """Three cards, one chip each, one bet."""

    name: ClassVar[str] = "kuhn_poker"
    title: ClassVar[str] = "Kuhn poker"
    summary: ClassVar[str] = "poker with three cards and one bet; its equilibria are known"
    roles = ROLES
    role_help: ClassVar[Mapping[str, str]] = {
        "player_0": "You move first. Say [check] or [bet]; if you checked and the other bet, say [call] or [fold].",
        "player_1": "You move second. Say [check] or [bet] after a check, [call] or [fold] after a bet.",
    }
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {"player_0": ("player_1",), "player_1": ("player_0",)}
    outcomes = outcome_map(
        Outcome("player_0_wins", "player_0 wins the pot", "#0072b2", winners=("player_0",), rule=_WIN),
        Outcome("player_1_wins", "player_1 wins the pot", "#e69f00", winners=("player_1",), rule=_WIN),
        Outcome("player_0_illegal", "player_0 breaks a rule", "#56b4e9", fault="player_0", rule=_ILLEGAL),
        Outcome("player_1_illegal", "player_1 breaks a rule", "#d55e00", fault="player_1", rule=_ILLEGAL),
        Outcome("unfinished", "unfinished", "#a3a9b6", rule="A hand that was cut short is void: both take their chips back."),
    )
    figures = (
        Figure("illegal", "illegal or unreadable moves", limit=0.05, warning="of hands end with an illegal or unreadable move"),
        Figure("bets", "hands with a bet"),
        *(Figure(f"{role}_moves", f"{role}: legal moves", role, is_count=True) for role in ROLES),
        *(Figure(f"{role}_blunders", f"{role}: folds a K, calls with a J", role, of=f"{role}_moves") for role in ROLES),
    )
    fixed_form = roles
    bots: ClassVar[Mapping[str, Bot]] = {"random": _bot(solver.uniform()), "equilibrium": _bot(solver.equilibrium())}

    hands: Annotated[int, Field(ge=6, le=60_000, multiple_of=6, description="hands in each split, every deal equally often")] = 600

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        """Return hands in whole rounds of the six deals, the last round cut, so that any number of hands is nearly balanced."""
        numbers = list(range(self.hands))
        if count is not None:
            if count > self.hands:
                raise ConfigError(f"{count} hands asked for, but there are {self.hands} in each split; ask for fewer or raise game.hands")
            rng, size = random.Random(seed), len(solver.DEALS)
            rounds = rng.sample(range(self.hands // size), -(-count // size))
            numbers = [size * drawn + deal for drawn in rounds for deal in rng.sample(range(size), size)][:count]
        return [_task(f"{split}-{number:04d}", *solver.DEALS[number % len(solver.DEALS)]) for number in numbers]

    def split_of(self, task: Task) -> Split:
        """Return the split that the id names: both deal the same cards, and ``hands`` says how many ids there are."""
        return Split.HELD_OUT if task.id.startswith(f"{Split.HELD_OUT}-") else Split.TRAIN

    def custom_task(self, text: str) -> Task:
        """Return the deal that a person typed: player_0's card, then player_1's."""
        cards = tuple(letter for letter in text.upper() if letter.isalpha())
        if cards not in solver.DEALS:
            raise DataError(f"{text!r} is not a deal; write two different cards of J, Q and K, as in: K Q")
        return _task("custom", *cards)

    def start(self, task: Task, seed: int) -> State:
        if (task.data.get("player_0"), task.data.get("player_1")) not in solver.DEALS:
            raise DataError(
                f"task {task.id!r}: {dict(task.data)} is not a deal; it must give player_0 and player_1 different cards of J, Q, K"
            )
        return State(task, seed)

    def observe(self, state: State, role: str) -> Observation:
        moves = zip(state.history, _moves(state.history), strict=True)
        bare = tuple(Utterance(said.role, f"[{move}]" if move else "(no legal move)") for said, move in moves)
        return Observation(role, bare, {"card": state.task.data[role]})

    def prompt(self, observation: Observation) -> str:
        said = "".join(f"{said.role}: {said.content}\n" for said in observation.history)
        legal = " or ".join(f"[{move}]" for move in solver.legal_moves(_moves(observation.history)))
        # The card stands next to the decision: with the card before the history, a small model moves all cards alike for many steps.
        return f"{RULES}\n\nYou are {observation.role}.\n\n{said}You hold {observation.facts['card']}. {legal}?\n"

    def stop_strings(self) -> tuple[str, ...]:
        return tuple(f"\n{role}:" for role in self.roles)

    def template_texts(self) -> tuple[str, ...]:
        return (RULES,)

    def rule(self, state: State) -> Result | None:
        moves, role, deal = _moves(state.history), state.history[-1].role, state.task.data
        legal = solver.legal_moves(moves[:-1])
        if moves[-1] not in legal:
            did = f"said [{moves[-1]}]" if moves[-1] else "did not name one move in square brackets"
            rewards = {one: -ILLEGAL_COST if one == role else ILLEGAL_COST for one in self.roles}
            return self.end(state, f"{role}_illegal", rewards, f"{role} {did}; the legal moves were [{legal[0]}] and [{legal[1]}]")
        if solver.legal_moves(moves):
            return None
        won = solver.chips((deal["player_0"], deal["player_1"]), moves)
        winner, loser = self.roles if won > 0 else self.roles[::-1]
        reason = f"{loser} folded" if moves[-1] == "fold" else f"{winner}'s {deal[winner]} beat {loser}'s {deal[loser]}"
        return self.end(state, f"{winner}_wins", {"player_0": float(won), "player_1": float(-won)}, reason)

    def draw(self, state: State) -> Result:
        return self.end(state, "unfinished", dict.fromkeys(self.roles, 0.0), "the hand was cut short")

    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        moves = _moves(history[: result.length])
        illegal = self.outcomes[result.outcome].fault is not None
        found = {"illegal": int(illegal), "bets": int("bet" in moves)}
        for said, move in zip(history, moves[: len(moves) - illegal], strict=False):
            blunder = (task.data[said.role], move) in {("K", "fold"), ("J", "call")}
            found[f"{said.role}_moves"] = found.get(f"{said.role}_moves", 0) + 1
            found[f"{said.role}_blunders"] = found.get(f"{said.role}_blunders", 0) + blunder
        return {name: count for name, count in found.items() if count}

    def describe_task(self, task: Task) -> str:
        return f"{task.data['player_0']} against {task.data['player_1']}"

    def describe_view(self, observation: Observation) -> str:
        return f"Your card is {observation.facts['card']}."

    def decisions(self) -> Sequence[Decision]:
        """Return the 12 information sets; their keys are those of ``solver.information_set``."""
        found = []
        for card, moves in solver.INFORMATION_SETS:
            history = tuple(Utterance(role, f"[{move}]") for role, move in zip(self.roles, moves, strict=False))
            observation = Observation(self.roles[len(moves) % 2], history, {"card": card})
            texts = tuple(f"[{move}]" for move in solver.legal_moves(moves))
            found.append(Decision(solver.information_set(card, moves), observation, texts))
        return found

    def score_policy(self, policy: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
        """Return exploitability, and for each player the chips that the policy is sure of: at equilibrium -1/18 and 1/18."""
        bare = {key: {move.strip("[]"): chance for move, chance in chances.items()} for key, chances in policy.items()}
        return {
            "exploitability": solver.exploitability(bare),
            "player_0_worst_case": -solver.best_response_value(bare, 1),
            "player_1_worst_case": -solver.best_response_value(bare, 0),
        }
