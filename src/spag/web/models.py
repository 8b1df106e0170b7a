"""The models that visitors play against: a few are open at once, shared by all sessions; a failed one is reopened."""

from collections import OrderedDict
from collections.abc import Callable

from spag.core.errors import EngineError
from spag.engines.base import Engine
from spag.engines.thread import ModelThread

MOST_OPEN = 2

OpenModel = Callable[[str], Engine]


class ModelPool:
    """The open models by name, at most ``most_open``; a new one replaces the least recently used."""

    def __init__(self, open_model: OpenModel, *, most_open: int = MOST_OPEN) -> None:
        self._open_model, self._most_open = open_model, most_open
        self._threads: OrderedDict[str, ModelThread] = OrderedDict()

    def get(self, name: str) -> ModelThread:
        """Return the model ``name``, opened in the background. Raises ``EngineError`` if all others are busy."""
        known = self._threads.get(name)
        if known is not None and known.problem is None:
            self._threads.move_to_end(name)
            return known
        self._threads.pop(name, None)
        while len(self._threads) >= self._most_open:
            idle = next((other for other, thread in self._threads.items() if thread.problem or not thread.asked), None)
            if idle is None:
                raise EngineError(f"{self._most_open} other models are answering right now; try again in a moment")
            self._threads.pop(idle).close()
        thread = self._threads[name] = ModelThread(lambda: self._open_model(name))
        return thread

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()
