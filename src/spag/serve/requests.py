"""What a client may send: OpenAI's fields, those that an engine can honour. Any other field is refused by name.

A field that changes nothing at its neutral value (``presence_penalty=0``) may be sent with it. ``top_k`` and ``min_tokens`` are vLLM's.
"""

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from spag.config.base import COLDEST
from spag.core.errors import SpagError
from spag.core.jsonfile import decode
from spag.core.seeds import derive_seed
from spag.engines.base import Request, Sampling

MOST_CHOICES = 16
"""Texts that one request may ask for, over all its prompts."""
DEFAULT_CHAT_TOKENS = 256

Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class RefusedError(SpagError):
    """A request that is not taken: its status, the field at fault, and one line."""

    def __init__(self, message: str, *, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field, self.status = field, status


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class _Asked(BaseModel):
    """The fields that both kinds of request have."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    presence_penalty: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    user: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionAsked(_Asked):
    """The body of ``POST /v1/completions``. ``logprobs`` 0 asks for those of the sampled tokens; of others there are none."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)]
    logprobs: Literal[0] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def tokens(self) -> int:
        return self.max_tokens or 16  # OpenAI's default


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Return it as chat templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class _TextFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]


class ChatAsked(_Asked):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Literal[0] | None = None
    response_format: _TextFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none"] | None = None
    store: Literal[False] | None = None
    metadata: dict[str, str] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)

    @property
    def tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or DEFAULT_CHAT_TOKENS


Asked = CompletionAsked | ChatAsked


def read_request(body: bytes, kind: type[CompletionAsked] | type[ChatAsked]) -> Asked:
    """Return the request in ``body``. Raises ``RefusedError`` naming the first field at fault, ``DataError`` for what is no JSON."""
    try:
        return kind.model_validate(decode(body, "the request"), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the request"
        says = "is not supported here" if first["type"] in ("extra_forbidden", "literal_error") else str(first["msg"])
        raise RefusedError(f"{field}: {says[:1].lower()}{says[1:]}", field=field) from error


def engine_requests(asked: Asked, prompts: list[str], name: str) -> list[Request]:
    """Return a request to the engine for every choice, those of one prompt together.

    A seed decides every choice of its own; without one they are drawn anew each time. Raises ``RefusedError``.
    """
    count = asked.n or 1
    if count * len(prompts) > MOST_CHOICES:
        raise RefusedError(f"n: {count} x {len(prompts)} prompts are more than {MOST_CHOICES} texts; ask in several requests", field="n")
    temperature = 1.0 if asked.temperature is None else asked.temperature
    if 0 < temperature < COLDEST:
        raise RefusedError(f"temperature: input should be 0 (greedy) or from {COLDEST} to 2", field="temperature")
    sampling = Sampling(
        temperature=temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=max(0, asked.top_k or 0),
        max_new_tokens=asked.tokens,
        min_new_tokens=min(asked.min_tokens, asked.tokens),
        strip=False,
    )
    seed = secrets.randbits(62) if asked.seed is None else asked.seed
    return [
        Request(f"{name}-{index}", prompt, sampling, derive_seed(seed, str(index)), asked.stops)
        for index, prompt in enumerate(one for one in prompts for _ in range(count))
    ]
