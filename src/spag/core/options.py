"""The base class of every section of options, and the types of their values. Imports no torch."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

LARGEST = 10**9
"""Upper bound of every integer option: far above any machine's limits, and small enough that sums cannot overflow."""
Count = Annotated[int, Field(gt=0, le=LARGEST)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
_LONGEST_NAME = 255  # bytes, of a file or a folder


def _check_name(text: str) -> str:
    if any(len(name.encode(errors="replace")) > _LONGEST_NAME for name in text.split("/")):
        raise PydanticCustomError("file_name", "input holds a name of more than {most} bytes", {"most": _LONGEST_NAME})
    return text


FileName = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "format": "path"})]
"""Text that names a file, as its schema says; unlike a ``Path``, it stays as it was written."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
"""Temperatures above 0 divide logits; far below this, the quotients leave the range of float32."""
NO_NUMBER = "input should be a number, not true or false"


def shown(value: Any) -> str:
    """Return a value as shown in errors: on one line, of at most 80 characters."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def fault_of(error: ErrorDetails) -> str:
    """Return what one of pydantic's errors says, and the value: ``input should be a valid integer, got 'x'``."""
    message = error["msg"].removeprefix("Value error, ").rstrip(", ")  # as an assertion without a text leaves it
    return f"{message[:1].lower()}{message[1:]}, got {shown(error['input'])}"


def is_no_number(value: Any, wanted: Any) -> bool:
    """Whether ``value`` is or holds true or false where the type ``wanted`` has numbers. pydantic takes them as 1 and
    0, and refuses them only together with numbers written as text, which YAML 1.1 makes of 5e-6.
    """
    if not holds_bool(value):
        return False
    types = list(_plain_types(wanted))
    return (int in types or float in types) and bool not in types and Any not in types


def holds_bool(value: Any) -> bool:
    """Whether ``value`` is true or false, or a mapping or list with one of them inside."""
    if isinstance(value, dict | list | tuple):
        return any(map(holds_bool, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool)


def _plain_types(wanted: Any) -> Iterator[Any]:
    """Yield the types inside an annotation. A section checks its own values, so it counts as ``Any``."""
    if get_origin(wanted) is Annotated:
        yield from _plain_types(get_args(wanted)[0])
    elif get_origin(wanted) is not Literal and get_args(wanted):
        yield from (found for kind in get_args(wanted) for found in _plain_types(kind))
    else:
        yield Any if isinstance(wanted, type) and issubclass(wanted, BaseModel) else wanted


class Section(BaseModel):
    """A group of options: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        if is_no_number(value, cls.model_fields[str(info.field_name)].annotation):
            raise PydanticCustomError("number", NO_NUMBER)
        return value


def _check_temperature(value: float) -> float:
    """Return ``value``. Raises ``PydanticCustomError`` unless a temperature is 0 or large enough to divide by."""
    if value and not MIN_TEMPERATURE <= value <= MAX_TEMPERATURE:
        limits = {"least": MIN_TEMPERATURE, "most": MAX_TEMPERATURE}
        raise PydanticCustomError("temperature", "input should be 0 (greedy) or from {least} to {most}", limits)
    return value


Temperature = Annotated[float, Field(ge=0.0), AfterValidator(_check_temperature)]


class ThinkingConfig(Section):
    """Private reasoning before each utterance."""

    enabled: bool = Field(False, description="players reason in private first; chat templates get enable_thinking")
    max_tokens: Count = Field(
        1024,
        description="longest thought, in tokens, tags included; a longer one is cut, and the utterance is then empty: "
        "the turn is lost, and in a game of moves this is an illegal move",
    )


class SamplingConfig(Section):
    """How a player samples. Tokens of an unclosed thought count for ``min_new_tokens`` too, with vLLM those of any."""

    temperature: Temperature = Field(1.2, description="0 is greedy (the paper's testing mode)")
    top_p: Fraction = Field(1.0, description="nucleus sampling; 1 disables it")
    top_k: CountOrZero = Field(0, description="keep the k most likely tokens; 0 disables it")
    max_new_tokens: Count = Field(256, description="longest utterance, in tokens")
    min_new_tokens: CountOrZero = Field(2, description="shortest utterance, in tokens; below 2, some are empty")
    thinking: ThinkingConfig = Field(default_factory=ThinkingConfig, description="private reasoning before speech")
    published: bool = Field(
        False,
        description="treat texts as the published code does: white space around an utterance stays in the history, an "
        "empty utterance is kept (else, outside online phases, it is sampled again, twice at most), and a prompt of "
        "more than 2,048 tokens loses its beginning",
    )

    @property
    def thinks(self) -> bool:
        """Whether a thought may come before the utterance."""
        return self.thinking.enabled

    @property
    def thought_tokens(self) -> int:
        """The longest thought, in tokens; 0 switches thinking off."""
        return self.thinking.max_tokens if self.thinking.enabled else 0

    @property
    def most_tokens(self) -> int:
        """The longest reply, in tokens: thought and utterance."""
        return self.thought_tokens + self.max_new_tokens

    @property
    def empty_retries(self) -> int:
        """How often an empty utterance is sampled again."""
        return 0 if self.published else 2

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt, in tokens; 0 keeps all of it."""
        return 2048 if self.published else 0
