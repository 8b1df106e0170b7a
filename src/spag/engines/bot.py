"""An engine for a bot, a scripted player of a game: it reads the observation, not the prompt."""

import random

from spag.engines.base import Completion, Engine, FinishReason, Request
from spag.games.base import Bot


class BotEngine(Engine):
    """The request's seed determines the draw."""

    def __init__(self, bot: Bot, *, concurrency: int = 32) -> None:
        self.concurrency = concurrency
        self._bot = bot
        self._done: list[Completion] = []

    def submit(self, request: Request) -> None:
        if request.observation is None:
            raise ValueError("a bot needs the request's observation")
        text = self._bot(request.observation, random.Random(request.seed)).strip()
        self._done.append(Completion(request.id, text, FinishReason.EOS))

    def poll(self) -> list[Completion]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self._done.clear()
