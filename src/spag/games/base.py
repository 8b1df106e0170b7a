"""``Game``: the base class of every two-player, turn-based language game, with play and replay.

A game is a frozen dataclass. Its fields are its settings (the ``game`` section of a config, validated by their
annotations); its methods are pure functions of a ``State``. ``spag.games.conformance`` tests any game,
``spag.games.registry`` finds it by name.
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, TypeVar

from spag.core.errors import ConfigError, DataError
from spag.core.types import Observation, Outcome, Result, Split, State, Task, Utterance
from spag.core.visible import counted

Bot = Callable[[Observation, random.Random], str]
"""A scripted player: returns an utterance. Deterministic given the random generator."""
Policy = Mapping[str, Mapping[str, float]]
"""The probability of each move, by the key of the decision and the move's text."""
Item = TypeVar("Item")
PLACE = "\0"
"""Stands for the game's place among the options of a run; no option and no quoted value contains it."""


class SettingError(ConfigError):
    """A wrong setting of a game. The message has ``PLACE`` before the setting's name: ``{PLACE}.take: ...``."""

    def __init__(self, words: str) -> None:
        super().__init__(words.replace(PLACE, "game"))
        self._words = words

    def at(self, place: str) -> str:
        """Return the message for a game whose settings are below the option ``place``."""
        return self._words.replace(PLACE, place)


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric of a finished game (1 or 0, or a count), and how it is shown.

    ``role``: the role it describes; the arena shows it in that role's table. ``of``: the figure it is a fraction of;
    ``None``: of games. ``is_count``: a count, shown as its mean over games. If more than ``limit`` of self-play games
    (a fraction) have it, the warning is "N % <warning>".
    """

    name: str
    label: str
    role: str | None = None
    of: str | None = None
    is_count: bool = False
    limit: float | None = None
    warning: str = ""


@dataclass(frozen=True)
class Game:
    """A two-player game in which players speak in turn. Pure: no clock, no torch, no global randomness.

    A subclass defines ``tasks``, ``prompt``, ``rule``, ``draw`` and the class attributes that have no value here.
    ``roles`` are in order of their first turns, ``outcomes`` in the order in which they are shown. An illegal move is
    an outcome, never an exception; ``apply`` raises ``ValueError`` only for a caller's mistake (wrong role, finished
    game). ``hidden`` names, by role, the keys of ``Task.data`` that the role may not learn; it is empty if both know
    everything. ``judged_by`` names the settings needed to judge a recorded game correctly. ``fixed_form`` lists the
    roles that do not speak freely (``[bet]``, yes or no): health metrics ignore repetition and copying in their
    utterances. ``moves_in_brackets``: in roles that speak freely, ``[bet]`` alone does not count as repetition.
    ``reward_range``: the smallest and largest reward of a role, which the arena uses to scale scores.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    roles: ClassVar[tuple[str, ...]]
    role_help: ClassVar[Mapping[str, str]]
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    outcomes: ClassVar[Mapping[str, Outcome]]
    figures: ClassVar[tuple[Figure, ...]] = ()
    bots: ClassVar[Mapping[str, Bot]] = {}
    judged_by: ClassVar[tuple[str, ...]] = ()
    fixed_form: ClassVar[tuple[str, ...]] = ()
    moves_in_brackets: ClassVar[bool] = False
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        """Return ``count`` tasks of a split, drawn by ``seed``, or all. Raises ``ConfigError`` for too many."""
        raise NotImplementedError

    def split_of(self, task: Task) -> Split:
        """Return the split of any task, even one that ``start`` refuses: imitation skips games on held-out tasks.

        The default decides by id. Games whose tasks may have other ids (an inflected word) look at the data.
        """
        return Split.HELD_OUT if task.id in _held_out_ids(self) else Split.TRAIN

    def start(self, task: Task, seed: int) -> State:
        """Return the position before the first utterance. Raises ``DataError`` for a task of another game."""
        return State(task, seed)

    def to_move(self, state: State) -> str | None:
        """Return the role that speaks next, ``None`` when the game is over."""
        return self.roles[len(state.history) % len(self.roles)] if state.result is None else None

    def observe(self, state: State, role: str) -> Observation:
        """Return exactly what ``role`` may know of ``state``, by default all but the task's ``hidden`` data."""
        hidden = self.hidden.get(role, ())
        facts = {key: value for key, value in state.task.data.items() if key not in hidden}
        return Observation(role, state.history, facts)

    def prompt(self, observation: Observation) -> str:
        """Return the prompt used in play; the prompts of a game's turns share a growing prefix."""
        raise NotImplementedError

    def training_prompt(self, observation: Observation, rng: random.Random) -> str:
        """Return a prompt for training; games with paraphrases of their rules draw one."""
        return self.prompt(observation)

    def stop_strings(self) -> tuple[str, ...]:
        """Return the strings that end an utterance, most likely first."""
        return ()

    def template_texts(self) -> tuple[str, ...]:
        """Return the texts that every prompt contains, so that copies of them can be found in play."""
        return ()

    def rule(self, state: State) -> Result | None:
        """Return the result if the last utterance of ``state.history`` ended the game, else ``None``."""
        raise NotImplementedError

    def draw(self, state: State) -> Result:
        """Return the result of a game that ends or is cut short without a decision."""
        raise NotImplementedError

    def end(self, state: State, outcome: str, rewards: Mapping[str, float], reason: str) -> Result:
        """Return the result if the game ends with the last utterance of ``state``."""
        return Result(outcome, rewards, len(state.history), reason)

    def apply(self, state: State, utterance: Utterance) -> State:
        """Return the position after ``utterance``."""
        role = self.to_move(state)
        if role is None:
            raise ValueError("the game is over")
        if utterance.role != role:
            raise ValueError(f"it is the {role}'s move, not the {utterance.role}'s")
        state = replace(state, history=(*state.history, utterance))
        return replace(state, result=self.rule(state))

    def result(self, state: State) -> Result:
        """Return how ``state`` ended. Raises ``ValueError`` if the game is not over."""
        if state.result is None:
            raise ValueError("the game is not over")
        return state.result

    def replay(self, task: Task, history: Sequence[Utterance], seed: int = 0) -> Result:
        """Judge a whole game again, ignoring its recorded result; a game cut short is a draw."""
        state = self.start(task, seed)
        for utterance in history:
            if state.result is not None:
                break
            if utterance.role != (mover := self.to_move(state)):
                number = len(state.history) + 1
                raise DataError(f"utterance {number} is the {utterance.role}'s; it is the {mover}'s move")
            state = self.apply(state, utterance)
        return state.result or self.draw(state)

    def turn_rewards(self, task: Task, history: Sequence[Utterance], result: Result) -> Sequence[float]:
        """Return each utterance's reward for its speaker, for credit by turn (MARSHAL, arXiv 2510.15414).

        By default a role's last utterance gets its reward from ``result``, and all others 0. A game that knows the
        value of its positions returns the change in value due to each utterance.
        """
        rewards = [0.0] * len(history)
        for role, last in {said.role: at for at, said in enumerate(history[: result.length])}.items():
            rewards[last] = result.rewards[role]
        return rewards

    def measure(self, task: Task, history: Sequence[Utterance], result: Result) -> Mapping[str, int]:
        """Return the nonzero ``figures`` of one finished game."""
        return {}

    def explain(self, task: Task, history: Sequence[Utterance], result: Result) -> tuple[int, int] | None:
        """Return the characters of the last utterance that decided the game, if any."""
        return None

    def describe_task(self, task: Task) -> str:
        """Return the task in a few words, hidden information included: ``river``, ``K against Q``."""
        return task.id

    def describe_view(self, observation: Observation) -> str:
        """Return what a role knows besides the history, as lines of text: its card, the board, the secret word."""
        return "\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in observation.facts.items())

    def custom_task(self, text: str) -> Task:
        """Return the task for text that a person typed. Raises ``DataError`` if it cannot be played."""
        raise DataError(f"{self.title} draws its own tasks; leave this empty")


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision point: what the role knows (an information set), and the texts of its legal moves.

    ``own``: the role's own earlier decisions on the way here, as (key, move); ``None`` if several paths share a key.
    """

    key: str
    observation: Observation
    moves: tuple[str, ...]
    own: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True)
class SolvedGame(Game):
    """A game small enough to score a policy exactly, given the probabilities of its moves at every decision."""

    def decisions(self) -> Sequence[Decision]:
        """Return every decision of the game once, for both roles."""
        raise NotImplementedError

    def score_policy(self, policy: Policy) -> Mapping[str, float]:
        """Return named metrics of a policy."""
        raise NotImplementedError


@lru_cache(maxsize=8)
def _held_out_ids(game: Game) -> frozenset[str]:
    return frozenset(task.id for task in game.tasks(Split.HELD_OUT, None, 0))


def split_in_id(task: Task) -> Split:
    """Return the split that the id of ``task`` begins with: ``held_out-0007``, else the training split."""
    return Split.HELD_OUT if task.id.startswith(f"{Split.HELD_OUT}-") else Split.TRAIN


def drawn(items: list[Item], count: int | None, seed: int, shortage: str, what: str = "task") -> list[Item]:
    """Return ``count`` of ``items``, drawn by ``seed``, or all. ``shortage`` completes the error for too many, ``what``
    names one of them.
    """
    if count is None:
        return items
    if count > len(items):
        raise ConfigError(f"{counted(count, what)} asked for, but {shortage}")
    return random.Random(seed).sample(items, count)


def tasks_of(game: Game, splits: Sequence[Split], count: int | None, seed: int) -> Sequence[Task]:
    """Return ``count`` tasks of ``splits`` together, drawn by ``seed``, or all. Raises ``ConfigError`` for too many."""
    if len(splits) == 1:
        return game.tasks(splits[0], count, seed)
    everything = [task for split in splits for task in game.tasks(split, None, seed)]
    return drawn(everything, count, seed, f"there are {len(everything):,}")


def bracketed(text: str, moves: Iterable[str]) -> str | None:
    """Return the one of ``moves`` (lower case) named in brackets in ``text``, ``None`` if there are none or several."""
    named = {inside.strip().lower() for inside in re.findall(r"\[([^\[\]]+)\]", text)} & set(moves)
    return named.pop() if len(named) == 1 else None


def outcome_map(*outcomes: Outcome) -> Mapping[str, Outcome]:
    """Return outcomes by name, in order."""
    return {outcome.name: outcome for outcome in outcomes}


def is_competitive(game: Game) -> bool:
    """Tell whether one player can win alone; ratings and scores mean nothing for players who win together."""
    return any(len(outcome.winners) == 1 for outcome in game.outcomes.values())
