"""Reference log-probabilities of all completions under the start model, computed before the first step, in ``reference.jsonl``.

The reference policy is frozen, so its log-probabilities never change: computing them first saves the second model that upstream holds in
memory, and its forward pass in every epoch. The pass runs through the module that is trained afterwards (same precision, same
wrapping), so that importance ratios start at 1.

The file's first row holds a fingerprint of samples, start model and settings, so that a stale file is never used:

    {"fingerprint": "9f0c...", "rows": 2}
    {"sample": 0, "logprob": -1.25}
    {"sample": 1, "logprob": -0.5}
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from torch import nn

from spag.core.errors import DataError
from spag.core.jsonfile import convert, json_lines
from spag.core.store import write_atomically
from spag.training.data import EncodedSample, collate
from spag.training.order import micro_batches
from spag.training.policy import Capabilities, completion_logprobs, to_device


def read_reference(path: Path, fingerprint: str) -> dict[int, float] | None:
    """Return log-probabilities by sample index, or ``None`` where the file is absent, damaged or made for something else."""
    try:
        header, *rows = [row for _, row in json_lines(path)] or [None]
        if header != _header(fingerprint, len(rows)):
            return None
        return {row.sample: row.logprob for row in convert(rows, list[_Row], str(path))}
    except DataError:
        return None


def write_reference(path: Path, fingerprint: str, logprobs: Mapping[int, float]) -> None:
    """Write the file: complete or absent."""
    rows = [json.dumps({"sample": sample, "logprob": logprobs[sample]}) for sample in sorted(logprobs)]
    write_atomically(path, "\n".join([json.dumps(_header(fingerprint, len(rows))), *rows]) + "\n")


def _header(fingerprint: str, rows: int) -> dict[str, str | int]:
    return {"fingerprint": fingerprint, "rows": rows}


class _Row(msgspec.Struct):
    sample: int
    logprob: float


def compute_reference(
    model: nn.Module,
    samples: Sequence[EncodedSample],
    indices: Sequence[int],
    *,
    device: torch.device,
    batch_size: int,
    capabilities: Capabilities,
    world_size: int = 1,
    rank: int = 0,
    on_batch: Callable[[int], None] | None = None,
) -> dict[int, float]:
    """Return the log-probabilities of this process's share of the samples at ``indices``, by index.

    Every process runs equally many forward passes, as sharded models need. ``device`` is where the model computes: the weights of an
    offloaded one lie elsewhere. ``on_batch`` is called with the number of samples of each batch.
    """
    parts = micro_batches(indices, [sample.input_ids for sample in samples], batch_size, packed=capabilities.packed)
    result: dict[int, float] = {}
    model.eval()
    with torch.no_grad():
        for start in range(0, len(parts), world_size):
            batch = parts[min(start + rank, len(parts) - 1)]  # a process that has none left repeats the last
            rows = to_device(collate([(samples[index], 0.0) for index in batch], packed=capabilities.packed), device)
            result.update(zip(batch, completion_logprobs(model, rows, capabilities).tolist(), strict=True))
            if on_batch is not None:
                on_batch(len(batch))
    return result
