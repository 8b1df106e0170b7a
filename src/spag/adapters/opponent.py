"""The opponent for a player trained by another library: a bot, a model or an endpoint, named as everywhere in spag.

It answers whole batches of positions, from any thread.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.core.types import State, Utterance
from spag.engines.base import Engine
from spag.engines.opening import open_player
from spag.engines.players import Kind, bot_of, kind_of
from spag.engines.thread import REPLY_LIMIT_S, ModelThread, Reply
from spag.games.base import Game
from spag.rollout.runner import next_request, utterance_of


def engine_of(name: str, game: Game) -> Callable[[], Engine]:
    """Return a function that opens the player ``name``, on the GPU of this training process. Raises ``ConfigError`` for
    an unknown bot.
    """
    if kind_of(name) is Kind.BOT:
        bot_of(game, name)  # refuses an unknown bot now, not in the thread that opens it
    engine = EngineConfig(backend="transformers")  # vLLM would reserve most of the GPU's memory
    return lambda: open_player(ModelConfig(name=name, device=_own_device()), game, engine)


def _own_device() -> str | None:
    """Return the GPU of this process if several train together; ``None``: the default device."""
    rank = os.environ.get("LOCAL_RANK")
    if rank is None:
        return None
    import torch  # noqa: PLC0415 - slow to import

    # as accelerate: a process may see its own GPU only
    return f"cuda:{int(rank) % torch.cuda.device_count()}" if torch.cuda.is_available() else None


@dataclass
class Opponent(AbstractContextManager["Opponent"]):
    """A player of ``game``, opened in the background, and again after a failure; ``limit_s`` bounds a reply. Its draws
    depend on a game's seed and position alone. Use as a context manager.
    """

    game: Game
    open_engine: Callable[[], Engine]
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    limit_s: float = REPLY_LIMIT_S

    def __post_init__(self) -> None:
        self._thread = ModelThread(self.open_engine)
        self._reopening = Lock()
        self._ids = itertools.count()

    def replies(self, states: Sequence[State]) -> list[Utterance]:
        """Return the next utterance in each of ``states``. Raises ``EngineError`` for a failing or slow player."""
        said: dict[int, Utterance] = {}
        attempt = 0
        while len(said) < len(states):
            asked = {at: self._ask(state, attempt) for at, state in enumerate(states) if at not in said}
            for at, reply in asked.items():
                try:
                    utterance = utterance_of(reply.wait(self.limit_s), reply.request, states[at], attempt)
                except EngineError as error:
                    raise EngineError(f"the opponent failed: {error}") from error
                if utterance is not None:
                    said[at] = utterance
            attempt += 1
        return [said[at] for at in range(len(states))]

    def _ask(self, state: State, attempt: int) -> Reply:
        request = next_request(str(next(self._ids)), self.game, state, attempt, self.sampling)
        with self._reopening:
            if self._thread.problem is not None:
                self._thread = ModelThread(self.open_engine)
            return self._thread.ask(request)

    def close(self) -> None:
        """Free the model."""
        self._thread.close()

    def __exit__(self, *_: object) -> None:
        self.close()
