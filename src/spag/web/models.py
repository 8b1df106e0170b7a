"""The models that visitors play against: one engine each, in a thread of its own, shared by all sessions.

An engine's ``poll`` may block until something is finished; an engine with a method ``partial`` (``TransformersEngine``) lets a reply be
watched while it grows. A reply that fails or takes too long says so in one line; the next one asked for opens the engine anew.
"""

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from spag.core.errors import EngineError, SpagError
from spag.engines.base import Completion, Engine, Request

logger = logging.getLogger(__name__)

MOST_OPEN = 2
REPLY_LIMIT_S = 120.0
LOAD_LIMIT_S = 900.0

OpenModel = Callable[[str], Engine]


@runtime_checkable
class Streaming(Protocol):
    """An engine whose replies can be watched."""

    def partial(self, request_id: str) -> str | None:
        """Return the text so far of a request, ``None`` when it is not being worked on. Called from other threads while ``poll`` runs."""


@dataclass(slots=True)
class Reply:
    """A reply asked of ``model``: at last it has a ``completion`` or an ``error``."""

    request: Request
    model: "ModelThread"
    asked: float = field(default_factory=time.monotonic)
    completion: Completion | None = None
    error: str | None = None

    @property
    def is_done(self) -> bool:
        return self.completion is not None or self.error is not None

    @property
    def text_so_far(self) -> str:
        """What the model has said of it; empty where the engine cannot tell."""
        if self.completion is not None:
            return self.completion.text
        engine = self.model.engine
        return (engine.partial(self.request.id) or "").strip() if isinstance(engine, Streaming) else ""

    def fail_when_late(self, limit_s: float) -> None:
        """Give up ``limit_s`` seconds after it was asked for, loading not counted."""
        if self.is_done:
            return
        now, loaded = time.monotonic(), self.model.loaded
        if loaded is None and now - self.model.began > LOAD_LIMIT_S:
            self.error = f"the model was not loaded within {LOAD_LIMIT_S:.0f} s; look at the terminal of spag web"
        elif loaded is not None and now - max(self.asked, loaded) > limit_s:
            self.error = f"the model has not answered within {limit_s:.0f} s; it may be busy or gone, so wait a little and try again"


class ModelThread:
    """One model, opened by ``open_engine`` in a thread of its own. Methods may be called from any thread."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self.began = time.monotonic()
        self.loaded: float | None = None
        self.engine: Engine | None = None
        self.problem: str | None = None  # why it answers no more
        self._open_engine = open_engine
        self._inbox: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._asked: dict[str, Reply] = {}
        self._in_flight = 0  # of the engine; touched by the thread alone
        threading.Thread(target=self._work, name="model", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return bool(self._asked) and self.problem is None

    def ask(self, request: Request) -> Reply:
        """Queue a request. Returns at once."""
        reply = Reply(request, self)
        with self._lock:
            reply.error = self.problem
            if reply.error is None:
                self._asked[request.id] = reply
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
                        self._asked.pop(completion.id).completion = completion
            problem = "the model was closed to make room for another one"
        except SpagError as error:
            problem = str(error)
            logger.warning("a model failed: %s", error)
        finally:
            with self._lock:
                self.problem = problem
                for reply in self._asked.values():
                    reply.error = reply.error or problem
                self._asked.clear()
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
            idle = next((other for other, thread in self._threads.items() if not thread.is_busy), None)
            if idle is None:
                raise EngineError(f"{self._most_open} other models are answering right now; try again in a moment")
            self._threads.pop(idle).close()
        thread = self._threads[name] = ModelThread(lambda: self._open_model(name))
        return thread

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
        self._threads.clear()
