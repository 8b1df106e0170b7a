"""TextArena's two-player environments as games like our own: ``textarena:KuhnPoker-v0`` (extra ``textarena``).

An environment is a mutable object; a game is functions of the history. So a position is the environment after a seed
and some moves, replayed. TextArena draws from the global generators of Python and NumPy at any time: both are seeded
for a replay and restored after it, so replays and our own draws do not affect each other.
"""

import difflib
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from spag.core.errors import ConfigError, DataError, first_line, require_package
from spag.core.seeds import derive_seed
from spag.core.types import Observation, Outcome, Result, Split, State, Task
from spag.games.base import Bot, Game, drawn, outcome_map, split_in_id
from spag.games.registry import get, settings_of

PREFIX = "textarena:"
PLAYERS = range(2)
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of an environment that cannot be started, or cannot read a move."""
_LOCK = Lock()  # of the generators
ROLES = tuple(f"player_{number}" for number in PLAYERS)
_MORE = "The environment's rewards decide."
_INVALID = "A player who makes more invalid moves in a row than the environment allows loses."


@dataclass(frozen=True, slots=True)
class Position:
    """The observation of each player, the player to move, and at the end ``rewards`` by player; ``invalid`` is the
    player whose invalid move ended the game.
    """

    seen: tuple[str, ...]
    to_move: int
    rewards: tuple[float, ...] | None = None
    invalid: int | None = None
    reason: str = ""


@lru_cache(maxsize=4096)
def position(env_id: str, options: str, seed: int, texts: tuple[str, ...]) -> Position:
    """Return the position of ``env_id`` with ``options`` (JSON), after ``texts``. Raises the errors of making it."""
    import textarena  # noqa: PLC0415 - takes seconds

    with _seeded(seed):
        env = textarena.make(env_id, **json.loads(options))
        if not isinstance(env, textarena.Wrapper):
            env = textarena.wrappers.LLMObservationWrapper(env)  # the -raw environments give lists of messages
        env.reset(num_players=len(PLAYERS), seed=seed)
        for text in texts:
            env.get_observation()
            mover = env.state.current_player_id
            try:
                done, _ = env.step(text)
            except FAULTS as error:  # a move that the environment fails to read is its player's fault
                paid = tuple(-1.0 if player == mover else 1.0 for player in PLAYERS)
                reason = f"the environment failed to read the move: {first_line(error)}"
                return Position(("",) * len(PLAYERS), mover, paid, mover, reason)
            if done:
                return _ended(env, mover)
        to_move = env.state.current_player_id
        return Position(tuple(_seen(env, player) for player in PLAYERS), to_move)


def _ended(env: Any, mover: int) -> Position:
    seen = tuple(_seen(env, player) for player in PLAYERS)
    rewards, info = env.close()
    invalid = next((player for player in PLAYERS if info[player].get("invalid_move")), None)
    reason = " ".join(str(info[mover].get("reason") or "the environment ended the game").split())
    return Position(seen, mover, tuple(float((rewards or {}).get(player, 0)) for player in PLAYERS), invalid, reason)


def _seen(env: Any, player: int) -> str:
    """Return the observation of ``player``. This may change the environment, which is not used again."""
    env.state.current_player_id = player
    return str(env.get_observation()[1])


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with _LOCK:
        python, numbers = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


def _random_bot(observation: Observation, rng: random.Random) -> str:
    """Play one of the moves quoted in the last such line of the environment's text: ``'[check]', '[bet]'``.

    Many environments name the legal moves there. If none is named, it passes, which may be invalid.
    """
    lines = (re.findall(r"'(\[[^\]]+\])'", line) for line in str(observation.facts["observation"]).splitlines())
    named = [moves for moves in lines if moves]
    return rng.choice(named[-1]) if named else "[pass]"


@dataclass(frozen=True)
class TextArenaGame(Game):
    """One environment. A task is a seed, so a role may not learn it: it would reveal what both were dealt."""

    env_id: ClassVar[str]
    roles = ROLES
    role_help: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ROLES, "The environment's text says what you know and how to move."
    )
    hidden: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(ROLES, ("seed",))
    bots: ClassVar[Mapping[str, Bot]] = {"random": _random_bot}
    judged_by: ClassVar[tuple[str, ...]] = ("options", "max_utterances")
    moves_in_brackets: ClassVar[bool] = True
    outcomes = outcome_map(
        Outcome(f"{ROLES[0]}_wins", f"{ROLES[0]} wins", "#0072b2", winners=ROLES[:1], rule=_MORE),
        Outcome(f"{ROLES[1]}_wins", f"{ROLES[1]} wins", "#e69f00", winners=ROLES[1:], rule=_MORE),
        Outcome(f"{ROLES[0]}_invalid", f"{ROLES[0]} moves invalidly", "#56b4e9", fault=ROLES[0], rule=_INVALID),
        Outcome(f"{ROLES[1]}_invalid", f"{ROLES[1]} moves invalidly", "#d55e00", fault=ROLES[1], rule=_INVALID),
        Outcome("draw", "draw", "#009e73", rule="Both get the same reward."),
        Outcome("unfinished", "unfinished", "#a3a9b6", rule="A game that was cut short is void."),
    )

    options: Annotated[dict[str, Any], Field(description="arguments of the environment, besides those of its id")] = (
        field(default_factory=dict)
    )
    seeds: Annotated[int, Field(ge=1, description="tasks in each split; a task is a seed")] = 1000
    max_utterances: Annotated[int, Field(ge=1, description="utterances after which a game is cut short")] = 100

    def __post_init__(self) -> None:
        try:
            self._position(State(Task("", {"seed": 0})))
        except (*FAULTS, ImportError, OSError, SyntaxError) as error:
            lines = (line.strip() for line in str(error).splitlines() if re.search(r"\w", line))
            why = next(lines, type(error).__name__)
            why = f"it needs a newer Python ({why})" if isinstance(error, SyntaxError) else why
            what = f"{self.name}: cannot be started with two players and game.options={self.options}"
            raise ConfigError(f"{what}: {why}") from error

    def __hash__(self) -> int:
        return hash((self.name, self.seeds, self.max_utterances))

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return partial(get, self.name, **settings_of(self)), ()  # made at run time: pickle cannot import the class

    def tasks(self, split: Split, count: int | None, seed: int) -> Sequence[Task]:
        shortage = f"there are {self.seeds:,} in each split; raise game.seeds"
        numbers = drawn(list(range(self.seeds)), count, seed, shortage, "seed")
        seeds = {number: derive_seed(self.env_id, split, number) % 2**32 for number in numbers}
        return [Task(f"{split}-{number:04d}", {"seed": own}) for number, own in seeds.items()]

    def split_of(self, task: Task) -> Split:
        return split_in_id(task)

    def start(self, task: Task, seed: int) -> State:
        if not isinstance(task.data.get("seed"), int):
            fix = "it must have a seed, as in {'seed': 7}"
            raise DataError(f"task {task.id!r}: {dict(task.data)} is no task of {self.name}; {fix}")
        return State(task, seed)

    def to_move(self, state: State) -> str | None:
        return self.roles[self._position(state).to_move] if state.result is None else None

    def observe(self, state: State, role: str) -> Observation:
        """Return the environment's observation, including what it shows of the other's utterances."""
        return Observation(role, (), {"observation": self._position(state).seen[self.roles.index(role)]})

    def prompt(self, observation: Observation) -> str:
        return str(observation.facts["observation"])

    def describe_view(self, observation: Observation) -> str:
        return self.prompt(observation)

    def rule(self, state: State) -> Result | None:
        found = self._position(state)
        if found.rewards is None:
            return self.draw(state) if len(state.history) >= self.max_utterances else None
        rewards = dict(zip(self.roles, found.rewards, strict=True))
        best = max(self.roles, key=lambda role: rewards[role])
        outcome = "draw" if len(set(found.rewards)) == 1 else f"{best}_wins"
        if found.invalid is not None:
            outcome = f"{self.roles[found.invalid]}_invalid"
        return self.end(state, outcome, rewards, found.reason)

    def draw(self, state: State) -> Result:
        return self.end(state, "unfinished", dict.fromkeys(self.roles, 0.0), "the game was cut short")

    def _position(self, state: State) -> Position:
        # Line breaks become spaces, since an utterance could otherwise forge a line of the other's observation.
        texts = tuple(" ".join(utterance.content.splitlines()) for utterance in state.history)
        return position(self.env_id, json.dumps(self.options, sort_keys=True), state.task.data["seed"], texts)


def game_class(env_id: str) -> type[TextArenaGame]:
    """Return the class of ``textarena:ENV_ID``. Raises ``ConfigError`` without TextArena, and for an unknown id."""
    require_package("textarena", PREFIX + env_id, "pip install 'spag-selfplay[textarena]'")
    from textarena.envs.registration import ENV_REGISTRY  # noqa: PLC0415 - takes seconds

    if env_id not in ENV_REGISTRY:
        near = difflib.get_close_matches(env_id, ENV_REGISTRY, n=1, cutoff=0.3)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
        raise ConfigError(f"TextArena has no environment {env_id!r}{hint}")
    texts = {"title": f"{env_id} of TextArena", "summary": "a two-player environment of TextArena"}
    attributes = {"__module__": __name__, "env_id": env_id, "name": PREFIX + env_id, **texts}
    return type(env_id, (TextArenaGame,), attributes)
