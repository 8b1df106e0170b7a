"""The ledger of games leased to engines; a lost engine's leases go to others. Pure bookkeeping, no Ray.

An engine holds at most ``most`` games, and near the end no more than its equal share of what is left, so that all engines end together.
A game is counted once: what a lost engine sends late is refused.
"""

import math
from collections import deque
from collections.abc import Iterable

from spag.rollout.runner import GameSpec


class Ledger:
    """Games that wait, and games leased to engines, which are known by number."""

    def __init__(self, specs: Iterable[GameSpec], most: int) -> None:
        self.most = most
        self._waiting = deque(specs)
        self._leased: dict[int, dict[str, GameSpec]] = {}

    @property
    def left(self) -> int:
        """Games not finished yet."""
        return len(self._waiting) + sum(map(len, self._leased.values()))

    def held(self, engine: int) -> int:
        """Games that an engine holds."""
        return len(self._leased.get(engine, ()))

    def lease(self, engine: int, engines: int) -> list[GameSpec]:
        """Return further games for ``engine``, one of ``engines``."""
        mine = self._leased.setdefault(engine, {})
        share = min(self.most, math.ceil(self.left / engines))
        given = [self._waiting.popleft() for _ in range(min(share - len(mine), len(self._waiting)))]
        mine.update((spec.id, spec) for spec in given)
        return given

    def finish(self, engine: int, game: str) -> bool:
        """Record a finished game; false when ``engine`` does not hold it (any more)."""
        return self._leased.get(engine, {}).pop(game, None) is not None

    def take_back(self, engine: int) -> int:
        """Return the games of ``engine`` to the front of the queue; return how many there are."""
        lost = self._leased.pop(engine, {})
        self._waiting.extendleft(reversed(lost.values()))
        return len(lost)
