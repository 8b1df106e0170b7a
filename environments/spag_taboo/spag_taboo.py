"""Adversarial Taboo of spag for verifiers and prime-rl: ``vf-eval spag-taboo``."""

from spag.adapters.verifiers import plugin

AdversarialTabooEnv, AdversarialTabooTaskset, Speaker = plugin("adversarial_taboo")

__all__ = ["AdversarialTabooEnv", "AdversarialTabooTaskset", "Speaker"]
