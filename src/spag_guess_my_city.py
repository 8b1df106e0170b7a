"""``vf-eval spag-guess-my-city``: guess_my_city of spag as a plugin of verifiers and prime-rl (``spag.adapters.verifiers``)."""

from spag.adapters.verifiers import plugin

GuessMyCityEnv, GuessMyCityTaskset, Speaker = plugin("guess_my_city")

__all__ = ["GuessMyCityEnv", "GuessMyCityTaskset", "Speaker"]
