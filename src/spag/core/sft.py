"""Instruction data mixed into offline RL (the paper mixes in Alpaca 52K) to keep general skills.

Rows are Alpaca's ``{"instruction", "input", "output"}``, worded by its two prompts (``alpaca.py``), or upstream's
``{"query" | "prompt", "target" | "answer"}``, as a JSON list or JSON lines.
"""

import random
from pathlib import Path

from spag.core.episodes import SampleType, TrainingSample, raw_rows, sample_of, without_empty


def read_sft(path: Path, limit: int | None, seed: int) -> list[TrainingSample]:
    """Return the SFT samples of ``path``, at most ``limit`` drawn by seed. Raises ``DataError`` naming the row."""
    samples = list(without_empty((sample_of({**row, "type": SampleType.SFT, "role": None}, place) for place, row in raw_rows(path)), path))
    if limit is not None and limit < len(samples):
        samples = random.Random(seed).sample(samples, limit)
    return samples
