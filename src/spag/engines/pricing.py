"""The cost of requests to a paid endpoint, at prices given by the user: they change and differ by contract."""

from dataclasses import dataclass

from spag.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million prompt tokens (``input_usd``) and per million completion tokens (``output_usd``)."""

    input_usd: float
    output_usd: float

    def __post_init__(self) -> None:
        for name in ("input_usd", "output_usd"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"price: {name} is {getattr(self, name)}; give US dollars per million tokens, 0 or more"
                )

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the cost of these tokens in US dollars."""
        return (prompt_tokens * self.input_usd + completion_tokens * self.output_usd) / 1e6
