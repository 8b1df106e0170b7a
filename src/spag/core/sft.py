"""Instruction data mixed into offline RL (the paper mixes in Alpaca 52K) to keep general skills.

Rows are Alpaca's ``{"instruction", "input", "output"}`` or upstream's ``{"query" | "prompt", "target" | "answer"}``, as a JSON list or JSON
lines.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spag.core.episodes import SampleType, TrainingSample, raw_rows, sample_of
from spag.core.errors import DataError


def read_sft(path: Path, limit: int | None, seed: int) -> list[TrainingSample]:
    """Return the SFT samples of ``path``, at most ``limit`` drawn by seed. Raises ``DataError`` naming the row."""
    samples = [_sample(row, place) for place, row in raw_rows(path)]
    samples = [sample for sample in samples if sample.completion.strip()]
    if limit is not None and limit < len(samples):
        samples = random.Random(seed).sample(samples, limit)
    return samples


def _sample(row: Mapping[str, Any], place: str) -> TrainingSample:
    if "instruction" not in row:
        return sample_of({"reward": 1.0, "weight": 1.0, **row, "type": SampleType.SFT}, place)
    instruction, given, output = (row.get(key, "") for key in ("instruction", "input", "output"))
    if not all(isinstance(text, str) for text in (instruction, given, output)):
        raise DataError(f"{place}: instruction, input and output must be text")
    prompt = f"{instruction}\n\n{given}" if given.strip() else instruction
    return TrainingSample(prompt=prompt.strip() + "\n", completion=output.strip(), type=SampleType.SFT)
