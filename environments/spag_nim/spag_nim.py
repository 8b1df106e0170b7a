"""Nim of spag for verifiers and prime-rl: ``vf-eval spag-nim``."""

from spag.adapters.verifiers import plugin

NimEnv, NimTaskset, Speaker = plugin("nim")

__all__ = ["NimEnv", "NimTaskset", "Speaker"]
