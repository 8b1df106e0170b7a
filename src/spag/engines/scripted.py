"""A fake engine for tests, playthroughs and overhead measurements: replies come from a function of the request, at once
or after a delay.

It answers in a shuffled, seeded order on purpose, so that code which relies on completion order fails in tests.
"""

import random
import time
from collections.abc import Callable

from spag.core.thinking import ANSWER, OPEN, answered
from spag.engines.base import Completion, Engine, FinishReason, Request, text_before_stop

Reply = Callable[[Request], str]


class ScriptedEngine(Engine):
    """Each request is answered after ``latency_s`` seconds; latencies overlap. ``tagged``: ``reply`` returns what a
    model writes after a prompt of ``PromptStyle.TAGGED``. ``context``: the longest prompt that it takes, in words.
    """

    def __init__(
        self,
        reply: Reply,
        *,
        concurrency: int = 8,
        latency_s: float = 0.0,
        shuffle_seed: int = 0,
        tagged: bool = False,
        context: int | None = None,
    ) -> None:
        self.concurrency, self._tagged, self._context = concurrency, tagged, context
        self._reply = reply
        self._latency_s = latency_s
        self._random = random.Random(shuffle_seed)
        self._waiting: list[tuple[float, Request]] = []

    def submit(self, request: Request) -> None:
        self._waiting.append((time.monotonic() + self._latency_s, request))

    def poll(self) -> list[Completion]:
        if not self._waiting:
            return []
        time.sleep(max(0.0, min(due for due, _ in self._waiting) - time.monotonic()))
        now = time.monotonic()
        ready = [request for due, request in self._waiting if due <= now]
        self._waiting = [entry for entry in self._waiting if entry[0] > now]
        self._random.shuffle(ready)
        return [self._complete(request) for request in ready]

    def close(self) -> None:
        self._waiting.clear()

    def _complete(self, request: Request) -> Completion:
        length = len(request.prompt.split())
        if self._context is not None and length > self._context:
            refusal = f"a prompt of {length} words exceeds the context length of {self._context}"
            return Completion(request.id, "", FinishReason.CONTEXT, refusal=refusal)
        text, thinking = self._reply(request), request.sampling.thinks
        if self._tagged:
            text = (OPEN if thinking else ANSWER) + text
        cut = text_before_stop(text, request.stop, thinking=thinking, tagged=self._tagged)
        reason = FinishReason.EOS if cut is None else FinishReason.STOP
        words = (text if cut is None else cut).split(" ")
        if len(words) > request.sampling.most_tokens:  # each word is a token here
            words, reason = words[: request.sampling.most_tokens], FinishReason.LENGTH
        kept = " ".join(words)
        return Completion(
            id=request.id,
            text=answered(kept, thinking=thinking) if self._tagged else kept,
            finish_reason=reason,
            prompt_tokens=length,
            completion_tokens=len(words),
        )
