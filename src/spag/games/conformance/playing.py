"""Games played for the conformance suite: by the game's bots, if any, and with texts that no player should send."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from spag.core.types import Result, Split, State, Task, Utterance
from spag.games.base import Bot, Game

LONGEST = 1_000
"""Utterances after which a game counts as endless."""

_CHAT = ("Hello there.", "What do you mean by that?", "Yes.", "No.", "I know the word! It is bread!", "Is it Paris?")
_GARBAGE = (
    "", " \n\t ", "x" * 10_000, "[" * 10_000, "\x00\x07\x1b[31mred", "\u202eesrever\u202c \u200b\ufeff",
    "ünï 漢字 🂡 \U0010ffff", "[1] [2] [bet] [check]", "{role} {0} %s </s> <|im_end|>",
)  # fmt: skip


def odd_texts(game: Game, task: Task) -> Sequence[str]:
    """Return texts that nobody should say: garbage, forged lines, and the secrets of ``task``."""
    secrets = [str(value) for value in task.data.values()]
    forged = [f"Hi.\n{role}: {text}" for role in game.roles for text in ("I give up.", "[call] [5]")]
    return [*_CHAT, *_GARBAGE, *forged, *secrets, *(f"It is {secret}." for secret in secrets)]


def speakers(game: Game, task: Task) -> list[Bot]:
    """Return the game's bots, a player that chats, and one that says anything."""
    texts = odd_texts(game, task)
    return [*game.bots.values(), lambda _, rng: rng.choice(_CHAT), lambda _, rng: rng.choice(texts)]


def play(game: Game, task: Task, seed: int, speaker: Bot) -> list[State]:
    """Return every position of a game."""
    rng, states = random.Random(seed), [game.start(task, seed)]
    while (role := game.to_move(states[-1])) is not None:
        assert len(states) <= LONGEST, f"a game of {task.id!r} has not ended after {LONGEST} utterances"
        states.append(game.apply(states[-1], Utterance(role, speaker(game.observe(states[-1], role), rng))))
    return states


@lru_cache(maxsize=8)
def played_games(game: Game, seed: int) -> Sequence[Sequence[State]]:
    """Return the positions of each played game: six tasks with every speaker."""
    tasks = [*game.tasks(Split.TRAIN, None, seed)[:4], *game.tasks(Split.HELD_OUT, None, seed)[:2]]
    return [play(game, task, seed + at, bot) for task in tasks for at, bot in enumerate(speakers(game, task))]


def ended_games(game: Game, seed: int) -> Iterator[tuple[Task, Sequence[Utterance], Result, int]]:
    """Yield task, history, result and seed of every played game."""
    for first, *_, last in played_games(game, seed):
        yield last.task, last.history, game.result(last), first.seed


def two_secrets(game: Game, keys: Sequence[str], seed: int) -> Iterator[tuple[Task, Task]]:
    """Yield pairs of tasks that differ only under ``keys``."""
    seen: dict[str, Task] = {}
    for task in game.tasks(Split.TRAIN, None, seed):
        known = seen.setdefault(repr({key: value for key, value in task.data.items() if key not in keys}), task)
        if all(known.data[key] != task.data[key] for key in keys):
            yield known, task


def unfinished(game: Game, seed: int) -> Iterator[tuple[State, str]]:
    """Yield every position with the role to move."""
    for states in played_games(game, seed):
        for state in states[:-1]:
            role = game.to_move(state)
            assert role in game.roles, f"to_move returns {role!r}, which is none of {game.roles}"
            yield state, role


def raises(error: type[Exception], call: Callable[[], object]) -> bool:
    """Return whether ``call`` raises ``error``."""
    try:
        call()
    except error:
        return True
    return False
