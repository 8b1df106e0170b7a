"""What several sections of the options share: the model, the game, sampling, and opponents by name."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from spag.games.base import Game
from spag.games.registry import DEFAULT, get, settings_of

LARGEST = 10**9
"""No option takes a larger number: far above what any machine has, and small enough for every sum that is made of several."""
Count = Annotated[int, Field(gt=0, le=LARGEST)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST)]
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
HOTTEST = 100.0
COLDEST = 0.01
"""Temperatures above 0 divide logits; far below this, the quotients leave the range of float32."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    name: str = Field("meta-llama/Llama-2-7b-hf", description="hub id, local folder, GGUF file, or smollm2-135m (the embedded model)")
    prompt_style: Literal["plain", "chat"] = Field(
        "plain", description="plain: BOS and bare text, as the paper; chat: the model's own chat template"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "bfloat16", description="weights while playing, and autocast while training; auto measures which is fastest here, once a run"
    )
    device: str | None = Field(None, description="torch device; null takes the first GPU, else the CPU")
    trust_remote_code: bool = Field(False, description="run code that the model's repository brings; review it first")


class GameConfig(BaseModel):
    """The game by name, and its settings: the fields of the game's class, which ``spag.games.registry`` checks."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(DEFAULT, description="the game that is played; spag games lists them")

    @model_validator(mode="before")
    @classmethod
    def _with_settings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        name = data.get("name", DEFAULT)
        if not isinstance(name, str) or not all(isinstance(key, str) for key in data):
            raise PydanticCustomError("game", "a game has a name and settings by name; spag games lists the games")
        game = get(name, **{key: value for key, value in data.items() if key != "name"})
        return {"name": name, **settings_of(game)}

    def build(self) -> Game:
        """Return the game."""
        return get(self.name, **(self.model_extra or {}))


def _check_temperature(value: float) -> float:
    """Return ``value``. Raises ``PydanticCustomError`` for a temperature that is neither 0 nor one that can be divided by."""
    if value and not COLDEST <= value <= HOTTEST:
        told = {"coldest": COLDEST, "hottest": HOTTEST}
        raise PydanticCustomError("temperature", "input should be 0 (greedy) or from {coldest} to {hottest}", told)
    return value


Temperature = Annotated[NonNegative, AfterValidator(_check_temperature)]


class SamplingConfig(Section):
    temperature: Temperature = Field(1.2, description="0 is greedy (the paper's testing mode)")
    top_p: Fraction = Field(1.0, description="nucleus sampling; 1 switches it off")
    top_k: CountOrZero = Field(0, description="keep the k most likely tokens; 0 switches it off")
    max_new_tokens: Count = Field(256, description="longest utterance, in tokens")
    min_new_tokens: CountOrZero = Field(2, description="shortest utterance, in tokens; models emit empty utterances otherwise")
    max_prompt_tokens: CountOrZero = Field(
        0, description="longest prompt, in tokens; a longer one loses its beginning, the rules, as in the published code; 0 keeps it whole"
    )
    strip: bool = Field(True, description="drop white space around an utterance; false keeps it in the history, as the published code")
    empty_retries: CountOrZero = Field(2, description="how often an empty utterance is sampled again; never when greedy")


def check_opponents(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ``PydanticCustomError`` for a name that is neither ``known`` nor a model's."""
    for name in names:
        if name not in known and not set(name) & {"/", ":"}:  # a model's name has one of them
            told = {"name": name, "known": f"{', '.join(known)}, or a model: ORG/NAME, ./FOLDER, openai:MODEL, bot:NAME"}
            raise PydanticCustomError("opponent", "there is no opponent {name} (known: {known})", told)
