"""Generation with any endpoint that speaks OpenAI's chat-completions protocol: OpenAI itself, vLLM, llama.cpp's server,
a gateway.

The ``openai`` package sends, retries and parses, on an event loop in a background thread. Differs from the paper: the
prompt is one user message, never bare text. The protocol lacks ``min_new_tokens`` (an empty reply is passed on
unchanged), ``top_k`` and ``max_prompt_tokens`` (both refused). Replies carry neither token ids nor log-probabilities.
"""

import asyncio
import re
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import openai
from anyio.from_thread import start_blocking_portal

from spag.core.errors import ConfigError, EngineError
from spag.core.thinking import CLOSE, OPEN, split_thought
from spag.core.visible import counted
from spag.engines.base import Completion, Engine, FinishReason, Request, text_before_stop
from spag.engines.openai.client import attempt_limits, open_client

MAX_STOPS = 4  # limit of the protocol; the rest is cut here
MAX_CHARS_PER_TOKEN = 64  # the tail of a longer reply is dropped
MAX_MESSAGE_CHARS = 300  # of a server's message in an error
TOKENS_IN_TIME = 1024  # in the longest reply that ``timeout_s`` is enough for
FIXES = {
    401: "; check OPENAI_API_KEY",
    403: "; check what OPENAI_API_KEY may use",
    404: "; check the model's name and OPENAI_BASE_URL",
}
OPTIONAL = ("max_tokens", "stop", "temperature", "top_p")
"""Arguments that some models refuse, though they do without them."""
_NO_ROOM = re.compile(r"context (length|size)|max_tokens must be at least 1, got 0")
"""How vLLM, SGLang and llama.cpp say that a prompt leaves no room; vLLM says the second of one exactly at its limit."""


class OpenAIEngine(Engine):
    """An attempt may take ``timeout_s`` seconds, in proportion more if its reply may have more than ``TOKENS_IN_TIME``
    tokens, as those with thoughts may; it is retried ``max_retries`` times.

    Raises ``ConfigError`` if the address or the key is missing or malformed. The first request that fails for good ends
    the engine: ``poll`` returns what is finished, then raises ``EngineError``, and no queued request is sent.
    """

    def __init__(self, model: str, *, concurrency: int = 32, max_retries: int = 6, timeout_s: float = 120.0) -> None:
        self.concurrency = concurrency
        self._model, self._timeout_s = model, timeout_s
        self._client = open_client(concurrency=concurrency, max_retries=max_retries, timeout_s=timeout_s)
        self._done: SimpleQueue[Future[Completion] | None] = SimpleQueue()
        self._in_flight = 0
        self._error: BaseException | None = None
        self._closed = False
        # Used only by the event loop's thread.
        self._answered = 0
        self._gate = asyncio.Semaphore(concurrency)
        self._failed = False
        self._refused: set[str] = set()  # of OPTIONAL
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal(name="spag-openai"))

    def submit(self, request: Request) -> None:
        for name, fix in (("top_k", "top_k=0"), ("max_prompt_tokens", "published=false")):
            if given := getattr(request.sampling, name):
                lacks = f"{name} is {given}, which the chat-completions protocol does not have"
                raise ConfigError(f"{lacks}; set {fix} in the sampling of the phase or arena, as spag.sampling.{fix}")
        self._check_open()
        self._in_flight += 1
        self._portal.start_task_soon(self._complete, request).add_done_callback(self._done.put)

    def poll(self) -> list[Completion]:
        self._check_open()
        finished: list[Completion] = []
        while self._error is None and self._in_flight and not (finished and self._done.empty()):
            future = self._done.get()
            self._check_open()  # close cancels what is in flight, which wakes us
            if future is None:
                break
            self._error = future.exception()
            if self._error is None:
                self._in_flight -= 1
                finished.append(future.result())
        if self._error is not None and not finished:
            raise self._error
        return finished

    def wake(self) -> None:
        self._done.put(None)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._portal.call(self._client.close)
            self._portal.call(self._portal.stop, True)
            self._stack.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed; open a new one")

    async def _complete(self, request: Request) -> Completion:
        async with self._gate:
            if self._failed:
                raise EngineError("not sent: an earlier request failed")
            try:
                stops = request.stop and not request.sampling.thinks and "stop" not in self._refused
                completion = _read_reply(await self._ask(request), request)
                if stops and completion.finish_reason is FinishReason.THOUGHT:
                    self._refused.add("stop")  # it may have ended a thought that nobody asked for: cut here from now on
                    completion = _read_reply(await self._ask(request), request)
            except (openai.OpenAIError, ValueError) as error:
                reason = _refusal(error)
                if reason is None:
                    self._failed = True
                    raise EngineError(self._describe(error)) from None
                refusal = self._describe(error) if reason is FinishReason.CONTEXT else ""
                completion = Completion(request.id, "", reason, refusal=refusal)  # an error would end every resume
        self._answered += 1
        return completion

    async def _ask(self, request: Request) -> Any:
        """Return the raw successful response. The package retries transient failures."""
        seconds = self._timeout_s * max(1.0, request.sampling.most_tokens / TOKENS_IN_TIME)
        while True:
            answered, refused = self._answered, frozenset(self._refused)
            try:
                return await self._client.chat.completions.with_raw_response.create(
                    **_arguments(self._model, request, refused), timeout=attempt_limits(seconds)
                )
            except openai.BadRequestError as error:
                if (name := _refused_argument(error)) is None or name in refused:
                    raise
                self._refused.add(name)
            except openai.RateLimitError as error:
                # If others get through under a rate limit, it is slow, not dead: restart the count.
                if _retries_taken(error) < self._client.max_retries or self._answered == answered:
                    raise

    def _describe(self, error: openai.OpenAIError | ValueError) -> str:
        """Return the failure and the fix on one line, without the key."""
        what, fix = str(error), ""
        if isinstance(error, openai.APIStatusError):
            what, fix = f"HTTP {error.status_code}: {_words(error)}", FIXES.get(error.status_code, "")
            if error.param in ("temperature", "top_p"):
                fix = f"; set {error.param}=1 in the sampling of the phase or arena, as spag.sampling.{error.param}=1"
            if asked := error.response.headers.get("retry-after"):
                fix += f" (it asks to wait {f'{asked} s' if asked[0].isdigit() else f'until {asked}'})"
        elif isinstance(error, openai.APIConnectionError):
            what, fix = str(error.__cause__ or error), "; check OPENAI_BASE_URL and that the server runs"
        if self._client.api_key != "none":
            what = what.replace(self._client.api_key, "***")
        line = " ".join(f"{str(self._client.base_url).rstrip('/')}, model {self._model}: {what}".split())
        line = line if len(line) <= MAX_MESSAGE_CHARS else line[:MAX_MESSAGE_CHARS] + "..."
        retries = _retries_taken(error) if isinstance(error, openai.APIError) else 0
        return line + f" (after {counted(retries + 1, 'attempt')})" * (retries > 0) + fix


def _refusal(error: openai.OpenAIError | ValueError) -> FinishReason | None:
    """Return the reason of a reply that is empty because the server refuses this prompt; ``None`` for other errors."""
    if not isinstance(error, openai.BadRequestError):
        return None
    if error.code == "content_filter":  # Azure's
        return FinishReason.STOP
    is_context = error.code == "context_length_exceeded" or _NO_ROOM.search(_words(error))
    return FinishReason.CONTEXT if is_context else None


def _refused_argument(error: openai.BadRequestError) -> str | None:
    """Return which of ``OPTIONAL`` the model refuses; ``None`` for other errors."""
    if "max_completion_tokens" in error.message:
        return "max_tokens"
    return error.param if error.param in OPTIONAL and "support" in error.message else None


def _arguments(model: str, request: Request, refused: Collection[str]) -> dict[str, Any]:
    """Return the arguments, without the ``refused`` ones as far as replies stay the same."""
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": request.prompt}],
        "max_completion_tokens" if "max_tokens" in refused else "max_tokens": sampling.most_tokens,
        "seed": request.seed & 0x7FFF_FFFF,  # some servers keep 32 bits, and read -1 as "any"
        "n": 1,
    }
    for name, value in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        if name not in refused or value != 1:
            arguments[name] = value
    stop = () if sampling.thinks else request.stop[:MAX_STOPS]  # a thought may contain one: cut here
    return arguments | ({"stop": stop} if stop and "stop" not in refused else {})


def _read_reply(response: Any, request: Request) -> Completion:
    """Return the completion in a raw response. Raises ``ValueError`` for anything but a chat completion."""
    try:
        reply = response.parse()
        choice, usage = reply.choices[0], reply.usage
        # Gemini's endpoint at times omits counts, and the message of a reply that it cut or filtered.
        text = "" if choice.message is None and choice.finish_reason else choice.message.content or ""
        tokens = (getattr(usage, "prompt_tokens", None) or 0, getattr(usage, "completion_tokens", None) or 0)
        is_valid = isinstance(text, str) and min(tokens) >= 0
    except (AttributeError, IndexError, TypeError, ValueError, RecursionError):  # the package checks nothing
        is_valid = False
    if not is_valid:
        raise ValueError(f"the reply is not a chat completion: {response.text}")
    thinking, is_cut = request.sampling.thinks, False
    text = _with_thought(choice, text)
    if not thinking:  # the endpoint decides whether its model thinks; a thought is never said
        _, said, is_cut = split_thought(text)
        text = said.lstrip() if CLOSE in text else said
    kept = text[: MAX_CHARS_PER_TOKEN * request.sampling.most_tokens]
    kept = kept.encode(errors="replace").decode()  # half a character, as JSON may hold, could not be stored
    if is_cut:
        reason = FinishReason.THOUGHT
    elif (cut := text_before_stop(kept, request.stop, thinking=thinking)) is not None:
        kept, reason = cut, FinishReason.STOP
    elif choice.finish_reason == "length" or len(text) > len(kept):
        reason = FinishReason.LENGTH
    elif choice.finish_reason == "content_filter" or isinstance(getattr(choice, "stop_reason", None), str):
        reason = FinishReason.STOP  # vLLM's stop_reason is the stop string
    else:
        reason = FinishReason.EOS
    return Completion(request.id, kept, reason, *tokens)


def _with_thought(choice: Any, text: str) -> str:
    """Return a reply with its thought between marks, even if the server has moved it out of the text."""
    fields = (getattr(choice.message, name, None) for name in ("reasoning_content", "reasoning"))  # vLLM's, DeepSeek's
    thought = next((field for field in fields if field and isinstance(field, str)), "")
    if not text and (thought or choice.finish_reason == "length"):
        return OPEN + thought  # cut; OpenAI's own models do not show it
    return f"{OPEN}{thought}{CLOSE}{text}" if thought else text


def _retries_taken(error: openai.APIError) -> int:
    return int(error.request.headers.get("x-stainless-retry-count", 0))


def _words(error: openai.APIStatusError) -> str:
    """Return the server's message."""
    said = error.body.get("message") if isinstance(error.body, dict) else error.body
    return said if isinstance(said, str) and said else error.response.text.strip() or "no reason given"
