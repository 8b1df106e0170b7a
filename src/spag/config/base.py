"""The model and the game of a run or a phase."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from spag.core.options import Section
from spag.games.base import Game
from spag.games.registry import DEFAULT, get, settings_of


class ModelConfig(Section):
    """Which model, and how it is loaded and prompted."""

    name: str = Field(
        "meta-llama/Llama-2-7b-hf",
        description="hub id, local folder, GGUF file, or smollm2-135m (the embedded model, Q4_1, dequantised)",
    )
    prompt_style: Literal["plain", "chat", "tagged"] = Field(
        "plain",
        description="plain: BOS and bare text, as the paper; chat: the model's own chat template; tagged: for base "
        "models that reason, thoughts and answer in tags",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "bfloat16",
        description="weights in play, and autocast in training; auto measures which is fastest here, once a run",
    )
    device: str | None = Field(None, description="torch device; null takes the first GPU, else the CPU")
    trust_remote_code: bool = Field(False, description="run code from the model's repository; review it first")


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
