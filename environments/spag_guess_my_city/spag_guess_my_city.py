"""Guess My City of spag for verifiers and prime-rl: ``vf-eval spag-guess-my-city``."""

from spag.adapters.verifiers import plugin

GuessMyCityEnv, GuessMyCityTaskset, Speaker = plugin("guess_my_city")

__all__ = ["GuessMyCityEnv", "GuessMyCityTaskset", "Speaker"]
