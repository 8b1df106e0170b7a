"""Client requests: those of OpenAI's fields that an engine supports. Any other field is refused by name.

A field with a neutral value (``presence_penalty=0``) may be sent with that value; any field may be null. ``top_k`` and
``min_tokens`` are vLLM's.
"""

import secrets
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from spag.core.errors import SpagError
from spag.core.options import LARGEST, MIN_TEMPERATURE, SamplingConfig
from spag.core.seeds import derive_seed
from spag.engines.base import Request
from spag.storage.jsonfile import decode

MOST_CHOICES = 16
"""Most texts per request, over all its prompts."""
NO_ROOM = "context_length_exceeded"
"""OpenAI's code for a prompt that leaves no room for the reply."""
NEUTRAL: dict[str, Any] = {
    **{"presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}, "echo": False, "best_of": 1, "suffix": ""},
    **{"top_logprobs": 0, "tools": [], "response_format": {"type": "text"}, "store": False},
}
"""Unsupported fields, and their neutral values."""
LABELS = {"user", "metadata"}
"""Fields about the client; they are ignored."""

OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""Validator of a list of texts: a single text may be sent instead."""
Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class RefusedError(SpagError):
    """A refused request: its status, the field at fault, the protocol's code for the fault, and one line."""

    def __init__(self, message: str, *, field: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.field, self.status, self.code = field, status, code


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class StreamOptions(_Fields):
    """Options of what a stream reports at its end."""

    include_usage: bool = False


class _Asked(_Fields):
    """The fields shared by both kinds of request."""

    model: str
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31)
    max_tokens: int = Field(16, ge=1)  # OpenAI's default
    min_tokens: int = Field(0, ge=0)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stop: Annotated[list[Stop], Field(max_length=4), OneOrMore] = []
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class CompletionAsked(_Asked):
    """The body of ``POST /v1/completions``. ``logprobs`` 0 requests those of sampled tokens; others have none."""

    prompt: Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES), OneOrMore]
    logprobs: Literal[0] | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _none_for_false(cls, value: Any) -> Any:
        """``False`` is 0 to Python."""
        return None if value is False else value

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None


class _Part(_Fields):
    type: Literal["text"]
    text: str


Parts = BeforeValidator(lambda value: [{"type": "text", "text": value}] if isinstance(value, str) else value)
"""Validator of a list of parts: plain text may be sent instead."""


class Message(_Fields):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[_Part], Parts]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_replied(cls, data: Any) -> Any:
        """Accept a reply as this server sent it: drop its empty fields, and its thought, which no prompt repeats."""
        if not isinstance(data, dict) or data.get("role") != "assistant":
            return data
        empty: tuple[Any, ...] = (None, [])  # vLLM sends "tool_calls": []
        given = {name: value for name, value in data.items() if value not in empty and name != "reasoning_content"}
        return {"content": "", **given}

    def plain(self) -> dict[str, str]:
        """Return the message in the form for chat templates."""
        text = "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class TemplateOptions(_Fields):
    """Arguments of a conversation's template: vLLM's ``chat_template_kwargs``."""

    enable_thinking: bool = False


class ChatAsked(_Asked):
    """The body of ``POST /v1/chat/completions``. ``max_tokens`` includes a thought."""

    messages: list[Message] = Field(min_length=1, max_length=1000)
    max_tokens: int = Field(256, ge=1, validation_alias=AliasChoices("max_completion_tokens", "max_tokens"))
    logprobs: bool = False
    tool_choice: Literal["auto", "none"] = "none"  # no effect without tools, which are refused
    chat_template_kwargs: TemplateOptions = TemplateOptions()

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, data: Any) -> Any:
        """``max_tokens`` is the older name of ``max_completion_tokens``; clients may send both."""
        if isinstance(data, dict) and "max_completion_tokens" in data:
            return {name: value for name, value in data.items() if name != "max_tokens"}
        return data

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs

    @property
    def thinking(self) -> bool:
        return self.chat_template_kwargs.enable_thinking


Asked = CompletionAsked | ChatAsked


def read_request(body: bytes, kind: type[Asked]) -> Asked:
    """Return the request in ``body``. Raises ``RefusedError`` for the first wrong field, ``DataError`` for no JSON."""
    sent = decode(body, "the request")
    if isinstance(sent, dict):
        sent = {
            name: value for name, value in sent.items()
            if name not in LABELS and value is not None and not (name in NEUTRAL and value == NEUTRAL[name])
        }  # fmt: skip
    try:
        return kind.model_validate(sent)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the request"
        says = "is not supported here" if first["type"] in ("extra_forbidden", "literal_error") else str(first["msg"])
        raise RefusedError(f"{field}: {says[:1].lower()}{says[1:]}", field=field) from error


def engine_requests(asked: Asked, prompts: list[str], most: int, name: str) -> list[Request]:
    """Return a request to the engine for every choice, of at most ``most`` tokens, grouped by prompt; without a seed,
    they differ every time.
    """
    if asked.n * len(prompts) > MOST_CHOICES:
        says = f"{asked.n} x {len(prompts)} prompts are more than {MOST_CHOICES} texts; ask in several requests"
        raise RefusedError(f"n: {says}", field="n")
    if 0 < asked.temperature < MIN_TEMPERATURE:
        says = f"input should be 0 (greedy) or from {MIN_TEMPERATURE} to 2"
        raise RefusedError(f"temperature: {says}", field="temperature")
    sampling = SamplingConfig(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=min(max(0, asked.top_k), LARGEST),
        max_new_tokens=most,
        min_new_tokens=min(asked.min_tokens, most),
    )
    seed = secrets.randbits(62) if asked.seed is None else asked.seed
    return [
        Request(f"{name}-{index}", prompt, sampling, derive_seed(seed, str(index)), tuple(asked.stop))
        for index, prompt in enumerate(prompt for prompt in prompts for _ in range(asked.n))
    ]
