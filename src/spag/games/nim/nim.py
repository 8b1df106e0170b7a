"""Nim as a game of texts: numbers of stones in square brackets, measured against perfect play.

A prompt shows the stones that are left, not the moves that led there, so equal positions have equal prompts. A task is
one of several games from a starting heap. Heaps that are multiples of ``take + 2`` are held out: that number and
``take + 1`` have no common factor, so they include won and lost positions. A curriculum raises ``largest_heap``; the
same heaps are held out at every size.

The player to move loses if the stones are a multiple of ``take + 1``: the other completes its move to ``take + 1``.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, ClassVar

from pydantic import Field

from spag.core.errors import DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task
from spag.games.base import PLACE, Bot, Decision, Policy, SettingError
from spag.games.moves import ROLES, Moves, OpenGame, any_of, in_rounds, move_outcomes

_LARGEST = 200


def _heap(stones: int) -> Task:
    return Task(f"heap-{stones}", {"stones": stones})


def _perfect_bot(observation: Observation, rng: random.Random) -> str:
    return f"[{rng.choice(Nim(take=observation.facts['take']).best_moves(_heap(observation.facts['stones'])))}]"


@dataclass(frozen=True)
class Nim(OpenGame):
    """One heap; taking the last stone wins."""

    name: ClassVar[str] = "nim"
    title: ClassVar[str] = "Nim"
    summary: ClassVar[str] = "players take stones from a heap; taking the last one wins; perfect play is known"
    role_help = dict.fromkeys(ROLES, "Take stones from the heap. Write how many in square brackets, as in [2].")
    outcomes = move_outcomes(
        "Whoever takes the last stone wins.",
        "A player who does not name exactly one number of stones that may be taken loses.",
        Outcome("unfinished", "unfinished", "#a3a9b6", rule="A game that was cut short is void."),
    )
    bots: ClassVar[Mapping[str, Bot]] = {**OpenGame.bots, "perfect": _perfect_bot}

    judged_by: ClassVar[tuple[str, ...]] = ("take",)

    largest_heap: Annotated[int, Field(ge=4, le=_LARGEST, description="stones in the largest starting heap")] = 30
    smallest_heap: Annotated[int, Field(ge=1, le=_LARGEST, description="stones in the smallest starting heap")] = 1
    take: Annotated[int, Field(ge=2, le=9, description="maximum number of stones per move")] = 3
    games_per_heap: Annotated[int, Field(ge=1, le=10_000, description="tasks per starting heap")] = 25

    def __post_init__(self) -> None:
        if not (self._heaps(Split.HELD_OUT) and self._heaps(Split.TRAIN)):
            raise SettingError(
                f"{PLACE}.largest_heap: heaps of {self.smallest_heap} to {self.largest_heap} stones do not fill both "
                f"splits; choose {self.smallest_heap + self.take + 2} or more"
            )

    @property
    def rules(self) -> str:
        return (
            f"Nim: two players take 1 to {self.take} stones in turn. Whoever takes the last stone wins. Answer with "
            "your number in square brackets, as in [2]."
        )

    def _heaps(self, split: Split) -> list[int]:
        heaps = range(self.smallest_heap, self.largest_heap + 1)
        return [heap for heap in heaps if (heap % (self.take + 2) == 0) == (split is Split.HELD_OUT)]

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        heaps = self._heaps(split)
        numbers = in_rounds(len(heaps) * self.games_per_heap, len(heaps), count, seed, "games_per_heap")
        games = [divmod(number, len(heaps)) for number in numbers]
        return [Task(f"heap-{heaps[which]}-{game}", {"stones": heaps[which]}) for game, which in games]

    def split_of(self, task: Task) -> Split:
        stones = task.data.get("stones")
        return Split.HELD_OUT if isinstance(stones, int) and stones % (self.take + 2) == 0 else Split.TRAIN

    def custom_task(self, text: str) -> Task:
        """Return a game from a typed heap size."""
        if not re.fullmatch(r"\s*\d{1,3}\s*", text, re.ASCII):
            raise DataError(f"{text[:40]!r} is not a heap; type its stones as a number, 1 to {_LARGEST}")
        task = _heap(int(text))
        self.start(task, 0)
        return task

    def start(self, task: Task, seed: int) -> State:
        stones: Any = task.data.get("stones")
        if type(stones) is not int or not 1 <= stones <= _LARGEST:
            raise DataError(f"task {task.id!r}: stones is {stones!r}; it must be a number, 1 to {_LARGEST}")
        return State(task, seed)

    def vocabulary(self) -> Moves:
        return tuple(str(number) for number in range(1, self.take + 1))

    def legal_moves(self, task: Task, moves: Moves) -> Moves:
        return self.vocabulary()[: _left(task, moves)]

    def position(self, task: Task, moves: Moves) -> str:
        return f"{ROLES[len(moves) % 2]} {_left(task, moves)}"

    def value(self, task: Task, moves: Moves) -> float:
        return 1.0 if _left(task, moves) % (self.take + 1) else -1.0

    def facts(self, task: Task, moves: Moves, role: str) -> Mapping[str, Any]:
        return {"stones": _left(task, moves), "take": self.take}

    def prompt(self, observation: Observation) -> str:
        return f"{self.rules}\n\n{self.describe_view(observation)}\n"

    def final(self, state: State, moves: Moves) -> Result:
        winner = state.history[-1].role
        rewards = {role: 1.0 if role == winner else -1.0 for role in self.roles}
        return self.end(state, f"{winner}_wins", rewards, f"{winner} took the last stone")

    def describe_task(self, task: Task) -> str:
        return f"a heap of {task.data['stones']}"

    def describe_view(self, observation: Observation) -> str:
        return f"Stones left: {observation.facts['stones']}"

    def decisions(self) -> Sequence[Decision]:
        """Return every heap up to ``largest_heap`` for each role, ``player_0 13``: each may have its own model."""
        return [
            self.decision(f"{role} {stones}", State(_heap(stones)), role)
            for role in self.roles
            for stones in range(1, self.largest_heap + 1)
        ]

    def score_policy(self, policy: Policy) -> Mapping[str, float]:
        """Return ``winning_moves``, the mean probability of the winning move in positions that have one; and mean
        results of games from the held-out heaps: ``against_perfect`` on the side that can win (1: it never misses),
        ``against_random`` on either side.
        """
        player, perfect = self.player_of(policy), any_of(self.best_moves)
        heaps = [_heap(stones) for stones in self._heaps(Split.HELD_OUT)]
        winnable = [stones for stones in range(1, self.largest_heap + 1) if self.value(_heap(stones), ()) > 0]
        best = {stones: f"[{self.best_moves(_heap(stones))[0]}]" for stones in winnable}
        moving, answering = self.rewards(player, perfect), self.rewards(perfect, player)
        return {
            "winning_moves": fmean(policy[f"{role} {stones}"][best[stones]] for role in ROLES for stones in winnable),
            "against_perfect": fmean(moving(heap) if self.value(heap, ()) > 0 else -answering(heap) for heap in heaps),
            "against_random": self.mean_reward(player, any_of(self.legal_moves), heaps),
        }


def _left(task: Task, moves: Moves) -> int:
    """Return the stones left after ``moves``."""
    left: int = task.data["stones"] - sum(map(int, moves))
    return left
