"""Log-probabilities of samples under a fixed model, computed before the updates that need them.

Offline, the reference policy is the start model: its log-probabilities are computed before the first update and kept in
``reference.jsonl``, so no second model is in memory, and a resumed run does not recompute them. They come from the
module that is then trained (same precision, same wrapping), so that importance ratios start at 1. The file:

    {"fingerprint": "9f0c...", "rows": 2}
    {"sample": 0, "logprobs": [-1.25, -0.5]}
    {"sample": 1, "logprobs": [-0.125]}
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from accelerate.utils import broadcast_object_list, gather_object

from spag.algorithms.base import SFT
from spag.core.errors import DataError
from spag.learning.batches import TrainingData, Values
from spag.learning.metrics import OnProgress, TrainProgress, Unit
from spag.learning.policy import TrainedPolicy
from spag.learning.sharding import release_gathered
from spag.models.forward import to_device, token_scores
from spag.models.samples import EncodedSample, collate
from spag.storage.episodes import raw_rows
from spag.storage.jsonfile import convert
from spag.storage.store import write_rows

LARGER = 4
"""How much larger batches without gradients are."""
REMEMBERED = 4096
"""Samples whose log-probabilities are cached: in a small game the same ones recur in every step."""


def logprobs_of(
    data: TrainingData,
    policy: TrainedPolicy,
    indices: Sequence[int],
    on_batch: Callable[[int], None] = lambda count: None,
) -> Values:
    """Return the log-probabilities of the trained tokens of the samples at ``indices``, on every process.

    Every process computes a share in the same number of forward passes, as sharded models require. ``on_batch`` is
    called with the number of samples in each batch.
    """
    found = [[indices[at] for at in batch] for batch in data.split(indices, LARGER)]
    accelerator = policy.accelerator
    policy.model.eval()
    mine: list[tuple[int, list[float]]] = []
    with torch.no_grad(), accelerator.autocast():
        for start in range(0, len(found), data.world_size):
            part = found[min(start + data.rank, len(found) - 1)]  # a process without batches left repeats the last
            batch = to_device(collate([data.samples[at] for at in part], packed=data.packed), accelerator.device)
            policy.use_role(batch, data.groups)
            flat = token_scores(policy.model, batch, policy.capabilities)[:, 0].tolist()
            for index in part:
                count = len(data.samples[index].completion)
                mine.append((index, flat[:count]))
                flat = flat[count:]
            on_batch(len(part))
    release_gathered(policy.model)
    return dict(gather_object(mine))


def reference_of_files(
    data: TrainingData, policy: TrainedPolicy, path: Path, fingerprint: str, progress: OnProgress | None
) -> Values:
    """Return the start model's log-probabilities of all samples but the SFT mix, from the file ``path`` or computed."""
    accelerator = policy.accelerator
    is_first = accelerator.is_main_process
    known = broadcast_object_list([read_reference(path, fingerprint) if is_first else None])[0]
    indices = [at for at, sample in enumerate(data.samples) if sample.group != SFT]
    if known is None:
        began, done = time.perf_counter(), 0

        def on_batch(count: int) -> None:
            nonlocal done
            done = min(done + count * accelerator.num_processes, len(indices))
            if progress is not None:
                speed = done / (time.perf_counter() - began)
                progress(TrainProgress(Unit.REFERENCE, done, len(indices), speed, None))

        known = dict(logprobs_of(data, policy, indices, on_batch))
        if is_first:
            write_reference(path, fingerprint, known)
    return {at: known.get(at) or [0.0] * len(sample.completion) for at, sample in enumerate(data.samples)}


class LogprobCache:
    """Cached reference log-probabilities of recent samples; cleared when the reference moves."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int, bytes], Sequence[float]] = {}

    def values(self, samples: Sequence[EncodedSample], compute: Callable[[list[int]], Values]) -> Values:
        """Return the values of all samples; ``compute`` returns those of samples that are not cached, by index."""
        missing = [index for index, sample in enumerate(samples) if sample.key not in self.known]
        self.known |= {samples[index].key: values for index, values in compute(missing).items()}
        values = {index: self.known[sample.key] for index, sample in enumerate(samples)}
        while len(self.known) > REMEMBERED:
            del self.known[next(iter(self.known))]
        return values


class _CachedRow(msgspec.Struct):
    sample: int
    logprobs: list[float]


def read_reference(path: Path, fingerprint: str) -> dict[int, list[float]] | None:
    """Return log-probabilities by sample, or ``None`` if the file is absent, damaged or of another training."""
    try:
        header, *rows = [row for _, row in raw_rows(path)] or [{}]
        if header != {"fingerprint": fingerprint, "rows": len(rows)}:
            return None
        return {row.sample: row.logprobs for row in convert(rows, list[_CachedRow], str(path))}
    except DataError:
        return None


def write_reference(path: Path, fingerprint: str, logprobs: Mapping[int, Sequence[float]]) -> None:
    """Write the file, which is complete or absent."""
    rows = [{"sample": sample, "logprobs": list(logprobs[sample])} for sample in sorted(logprobs)]
    write_rows(path, [{"fingerprint": fingerprint, "rows": len(rows)}, *rows])
