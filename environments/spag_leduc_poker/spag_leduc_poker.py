"""Leduc poker of spag for verifiers and prime-rl: ``vf-eval spag-leduc-poker``."""

from spag.adapters.verifiers import plugin

LeducPokerEnv, LeducPokerTaskset, Speaker = plugin("leduc_poker")

__all__ = ["LeducPokerEnv", "LeducPokerTaskset", "Speaker"]
