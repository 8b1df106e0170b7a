"""``vf-eval spag-taboo``: adversarial_taboo of spag as a plugin of verifiers and prime-rl (``spag.adapters.verifiers``)."""

from spag.adapters.verifiers import plugin

AdversarialTabooEnv, AdversarialTabooTaskset, Speaker = plugin("adversarial_taboo")

__all__ = ["AdversarialTabooEnv", "AdversarialTabooTaskset", "Speaker"]
