"""The models that visitors play against: one engine a checkpoint, each in a thread of its own, shared by all sessions.

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


@runtime_checkable
class Streaming(Protocol):
    """An engine whose replies can be watched."""

    def partial(self, request_id: str) -> str | None:
        """Return the text so far of a request, ``None`` when it is not being worked on. Called from other threads while ``poll`` runs."""


@dataclass(slots=True)
class Reply:
    """A reply asked for: at last it has a ``completion`` or an ``error``."""

    request: Request
    speaker: "Speaker"
    asked: float = field(default_factory=time.monotonic)
    completion: Completion | None = None
    error: str | None = None

    @property
    def is_done(self) -> bool:
        return self.completion is not None or self.error is not None


class Speaker:
    """One model, loaded by ``open_model`` in a thread of its own. Methods may be called from any thread."""

    def __init__(self, open_model: Callable[[], Engine]) -> None:
        self._open_model = open_model
        self._inbox: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._asked: dict[str, Reply] = {}
        self._in_flight = 0  # of the engine; touched by the thread alone
        self._engine: Engine | None = None
        self._loaded: float | None = None
        self._began = time.monotonic()
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._work, name="speaker", daemon=True)
        self._thread.start()

    @property
    def is_broken(self) -> bool:
        return self._problem is not None

    @property
    def is_busy(self) -> bool:
        return bool(self._asked)

    @property
    def is_loading(self) -> bool:
        return self._loaded is None

    def ask(self, request: Request) -> Reply:
        """Queue a request. Returns at once."""
        reply = Reply(request, self)
        with self._lock:
            reply.error = self._problem
            if reply.error is None:
                self._asked[request.id] = reply
                self._inbox.put(reply)
        return reply

    def text_so_far(self, reply: Reply) -> str:
        """Return what the model has said of its reply; empty where the engine cannot tell."""
        if reply.completion is not None:
            return reply.completion.text
        engine = self._engine
        return (engine.partial(reply.request.id) or "").strip() if isinstance(engine, Streaming) else ""

    def check(self, reply: Reply, limit_s: float) -> None:
        """Fail ``reply`` when it is late: ``limit_s`` seconds after it was asked for, loading not counted."""
        if reply.is_done:
            return
        now = time.monotonic()
        if self._loaded is None:
            late = now - self._began > LOAD_LIMIT_S
            problem = f"the model was not loaded within {LOAD_LIMIT_S:.0f} s; look at the terminal of spag web"
        else:
            late = now - max(reply.asked, self._loaded) > limit_s
            problem = f"the model has not answered within {limit_s:.0f} s; it may be busy or gone, so wait a little and try again"
        if late:
            reply.error = problem

    def close(self) -> None:
        """Free the model; replies that it still owes fail."""
        self._inbox.put(None)

    def _work(self) -> None:
        problem = "the model stopped unexpectedly; the terminal of spag web says why"
        try:
            self._engine = self._open_model()
            self._loaded = time.monotonic()
            while self._submit_waiting(self._engine):
                for completion in self._engine.poll():
                    self._in_flight -= 1
                    with self._lock:
                        self._asked.pop(completion.id).completion = completion
            problem = "the model was put away to make room for another one"
        except SpagError as error:
            problem = str(error)
            logger.warning("a model failed: %s", error)
        finally:
            with self._lock:
                self._problem = problem
                for reply in self._asked.values():
                    reply.error = reply.error or problem
                self._asked.clear()
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def _submit_waiting(self, engine: Engine) -> bool:
        """Hand new requests to the engine; wait for one when it has none. Returns whether to go on."""
        while not self._in_flight or not self._inbox.empty():
            reply = self._inbox.get()
            if reply is None:
                return False
            engine.submit(reply.request)
            self._in_flight += 1
        return True


class Speakers:
    """The speakers by checkpoint, at most ``most_open`` of them; the one unused for longest makes room for a new one."""

    def __init__(self, open_checkpoint: Callable[[str], Engine], *, most_open: int = MOST_OPEN) -> None:
        self._open_checkpoint, self._most_open = open_checkpoint, most_open
        self._open: OrderedDict[str, Speaker] = OrderedDict()

    def get(self, checkpoint: str) -> Speaker:
        """Return the speaker of ``checkpoint``, opening it in the background. Raises ``EngineError`` when all others are busy."""
        known = self._open.get(checkpoint)
        if known is not None and not known.is_broken:
            self._open.move_to_end(checkpoint)
            return known
        self._open.pop(checkpoint, None)
        while len(self._open) >= self._most_open:
            idle = next((name for name, speaker in self._open.items() if speaker.is_broken or not speaker.is_busy), None)
            if idle is None:
                raise EngineError(f"{self._most_open} other models are answering right now; try again in a moment")
            self._open.pop(idle).close()
        speaker = self._open[checkpoint] = Speaker(lambda: self._open_checkpoint(checkpoint))
        return speaker

    def close(self) -> None:
        for speaker in self._open.values():
            speaker.close()
        self._open.clear()
