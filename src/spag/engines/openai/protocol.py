"""The chat-completions protocol as pure functions: request bodies, replies, errors and the waits that a server asks for."""

import email.utils
import math
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
import msgspec

from spag.engines.base import Completion, FinishReason, Request

MAX_STOPS = 4  # of the protocol; the rest is cut here
MAX_CHARS_PER_TOKEN = 64  # a longer reply is a hostile one: its tail is thrown away
FIXES = {
    401: "; check OPENAI_API_KEY",
    403: "; check what OPENAI_API_KEY may use",
    404: "; check the model's name and OPENAI_BASE_URL",
}


def request_body(model: str, request: Request, limit_name: str) -> bytes:
    """The JSON to send. ``limit_name`` is ``max_tokens`` or ``max_completion_tokens``: endpoints differ."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": request.prompt}],
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        limit_name: request.sampling.max_new_tokens,
        "seed": request.seed & 0x7FFF_FFFF,  # some servers keep 32 bits, and read -1 as "any"
        "n": 1,
    }
    if request.stop:
        body["stop"] = request.stop[:MAX_STOPS]
    return msgspec.json.encode(body)


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    stop_reason: Any = None
    """Of vLLM: the stop string that ended the text."""


class _Tokens(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)]


class _Reply(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Tokens | None = None


_REPLY_DECODER = msgspec.json.Decoder(_Reply)


def read_reply(body: bytes, request: Request, *, needs_usage: bool = False) -> Completion:
    """The completion in a reply. Token counts are 0 where the server tells none. Raises ``ValueError`` on anything but a chat completion,
    and on one without token counts when ``needs_usage``."""
    try:
        reply = _REPLY_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the reply is not a chat completion ({error}): {body[:8192].decode(errors='replace')}") from None
    if needs_usage and reply.usage is None:
        raise ValueError("the reply has no usage, so that its cost cannot be counted: set no price")
    choice, tokens = reply.choices[0], reply.usage or _Tokens(0, 0)
    text = choice.message.content or ""
    longest = MAX_CHARS_PER_TOKEN * request.sampling.max_new_tokens
    kept = text[:longest]
    cuts = [at for stop in request.stop if (at := kept.find(stop)) >= 0]
    if cuts:
        kept, reason = kept[: min(cuts)], FinishReason.STOP
    elif choice.finish_reason == "length" or len(text) > longest:
        reason = FinishReason.LENGTH
    elif choice.finish_reason == "content_filter" or isinstance(choice.stop_reason, str):
        reason = FinishReason.STOP
    else:
        reason = FinishReason.EOS
    return Completion(request.id, kept.strip(), reason, tokens.prompt_tokens, tokens.completion_tokens)


class StatusError(Exception):
    """A reply that is not a success. ``words``, ``code`` and ``param`` are the server's own."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers = status, headers
        text = body.decode(errors="replace")
        try:
            found = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            found = None
        found = found.get("error", found) if isinstance(found, dict) else found
        fields = found if isinstance(found, dict) else {"message": found}
        self.words = str(fields.get("message") or text.strip() or "no reason given")
        self.code, self.param = fields.get("code"), fields.get("param")
        super().__init__(f"HTTP {status}: {self.words}")


Trouble = StatusError | TimeoutError | aiohttp.ClientError
"""All that can go wrong in an attempt."""


def refuses_max_tokens(error: Trouble) -> bool:
    """Whether an endpoint that got ``max_tokens`` wants ``max_completion_tokens``."""
    if not isinstance(error, StatusError) or error.status != 400:
        return False
    return "max_completion_tokens" in error.words or (error.param == "max_tokens" and "support" in error.words)


def is_temporary(error: Trouble) -> bool:
    """Whether trying again may help: timeouts, lost connections, rate limits and failures inside the server."""
    if not isinstance(error, StatusError):
        return True
    if error.code == "insufficient_quota" or error.headers.get("x-should-retry") == "false":
        return False
    return error.status in (408, 409, 429) or error.status >= 500


def explain(error: Trouble) -> str:
    """What went wrong in an attempt: the status and the server's own words."""
    if isinstance(error, StatusError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no reply in time"
    # The text of aiohttp's own reading errors has the whole address in it.
    return f"no connection: {(error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)) or type(error).__name__}"


def advise(error: Trouble) -> str:
    """What the user can do about it, with the separator before it, or nothing."""
    if isinstance(error, StatusError):
        return FIXES.get(error.status, "")
    return "" if isinstance(error, TimeoutError) else "; check OPENAI_BASE_URL and that the server runs"


def wait_asked(headers: Mapping[str, str]) -> float:
    """Seconds for which the server asks to be left alone, 0 for none: ``retry-after-ms``, ``retry-after`` (seconds or a date), or the time
    until an exhausted request allowance returns (``x-ratelimit-reset-requests``)."""
    if (milliseconds := _number(headers.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    if after := headers.get("retry-after"):
        seconds = _number(after)
        return _seconds_until(after) if seconds is None else seconds
    if headers.get("x-ratelimit-remaining-requests") == "0":
        return _duration(headers.get("x-ratelimit-reset-requests", ""))
    return 0.0


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _seconds_until(date: str) -> float:
    try:
        return max(0.0, email.utils.parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return 0.0


_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(text: str) -> float:
    """Seconds in ``6m0s``, ``20ms``, ``1h2m3.5s`` or a bare ``12``; 0 for anything else."""
    if (seconds := _number(text)) is not None:
        return seconds
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait before trying again: ``first_s``, doubled with each retry up to ``longest_s``, then cut by up to a half at random so
    that requests which failed together come back apart. A server that asks for more than ``longest_asked_s`` has failed."""

    first_s: float = 1.0
    longest_s: float = 60.0
    longest_asked_s: float = 600.0

    def wait_s(self, retry: int) -> float:
        """The wait before the ``retry``-th retry, which counts from 1."""
        return min(self.first_s * 2.0 ** min(retry - 1, 30), self.longest_s) * random.uniform(0.5, 1.0)
