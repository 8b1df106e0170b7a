"""Peak memory of small real trainings: the bytes of all tensors alive at once, as PyTorch's allocator reports them.

That is what a GPU's memory would be filled with. The process's resident memory is up to 30 MiB more in these trainings,
a third of it oneDNN's compiled kernels. The model in the folder has a byte-level tokenizer, so LENGTH letters are
LENGTH tokens.
"""

import gc
import random
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from spag.config.schema import GameConfig, ModelConfig, PhaseConfig
from spag.core.episodes import TrainingSample
from spag.learning.job import TrainingJob
from spag.learning.worker import run_job
from spag.storage.store import write_rows

TRAINED = 64
"""Tokens of each completion, its end included."""


@dataclass
class Peak:
    bytes: int = 0


@contextmanager
def watched() -> Iterator[Peak]:
    """Find the most bytes that the tensors made within hold at once."""
    gc.collect()  # what an earlier measurement left behind would be freed, and subtracted, in this one
    peak = Peak()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        yield peak
    assert seen.profiler is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    peak.bytes = max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def letters(count: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(string.ascii_lowercase, k=count))


def train_peak(folder: Path, length: int, dtype: str, phase: PhaseConfig, output: Path) -> int:
    said = TRAINED - 1
    samples = [
        TrainingSample(prompt=letters(length - said - 1, i), completion=letters(said, -1 - i), role="attacker")
        for i in range(2 * phase.settings.global_batch_size)  # two updates: the second meets Adam's moments
    ]
    output.mkdir()
    write_rows(path := output / "given.jsonl", samples)
    job = TrainingJob(
        model=ModelConfig(dtype=dtype, device="cpu"),
        phase=phase,
        game=GameConfig(),
        start_from=str(folder),
        output=output,
        seed=0,
        files=[path],
    )
    with watched() as peak:
        assert run_job(job)["steps"] == 2
    return peak.bytes
