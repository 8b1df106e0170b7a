"""A model in its own thread that answers requests from any thread: for the web UI, the adapters' opponents and ``spag
serve``.

An engine's ``poll`` may block until something is finished. Meanwhile other threads may ask for a reply as it grows
(``partial``), and let ``poll`` return (``wake``).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field

from spag.core.errors import EngineError, ModelError, SpagError
from spag.core.thinking import split_thought
from spag.engines.base import Completion, Engine, Request, RequestError

logger = logging.getLogger(__name__)

REPLY_LIMIT_S = 120.0


@dataclass(slots=True)
class Reply:
    """A reply requested from ``model``. ``future`` becomes its completion, or an ``EngineError``."""

    request: Request
    model: "ModelThread"
    asked: float = field(default_factory=time.monotonic)
    future: Future[Completion] = field(default_factory=Future)

    @property
    def completion(self) -> Completion | None:
        return self.future.result() if self.future.done() and self.future.exception() is None else None

    @property
    def error(self) -> str | None:
        problem = self.future.exception() if self.future.done() else None
        return None if problem is None else str(problem)

    @property
    def text_so_far(self) -> str:
        """The reply so far, without thoughts; empty if the engine cannot tell."""
        engine, text = self.model.engine, ""
        if (completion := self.completion) is not None:
            text = completion.text
        elif engine is not None:
            text = engine.partial(self.request.id) or ""
        return (split_thought(text).speech if self.request.sampling.thinks else text).strip()

    def wait(self, limit_s: float) -> Completion:
        """Wait for the completion and return it. Raises ``EngineError`` if the model fails, or after ``limit_s``
        seconds, excluding loading.
        """
        self.model.opened.wait()
        while not self.future.done():
            wait([self.future], self._time_left(limit_s))
            self.fail_when_late(limit_s)
        return self.future.result()

    def fail_when_late(self, limit_s: float) -> None:
        """Give up ``limit_s`` seconds after the request, excluding loading."""
        if self.model.opened.is_set() and self._time_left(limit_s) <= 0:
            what = f"the model has not answered within {limit_s:.0f} s"
            self.finish(EngineError(f"{what}; it may be busy or have stopped, so wait a little and try again"))

    def finish(self, outcome: Completion | EngineError) -> None:
        """Set the outcome; the first one counts."""
        with suppress(InvalidStateError):
            if isinstance(outcome, EngineError):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)

    def _time_left(self, limit_s: float) -> float:
        return max(self.asked, self.model.loaded or 0.0) + limit_s - time.monotonic()


class ModelThread:
    """One model, opened by ``open_engine`` in its own thread. Methods may be called from any thread."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self.opened = threading.Event()  # also set when opening failed
        self.loaded: float | None = None
        self.engine: Engine | None = None
        self.problem: str | None = None  # why it takes no more requests
        self.asked: dict[str, Reply] = {}
        self._open_engine = open_engine
        self._inbox: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._in_flight = 0  # of the engine; used only by the thread itself
        threading.Thread(target=self._work, name="model", daemon=True).start()

    def ask(self, request: Request) -> Reply:
        """Queue a request. Returns at once."""
        reply = Reply(request, self)
        with self._lock:
            if self.problem is None:
                self.asked[request.id] = reply
                self._tell(reply)
            else:
                reply.finish(EngineError(self.problem))
        return reply

    def close(self) -> None:
        """Free the model; unanswered requests fail."""
        with self._lock:
            self._tell(None)

    def _tell(self, reply: Reply | None) -> None:
        """Pass a request to the thread, or ``None`` to end it. Call this with the lock held."""
        self._inbox.put(reply)
        if self.engine is not None and self.problem is None:
            self.engine.wake()

    def _work(self) -> None:
        problem = "the model stopped unexpectedly; the terminal says why"
        try:
            self.engine = self._open_engine()
            self.loaded = time.monotonic()
            self.opened.set()
            while self._submit_waiting(self.engine):
                for completion in self.engine.poll():
                    self._in_flight -= 1
                    self._finish(completion.id, completion)
            problem = "the model was closed"
        except SpagError as error:
            problem = str(error)
            logger.warning("a model failed: %s", error)
        finally:
            with self._lock:
                self.problem = problem
                for reply in self.asked.values():
                    reply.finish(EngineError(problem))
                self.asked.clear()
            self.opened.set()
            if self.engine is not None:
                self.engine.close()
                self.engine = None

    def _submit_waiting(self, engine: Engine) -> bool:
        """Submit new requests; block for one when the engine has none. Returns whether to continue."""
        while not self._in_flight or not self._inbox.empty():
            reply = self._inbox.get()
            if reply is None:
                return False
            try:
                engine.submit(reply.request)
                self._in_flight += 1
            except (RequestError, ModelError) as error:  # of this request alone, such as a text that is too long
                self._finish(reply.request.id, RequestError(str(error)))
        return True

    def _finish(self, id_: str, outcome: Completion | EngineError) -> None:
        with self._lock:
            self.asked.pop(id_).finish(outcome)
