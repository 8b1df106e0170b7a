"""The cost of requests to a paid endpoint, at prices given by the user: they change and differ by contract."""

Price = tuple[float, float]
"""US dollars per million prompt tokens, and per million completion tokens."""


def cost_usd(price: Price, prompt_tokens: float, completion_tokens: float) -> float:
    """Return the cost of these tokens in US dollars."""
    return (prompt_tokens * price[0] + completion_tokens * price[1]) / 1e6
