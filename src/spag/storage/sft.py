"""Instruction data mixed into offline RL (the paper mixes in Alpaca 52K) to keep general skills.

A row with an empty output trains its end token, as upstream.

Rows are Alpaca's ``{"instruction", "input", "output"}``, worded by its two prompts (``alpaca.py``), or upstream's
``{"query" | "prompt", "target" | "answer"}``, as a JSON list or JSON lines.
"""

import random
from pathlib import Path

from spag.core.episodes import SampleType, TrainingSample
from spag.storage.episodes import raw_rows, sample_of


def read_sft(path: Path, limit: int | None, seed: int) -> list[TrainingSample]:
    """Return the SFT samples of ``path``, at most ``limit`` drawn by seed. Raises ``DataError`` naming the row."""
    samples = [sample_of({**row, "type": SampleType.SFT, "role": None}, place) for place, row in raw_rows(path)]
    if limit is not None and limit < len(samples):
        samples = random.Random(seed).sample(samples, limit)
    return samples
