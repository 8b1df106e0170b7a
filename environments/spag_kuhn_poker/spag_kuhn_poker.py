"""Kuhn poker of spag for verifiers and prime-rl: ``vf-eval spag-kuhn-poker``."""

from spag.adapters.verifiers import plugin

KuhnPokerEnv, KuhnPokerTaskset, Speaker = plugin("kuhn_poker")

__all__ = ["KuhnPokerEnv", "KuhnPokerTaskset", "Speaker"]
