"""``vf-eval spag-twenty-questions``: twenty_questions of spag as a plugin of verifiers and prime-rl (``spag.adapters.verifiers``)."""

from spag.adapters.verifiers import plugin

TwentyQuestionsEnv, TwentyQuestionsTaskset, Speaker = plugin("twenty_questions")

__all__ = ["Speaker", "TwentyQuestionsEnv", "TwentyQuestionsTaskset"]
