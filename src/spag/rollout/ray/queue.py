"""The queue of games on a cluster, and the games that each worker holds. Pure bookkeeping, no Ray.

A worker holds at most ``most`` games, and near the end no more than an equal share of the rest, so that all workers
finish together. A game counts once: late results of a lost worker are refused.
"""

import math
from collections import deque
from collections.abc import Iterable

from spag.rollout.runner import GameSpec


class GameQueue:
    """Waiting games, and games held by workers. Workers are identified by number."""

    def __init__(self, specs: Iterable[GameSpec], most: int) -> None:
        self.most = most
        self._waiting = deque(specs)
        self._held: dict[int, dict[str, GameSpec]] = {}

    @property
    def left(self) -> int:
        """The number of unfinished games."""
        return len(self._waiting) + sum(map(len, self._held.values()))

    def held(self, worker: int) -> int:
        """Games that a worker holds."""
        return len(self._held.get(worker, ()))

    def take(self, worker: int, workers: int) -> list[GameSpec]:
        """Return further games for ``worker``, one of ``workers``."""
        mine = self._held.setdefault(worker, {})
        share = min(self.most, math.ceil(self.left / workers))
        taken = [self._waiting.popleft() for _ in range(min(share - len(mine), len(self._waiting)))]
        mine.update((spec.id, spec) for spec in taken)
        return taken

    def finish(self, worker: int, game: str) -> bool:
        """Record a finished game; false if ``worker`` does not hold it (any more)."""
        return self._held.get(worker, {}).pop(game, None) is not None

    def put_back(self, worker: int) -> int:
        """Return the games of ``worker`` to the front of the queue; return how many there are."""
        lost = self._held.pop(worker, {})
        self._waiting.extendleft(reversed(lost.values()))
        return len(lost)
