"""``vf-eval spag-kuhn-poker``: kuhn_poker of spag as a plugin of verifiers and prime-rl (``spag.adapters.verifiers``)."""

from spag.adapters.verifiers import plugin

KuhnPokerEnv, KuhnPokerTaskset, Speaker = plugin("kuhn_poker")

__all__ = ["KuhnPokerEnv", "KuhnPokerTaskset", "Speaker"]
