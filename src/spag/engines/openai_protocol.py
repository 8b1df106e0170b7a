"""The chat-completions protocol as pure functions: the endpoint, request bodies, replies, errors and the waits that a server asks for."""

import email.utils
import ipaddress
import math
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec
import openai

from spag.engines.base import Completion, FinishReason, Request
from spag.errors import ConfigError

DEFAULT_BASE_URL = "https://api.openai.com/v1"
MAX_STOPS = 4  # of the protocol; the rest is cut here
MAX_CHARS_PER_TOKEN = 64  # a longer reply is a hostile one: its tail is thrown away
MAX_MESSAGE_CHARS = 300  # of a server's own words in an error
FIXES = {
    401: "; check OPENAI_API_KEY",
    403: "; check what OPENAI_API_KEY may use",
    404: "; check the model's name and OPENAI_BASE_URL",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. ``shown`` is ``url`` without what may be secret in it; the key is in no ``repr``."""

    url: str = field(repr=False)
    key: str = field(repr=False)
    shown: str
    is_local: bool

    @classmethod
    def from_environment(cls, base_url: str | None = None) -> Self:
        """Read the key, and the address unless ``base_url`` is given. An endpoint on this machine needs no key. Raises ``ConfigError``."""
        url = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        parts = _split(url)
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        is_local = _is_loopback(parts.hostname or "")
        key = os.environ.get("OPENAI_API_KEY", "").strip() or ("none" if is_local else "")
        if not key:
            raise ConfigError(f"OPENAI_API_KEY is not set, and {shown} needs a key: export OPENAI_API_KEY=...")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("OPENAI_API_KEY contains characters that no key has: copy it again")
        return cls(url, key, shown, is_local)

    def redact(self, text: str) -> str:
        """``text`` on one line, shortened, without the key."""
        if self.key != "none":
            text = text.replace(self.key, "***")
        line = " ".join(text.split())
        return line if len(line) <= MAX_MESSAGE_CHARS else line[:MAX_MESSAGE_CHARS] + "..."


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:  # the address may contain a password: not shown
        raise ConfigError("OPENAI_BASE_URL (or base_url) is not an address like http://localhost:8000/v1")
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def request_body(model: str, request: Request, limit_name: str) -> dict[str, Any]:
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
    return body


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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


def refuses_max_tokens(error: Exception) -> bool:
    """Whether an endpoint that got ``max_tokens`` wants ``max_completion_tokens``."""
    if not isinstance(error, openai.BadRequestError):
        return False
    return "max_completion_tokens" in error.message or (error.param == "max_tokens" and "support" in error.message)


def is_temporary(error: Exception) -> bool:
    """Whether trying again may help: timeouts, lost connections, rate limits and failures inside the server."""
    if isinstance(error, openai.APIStatusError):
        if error.code == "insufficient_quota" or error.response.headers.get("x-should-retry") == "false":
            return False
        return error.status_code in (408, 409, 429) or error.status_code >= 500
    return isinstance(error, (openai.APIConnectionError, TimeoutError))


def explain(error: Exception) -> str:
    """What went wrong in an attempt: the status and the server's own words."""
    if isinstance(error, openai.APIStatusError):
        words = error.body.get("message") if isinstance(error.body, dict) else error.body
        return f"HTTP {error.status_code}: {words or error.message}"
    if _is_unreached(error):
        return f"no connection: {error.__cause__ or error}"
    if isinstance(error, (openai.APITimeoutError, TimeoutError)):
        return "no reply in time"
    return str(error)


def _is_unreached(error: Exception) -> bool:
    """Whether no connection came about or held. aiohttp's refused connections arrive here as ``ConnectTimeout``."""
    if isinstance(error, openai.APITimeoutError):
        return isinstance(error.__cause__, httpx2.ConnectTimeout)
    return isinstance(error, openai.APIConnectionError)


def advise(error: Exception) -> str:
    """What the user can do about it, with the separator before it, or nothing."""
    if isinstance(error, openai.APIStatusError):
        return FIXES.get(error.status_code, "")
    return "; check OPENAI_BASE_URL and that the server runs" if _is_unreached(error) else ""


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
