"""Generates with any endpoint that speaks OpenAI's chat-completions protocol: OpenAI itself, vLLM, llama.cpp's server, a gateway.

Address and key come from ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``. Requests run on an asyncio loop in one background thread, over
aiohttp: the ``openai`` package takes several times the CPU time, reads no ``x-ratelimit-*`` headers, lets every request find out about a
rate limit for itself, and counts nothing.

Differs from the paper: the prompt is one user message, never bare text. The protocol has no ``min_new_tokens`` (an empty reply is passed on
as it is) and no ``top_k`` (refused). Replies carry no token ids and no log-probabilities.
"""

import asyncio
import contextlib
import random
import threading

import aiohttp

from spag.core.errors import ConfigError, EngineError
from spag.engines.base import Completion, Request
from spag.engines.openai.endpoint import Endpoint
from spag.engines.openai.protocol import (
    Backoff,
    StatusError,
    advise,
    explain,
    is_temporary,
    read_reply,
    refuses_max_tokens,
    request_body,
    wait_asked,
)
from spag.engines.pricing import Price, Usage


class OpenAIEngine:
    """Satisfies ``spag.engines.base.Engine``. An attempt may take ``timeout_s`` seconds; ``max_retries`` more may follow.

    Raises ``ConfigError`` when the address or the key is missing or malformed. The first request that fails for good ends the engine:
    ``poll`` hands out what is finished, then raises ``EngineError``, and no queued request is sent.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        concurrency: int = 32,
        max_retries: int = 6,
        timeout_s: float = 120.0,
        price: Price | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; give 1 or more")
        self.concurrency = concurrency
        self._model = model
        self._endpoint = Endpoint.from_environment(base_url)
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._price = price
        self._backoff = backoff or Backoff()
        # Shared by the caller's thread and the loop's, under _changed.
        self._changed = threading.Condition()
        self._finished: list[Completion] = []
        self._in_flight = 0
        self._failure: str | None = None
        self._closed = False
        self._usage = Usage(cost_usd=None if price is None else 0.0)
        # Touched by the loop's thread alone.
        self._limit_name = "max_tokens"
        self._resume_at = 0.0  # on the loop's clock: the server asked for silence until then
        self._queue: asyncio.Queue[Request] = asyncio.Queue()
        self._stop = asyncio.Event()
        self._url, self._proxy = self._endpoint.completions_url, self._endpoint.proxy
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="spag-openai", daemon=True)
        self._thread.start()

    @property
    def usage(self) -> Usage:
        """Requests, retries, tokens and cost so far."""
        return self._usage

    def submit(self, request: Request) -> None:
        if request.sampling.top_k:
            raise ConfigError(f"top_k is {request.sampling.top_k}, which the chat-completions protocol does not have; set top_k to 0")
        with self._changed:
            if self._closed:
                raise EngineError("the engine is closed; open a new one")
            self._in_flight += 1
            if self._failure is None:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, request)

    def poll(self) -> list[Completion]:
        with self._changed:
            while self._in_flight and not self._finished and self._failure is None and not self._closed:
                self._changed.wait()
            if self._closed:
                raise EngineError("the engine is closed; open a new one")
            if self._failure is not None and not self._finished:
                raise EngineError(self._failure)
            finished, self._finished = self._finished, []
            self._in_flight -= len(finished)
            return finished

    def close(self) -> None:
        with self._changed:
            self._closed = True
        with contextlib.suppress(RuntimeError):  # the loop has ended already; its end wakes a waiting poll
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with self._runner:
            try:
                self._runner.run(self._serve())
            finally:  # whatever ended it, poll must not wait for ever
                self._fail("the engine's thread has ended; its traceback is on standard error")

    async def _serve(self) -> None:
        async with self._open_session() as session, asyncio.TaskGroup() as group:
            workers = [group.create_task(self._work(session)) for _ in range(self.concurrency)]
            await self._stop.wait()
            for worker in workers:
                worker.cancel()

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self.concurrency),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._endpoint.headers,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            proxy=self._proxy,  # not trust_env: that reads the environment and ~/.netrc again for each request
        )

    async def _work(self, session: aiohttp.ClientSession) -> None:
        while True:
            request = await self._queue.get()
            if self._failure is not None:
                continue
            try:
                self._finish(self._read(request, await self._ask(session, request)))
            except EngineError as error:
                self._fail(str(error))

    async def _ask(self, session: aiohttp.ClientSession, request: Request) -> bytes:
        """The body of a successful reply. Raises ``EngineError`` on a final error, and on a temporary one after ``max_retries`` retries."""
        failures = retries = 0
        answered = self._usage.requests
        while True:
            while (pause_s := self._resume_at - self._loop.time()) > 0:
                await asyncio.sleep(pause_s * random.uniform(1.0, 1.1))
            limit_name = self._limit_name
            try:
                return await self._attempt(session, request_body(self._model, request, limit_name))
            except (StatusError, TimeoutError, aiohttp.ClientError) as error:
                if limit_name == "max_tokens" and refuses_max_tokens(error):
                    self._limit_name = "max_completion_tokens"
                    continue
                # A rate limit under which others get through is slow, not dead: start counting again.
                if isinstance(error, StatusError) and error.status == 429 and self._usage.requests > answered:
                    failures, answered = 0, self._usage.requests
                failures += 1
                asked_s = wait_asked(error.headers) if isinstance(error, StatusError) else 0.0
                if failures > self._max_retries or asked_s > self._backoff.longest_asked_s or not is_temporary(error):
                    details = f" (after {retries} retries)" * (retries > 0) + f" (it asks to wait {asked_s:.0f} s)" * (asked_s > 0)
                    raise EngineError(self._describe(explain(error)) + details + advise(error)) from None
            retries += 1
            self._count(retries=1)
            self._hold(asked_s)
            await asyncio.sleep(self._backoff.wait_s(retries))

    async def _attempt(self, session: aiohttp.ClientSession, body: bytes) -> bytes:
        """The body of a successful reply."""
        async with session.post(self._url, data=body) as response:
            reply = await response.read()
        if response.status >= 300:
            raise StatusError(response.status, response.headers, reply)
        self._hold(wait_asked(response.headers))
        return reply

    def _read(self, request: Request, body: bytes) -> Completion:
        try:
            return read_reply(body, request, needs_usage=self._price is not None)
        except ValueError as error:
            raise EngineError(self._describe(str(error))) from None

    def _hold(self, seconds: float) -> None:
        """Let no request go out for that long: a rate limit concerns them all."""
        if 0 < seconds <= self._backoff.longest_asked_s:
            self._resume_at = max(self._resume_at, self._loop.time() + seconds)

    def _finish(self, completion: Completion) -> None:
        self._count(requests=1, prompt_tokens=completion.prompt_tokens, completion_tokens=completion.completion_tokens)
        with self._changed:
            self._finished.append(completion)
            self._changed.notify()

    def _fail(self, message: str) -> None:
        with self._changed:
            self._failure = self._failure or message
            self._changed.notify_all()

    def _count(self, *, requests: int = 0, retries: int = 0, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        usage = self._usage
        prompt_tokens += usage.prompt_tokens
        completion_tokens += usage.completion_tokens
        cost_usd = self._price.cost_usd(prompt_tokens, completion_tokens) if self._price else None
        self._usage = Usage(usage.requests + requests, usage.retries + retries, prompt_tokens, completion_tokens, cost_usd)

    def _describe(self, what: str) -> str:
        return self._endpoint.redact(f"{self._endpoint.shown}, model {self._model}: {what}")
