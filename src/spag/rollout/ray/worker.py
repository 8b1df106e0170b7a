"""The Ray actor that plays: it opens engines once and keeps games in flight over them until its driver lets go.

The driver calls ``turn`` again and again, with new games and for finished ones; two calls are always under way, so that an engine never
waits for the network.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from spag.core.episodes import Episode
from spag.games.taboo.types import Role
from spag.rollout.runner import GameSpec, Hall, Player, PlayRules, PlayStats

BEAT_S = 0.2
"""A turn takes at least so long while games are in flight, so that fast engines send many games in one message."""


@dataclass(frozen=True, slots=True)
class PlayJob:
    """What every worker is told. ``gpus`` are those that one worker needs where the cluster has any."""

    open_players: Callable[[ExitStack], Mapping[Role, Player]]
    rules: PlayRules
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """What one turn brought."""

    episodes: list[Episode]
    stats: PlayStats


class PlayWorker:
    """Plays on its node."""

    def __init__(self) -> None:
        self._waiting: deque[GameSpec] = deque()
        self._stack = ExitStack()
        self._hall: Hall | None = None

    def ready(self) -> None:
        """Return as soon as the process runs, which tells a node that is full from an engine that is slow to open."""

    def open(self, job: PlayJob) -> None:
        """Open the engines. Raises ``SpagError``."""
        self._hall = Hall(job.open_players(self._stack), job.rules, PlayStats())

    def turn(self, specs: Sequence[GameSpec]) -> Finished:
        """Take on ``specs`` and play until a game is finished, or nothing is left. Raises ``EngineError``."""
        assert self._hall is not None
        hall, began, episodes = self._hall, time.monotonic(), list[Episode]()
        self._waiting.extend(specs)
        while not episodes or time.monotonic() - began < BEAT_S:
            while self._waiting and hall.free > 0:
                hall.open(self._waiting.popleft())
            if not hall.tables:
                break
            episodes.extend(hall.poll())
        stats, hall.stats = hall.stats, PlayStats()
        return Finished(episodes, stats)

    def close(self) -> None:
        """Free the engines and what they started."""
        self._stack.close()
