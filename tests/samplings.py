"""Sampling of a player, in short."""

from typing import Any

from spag.core.options import SamplingConfig, ThinkingConfig


def sampling_with(temperature: float = 1.2, *, thought_tokens: int = 0, **more: Any) -> SamplingConfig:
    """Return how to sample; with ``thought_tokens``, after a thought of at most as many tokens."""
    thinking = ThinkingConfig(enabled=True, max_tokens=thought_tokens) if thought_tokens else ThinkingConfig()
    return SamplingConfig(temperature=temperature, thinking=thinking, **more)
