"""Twenty Questions of spag for verifiers and prime-rl: ``vf-eval spag-twenty-questions``."""

from spag.adapters.verifiers import plugin

TwentyQuestionsEnv, TwentyQuestionsTaskset, Speaker = plugin("twenty_questions")

__all__ = ["Speaker", "TwentyQuestionsEnv", "TwentyQuestionsTaskset"]
