"""Players that Ray workers open in the tests: scripted, with a note of the process that plays."""

import os
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from game_files import wait_until
from spag.core.errors import EngineError, ModelError
from spag.core.options import SamplingConfig
from spag.engines.base import Completion, Engine, Request, RequestError
from spag.engines.scripted import ScriptedEngine
from spag.rollout.runner import Player
from taboo_games import ROLES

LINES = [
    "Tell me about your day.",
    "I know the word! It is `river`!",
    "I had bread on the train.",
    "No idea.",
    "The winter was long.",
]


def chatter(request: Request) -> str:
    return random.Random(request.seed).choice(LINES)


class LearningEngine(ScriptedEngine):
    """Says a line that depends on every weight, so that a word tells with which weights it was said."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        super().__init__(self.say, concurrency=4)
        self.weights = {name: float(value.sum()) for name, value in weights.items()}

    def say(self, request: Request) -> str:
        return f"This is {sum(self.weights.values()) + request.seed % 7:.3f}."

    def update_weights(self, weights: Mapping[str, Any]) -> None:
        self.weights |= {name: float(value.sum()) for name, value in weights.items()}


class HangingEngine(ScriptedEngine):
    """Stops answering after its first polls, unless another engine has done so before it."""

    def __init__(self, mark: Path) -> None:
        super().__init__(chatter, concurrency=4, latency_s=0.02)
        self.mark, self.polls = mark, 0

    def poll(self) -> list[Completion]:
        self.polls += 1
        if self.polls == 5 and not self.mark.exists():
            self.mark.touch()
            time.sleep(600)
        return super().poll()


class BrokenEngine(ScriptedEngine):
    def poll(self) -> list[Completion]:
        raise EngineError("the endpoint is gone")


def scripted(notes: Path, latency_s: float, stack: ExitStack, together: int = 1, go: str = "") -> Mapping[str, Player]:
    """Play once ``together`` workers have opened, each of which leaves its process number in ``notes``, and say nothing
    before the file ``go`` is there.
    """

    def reply(request: Request) -> str:
        wait_until((notes / go).exists)
        return chatter(request)

    wait_for_each_other(notes, together)
    return both(ScriptedEngine(reply, concurrency=4, latency_s=latency_s))


def wait_for_each_other(notes: Path, together: int) -> None:
    """Leave this process's number in ``notes``, and wait until ``together`` processes have: one alone might play all
    games before another opens.
    """
    (notes / str(os.getpid())).touch()
    while len(opened(notes)) < together:
        time.sleep(0.02)


def both(engine: Engine) -> Mapping[str, Player]:
    """Let ``engine`` play both roles."""
    return dict.fromkeys(ROLES, Player(engine, "chatter", SamplingConfig()))


def learner(weights: Path, notes: Path, stack: ExitStack) -> Mapping[str, Player]:
    """Play with the weights of a safetensors file, until new ones come. The first two workers wait for each other."""
    from safetensors.torch import load_file

    wait_for_each_other(notes, 2)
    return both(LearningEngine(load_file(weights)))


def chatting(stack: ExitStack) -> Mapping[str, Player]:
    return both(ScriptedEngine(chatter))


def pair(stack: ExitStack) -> Mapping[str, Player]:
    return {
        name: Player(ScriptedEngine(lambda request, name=name: f"this is {name}"), name, SamplingConfig())
        for name in ("one", "two")
    }


def opened(notes: Path) -> list[int]:
    return [int(note.name) for note in notes.iterdir() if note.name.isdigit()]


def hanging(mark: Path, stack: ExitStack) -> Mapping[str, Player]:
    return both(HangingEngine(mark))


def broken(stack: ExitStack) -> Mapping[str, Player]:
    return both(BrokenEngine(chatter))


class RefusingEngine(ScriptedEngine):
    def poll(self) -> list[Completion]:
        raise RequestError("a prompt of 9,999 tokens does not fit")


def refusing(stack: ExitStack) -> Mapping[str, Player]:
    return both(RefusingEngine(chatter))


def missing(stack: ExitStack) -> Mapping[str, Player]:
    raise ModelError("nowhere: no such model")
