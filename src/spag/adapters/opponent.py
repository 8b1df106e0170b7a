"""The other side of a game: one player of spag that answers whole batches of positions, from any thread.

Ecosystems train one player at a time; whoever sits opposite is a bot of the game, a model or an endpoint, named as everywhere in spag.
"""

import itertools
import time
from collections.abc import Callable, Sequence

from spag.config.schema import EngineConfig, ModelConfig
from spag.core.errors import EngineError
from spag.core.types import State, Utterance
from spag.engines.base import Completion, Engine, Sampling
from spag.engines.bot import BOT_PREFIX, BotEngine, bot_of
from spag.engines.opening import open_engine
from spag.games.base import Game
from spag.rollout.runner import next_request, should_retry
from spag.web.models import REPLY_LIMIT_S, ModelThread, Reply

_LOOK_S = 0.001


def engine_of(name: str, game: Game) -> Callable[[], Engine]:
    """Return what opens the player ``name``: ``bot:NAME``, ``openai:MODEL``, or a model. Raises ``ConfigError`` for a bot not there."""
    if name.startswith(BOT_PREFIX):
        bot = bot_of(game, name)
        return lambda: BotEngine(bot)
    return lambda: open_engine(ModelConfig(name=name), EngineConfig())


class Opponent:
    """A player of ``game``, opened in the background. Its draws depend on a game's seed and position alone. Use as a context manager."""

    def __init__(
        self, game: Game, opened: Callable[[], Engine], sampling: Sampling | None = None, *, limit_s: float = REPLY_LIMIT_S
    ) -> None:
        self.game, self.sampling, self._limit_s = game, sampling or Sampling(), limit_s
        self._thread = ModelThread(opened)
        self._ids = itertools.count()

    def replies(self, states: Sequence[State]) -> list[Utterance]:
        """Return what the player to move says in each of ``states``. Raises ``EngineError`` for a player that fails or takes too long."""
        said: dict[int, Utterance] = {}
        attempt = 0
        while len(said) < len(states):
            asked = {at: self._ask(state, attempt) for at, state in enumerate(states) if at not in said}
            for at, reply in asked.items():
                completion = self._completion(reply)
                if not should_retry(completion, attempt, self.sampling):
                    role = self.game.to_move(states[at])
                    assert role is not None
                    said[at] = Utterance(role, completion.text, str(completion.finish_reason))
            attempt += 1
        return [said[at] for at in range(len(states))]

    def close(self) -> None:
        """Free the model."""
        self._thread.close()

    def __enter__(self) -> "Opponent":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, state: State, attempt: int) -> Reply:
        return self._thread.ask(next_request(str(next(self._ids)), self.game, state, state.seed, attempt, self.sampling))

    def _completion(self, reply: Reply) -> Completion:
        while reply.completion is None and reply.error is None:
            time.sleep(_LOOK_S)
            reply.fail_when_late(self._limit_s)
        if reply.completion is None:
            raise EngineError(f"the opponent failed: {reply.error}")
        return reply.completion
