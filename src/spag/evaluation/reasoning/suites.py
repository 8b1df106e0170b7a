"""Suites: the benchmarks of a paper, by lm-eval's task names. Does not import lm-eval, so that --help stays fast.

The papers name benchmarks, but not all exact task versions, shots and metrics, so these are fixed here
(docs/reasoning.md gives the reasons). A benchmark missing from lm-eval is listed, never replaced by a similar one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """A benchmark: lm-eval's task or group, the metric shown, and the solved examples. ``None``: the default."""

    label: str
    task: str
    metric: str | None = None
    shots: int | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """The benchmarks of a paper, and the names of those missing from lm-eval."""

    tasks: tuple[SuiteTask, ...]
    lacking: tuple[str, ...] = ()


_MATH500 = SuiteTask("MATH500", "minerva_math500", "math_verify")
_AIME24 = SuiteTask("AIME24", "aime24", "exact_match")
_GPQA = SuiteTask("GPQA-Diamond", "gpqa_diamond_zeroshot", "acc_norm")

SUITES = {
    "paper": Suite(  # SPAG, arXiv 2404.10642
        (
            SuiteTask("BBH", "bbh", "exact_match"),
            SuiteTask("MMLU", "mmlu", "acc", 5),
            SuiteTask("ARC-e", "arc_easy", "acc_norm"),
            SuiteTask("ARC-c", "arc_challenge", "acc_norm"),
            SuiteTask("LogiQA2", "logiqa2", "acc_norm"),
            SuiteTask("PIQA", "piqa", "acc_norm"),
            SuiteTask("MuTual", "mutual", "r@1"),
            SuiteTask("WinoGrande", "winogrande", "acc"),
        ),
    ),
    "spiral": Suite(  # arXiv 2506.24119
        (
            _MATH500,
            _AIME24,
            SuiteTask("AIME25", "aime25", "exact_match"),
            _GPQA,
            SuiteTask("MMLU-Pro", "mmlu_pro", "exact_match"),
        ),
        # lm-eval's minerva_math is the MATH dataset with Minerva's prompts, not the Minerva benchmark.
        ("AMC23", "Minerva", "OlympiadBench"),
    ),
    "marshal": Suite(  # arXiv 2510.15414
        (
            _MATH500,
            SuiteTask("GSM8K", "gsm8k", "exact_match"),
            SuiteTask("AQuA-RAT", "agieval_aqua_rat", "acc_norm"),
            _AIME24,
            SuiteTask("MMLU-STEM", "mmlu_stem", "acc", 5),
            _GPQA,
        ),
        ("AMC23",),
    ),
}
BY_TASK = {one.task: one for suite in SUITES.values() for one in suite.tasks}
