"""Copies of one model that take turns in one engine, if memory has no room for a second one.

A copy's requests wait until the previous copy has nothing in flight; then the engine gets the next copy's weights.
Since all games proceed until they wait for the same copy, weights change about once per move, not once per request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spag.engines.base import Completion, Engine, Request

if TYPE_CHECKING:
    from torch import Tensor

Load = Callable[[], "Mapping[str, Tensor]"]


@dataclass(eq=False, slots=True)
class SharedEngine:
    """The engine that copies share, which ends with the first that is closed. ``holder``: whose weights it has;
    ``busy``: how many of its requests are in flight.
    """

    engine: Engine
    holder: "TurnEngine | None" = None
    busy: int = 0


@dataclass(eq=False, slots=True)
class TurnEngine(Engine):
    """A copy. ``load`` returns its initial weights, used until it gets others, which must not change while it plays."""

    shared: SharedEngine
    load: Load
    concurrency: int = field(init=False)
    _waiting: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.concurrency = self.shared.engine.concurrency

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def poll(self) -> list[Completion]:
        shared = self.shared
        if shared.holder is not self:
            if shared.busy or not self._waiting:
                return []
            shared.engine.update_weights(self.load())
            shared.holder = self
        for request in self._waiting:
            shared.engine.submit(request)
        shared.busy += len(self._waiting)
        self._waiting.clear()
        finished = shared.engine.poll()
        shared.busy -= len(finished)
        return finished

    def update_weights(self, weights: "Mapping[str, Tensor]") -> None:
        """See ``Engine``; takes effect at its next turn."""
        self.load = lambda: weights
        if self.shared.holder is self:
            self.shared.holder = None

    def rest(self) -> bool:
        """See ``Engine``; lost weights are given again here."""
        if self.shared.engine.rest():
            self.shared.holder = None
        return False

    def close(self) -> None:
        self.shared.engine.close()


def take_turns(engine: Engine, names: Sequence[str], load: Load) -> dict[str, TurnEngine]:
    """Return a copy for each of ``names``, by name; all begin with the weights returned by ``load``."""
    shared = SharedEngine(engine)
    return {name: TurnEngine(shared, load) for name in names}
