"""The Ray actor that plays: it opens engines once and keeps games in flight until its driver ends. Weights may change
between plays.

Each call of ``advance`` brings new games and returns finished ones; two calls are always in flight, so that an engine
never waits for the network.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from spag.core.episodes import Episode
from spag.core.errors import EngineError
from spag.engines.base import Player
from spag.games.base import Game
from spag.rollout.ray.weights import unpack
from spag.rollout.runner import GameSpec, PlayStats, Runner, total_concurrency

BEAT_S = 0.2
"""Minimum duration of a call while games are in flight, so that fast engines send many games in one message."""


@dataclass(frozen=True, slots=True)
class PlayJob:
    """The job of every worker.

    ``open_players`` returns players by name; plays assign them to roles. ``gpus``: how many one worker needs, if the
    cluster has any. ``environment``: the driver's variables that name an endpoint.
    """

    open_players: Callable[[ExitStack], Mapping[str, Player]]
    in_flight: int | None = None
    gpus: int = 0
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # with the key


class PlayWorker:
    """Plays games on its node."""

    def __init__(self) -> None:
        self._waiting: deque[GameSpec] = deque()
        self._stack = ExitStack()
        self._opened: Mapping[str, Player] = {}
        self._players: Mapping[str, Player] = {}
        self._in_flight: int | None = None
        self._runner: Runner | None = None
        self._error: EngineError | None = None

    def ready(self) -> None:
        """Return as soon as the process runs, to tell a full node from an engine that is slow to open."""

    def open(self, job: PlayJob) -> None:
        """Open the engines. Raises ``SpagError``."""
        os.environ.update(job.environment)
        self._opened, self._in_flight = job.open_players(self._stack), job.in_flight

    def assign(self, game: Game, names: Mapping[str, str]) -> None:
        """Play ``game`` from now on; ``names``: each role's opened player."""
        self._players = {role: self._opened[name] for role, name in names.items()}
        self._runner = Runner(game, PlayStats(), self._in_flight or total_concurrency(self._players))

    def advance(self, specs: Sequence[GameSpec]) -> tuple[list[Episode], PlayStats]:
        """Add ``specs``; play until a game ends, or none is left. ``EngineError`` comes after the games that ended."""
        assert self._runner is not None
        if self._error is not None:
            raise self._error
        runner, began, episodes = self._runner, time.monotonic(), list[Episode]()
        self._waiting.extend(specs)
        while not episodes or time.monotonic() - began < BEAT_S:
            try:
                while self._waiting and runner.capacity > 0:
                    runner.start(self._waiting.popleft(), self._players)
                if not runner.running:
                    break
                episodes.extend(runner.poll())
            except EngineError as error:
                if not episodes:
                    raise
                self._error = error
                break
        stats, runner.stats = runner.stats, PlayStats()
        return episodes, stats

    def update_weights(self, packed: Mapping[str, Any], name: str) -> None:
        """Give new weights, packed, to the engine of the player ``name``. Raises ``EngineError``."""
        self._opened[name].engine.update_weights(unpack(packed))

    def close(self) -> None:
        """Close the engines and everything they started."""
        self._stack.close()
