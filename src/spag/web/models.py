"""The models that visitors play against: one engine each, in a thread of its own, shared by all sessions.

An engine's ``poll`` may block until something is finished; one with a method ``partial`` (``TransformersEngine``), which other threads may
call meanwhile, lets a reply be watched while it grows. A reply that fails or takes too long says so in one line; the next one asked for
opens the engine anew.
"""

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from spag.core.errors import EngineError, SpagError
from spag.engines.base import Completion, Engine, Request

logger = logging.getLogger(__name__)

MOST_OPEN = 2
REPLY_LIMIT_S = 120.0

OpenModel = Callable[[str], Engine]


@dataclass(slots=True)
class Reply:
    """A reply asked of ``model``: at last it has a ``completion`` or an ``error``."""

    request: Request
    model: "ModelThread"
    asked: float = field(default_factory=time.monotonic)
    completion: Completion | None = None
    error: str | None = None

    @property
    def text_so_far(self) -> str:
        """What the model has said of it; empty where the engine cannot tell."""
        if self.completion is not None:
            return self.completion.text
        partial: Callable[[str], str | None] | None = getattr(self.model.engine, "partial", None)
        return (partial(self.request.id) or "").strip() if partial else ""

    def fail_when_late(self, limit_s: float) -> None:
        """Give up ``limit_s`` seconds after it was asked for, loading not counted."""
        loaded, waiting = self.model.loaded, self.completion is None and self.error is None
        if waiting and loaded is not None and time.monotonic() - max(self.asked, loaded) > limit_s:
            self.error = f"the model has not answered within {limit_s:.0f} s; it may be busy or gone, so wait a little and try again"


class ModelThread:
    """One model, opened by ``open_engine`` in a thread of its own. Methods may be called from any thread."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self.loaded: float | None = None
        self.engine: Engine | None = None
        self.problem: str | None = None  # why it answers no more
        self.asked: dict[str, Reply] = {}
        self._open_engine = open_engine
        self._inbox: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._in_flight = 0  # of the engine; touched by the thread alone
        threading.Thread(target=self._work, name="model", daemon=True).start()

    def ask(self, request: Request) -> Reply:
        """Queue a request. Returns at once."""
        reply = Reply(request, self)
        with self._lock:
            reply.error = self.problem
            if reply.error is None:
                self.asked[request.id] = reply
                self._inbox.put(reply)
        return reply

    def close(self) -> None:
        """Free the model; replies that it still owes fail."""
        self._inbox.put(None)

    def _work(self) -> None:
        problem = "the model stopped unexpectedly; the terminal of spag web says why"
        try:
            self.engine = self._open_engine()
            self.loaded = time.monotonic()
            while self._submit_waiting(self.engine):
                for completion in self.engine.poll():
                    self._in_flight -= 1
                    with self._lock:
                        self.asked.pop(completion.id).completion = completion
            problem = "the model was closed to make room for another one"
        except SpagError as error:
            problem = str(error)
            logger.warning("a model failed: %s", error)
        finally:
            with self._lock:
                self.problem = problem
                for reply in self.asked.values():
                    reply.error = reply.error or problem
                self.asked.clear()
            if self.engine is not None:
                self.engine.close()
                self.engine = None

    def _submit_waiting(self, engine: Engine) -> bool:
        """Hand new requests to the engine; wait for one when it has none. Returns whether to go on."""
        while not self._in_flight or not self._inbox.empty():
            reply = self._inbox.get()
            if reply is None:
                return False
            engine.submit(reply.request)
            self._in_flight += 1
        return True


class ModelPool:
    """The open models by name, at most ``most_open`` of them; the one unused for longest makes room for a new one."""

    def __init__(self, open_model: OpenModel, *, most_open: int = MOST_OPEN) -> None:
        self._open_model, self._most_open = open_model, most_open
        self._threads: OrderedDict[str, ModelThread] = OrderedDict()

    def get(self, name: str) -> ModelThread:
        """Return the model called ``name``, opening it in the background. Raises ``EngineError`` when all others are busy."""
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
