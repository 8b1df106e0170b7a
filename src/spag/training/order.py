"""Which samples form which batch: one seeded schedule for the whole training, the same for any micro-batch size and number of processes.

The samples of all epochs, shuffled anew for each, form one stream that is cut into global batches; only the very last batch may be smaller.
Inside a global batch the order is free, because the loss is normalised over all of it: samples are sorted by length, so that micro-batches
need little padding, and dealt to the processes in turn, so that all have equally long ones. Upstream shuffles alike but pads random
micro-batches.
"""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice

from torch.utils.data import Sampler

from spag.training.data import FILLER


def total_steps(samples: int, epochs: int, global_batch_size: int) -> int:
    """Return how many optimiser steps a training takes."""
    return math.ceil(samples * epochs / global_batch_size)


class MicroBatches(Sampler[list[int]]):
    """Yields the sample indices of each micro-batch of one process, longest micro-batch of a global batch first."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        epochs: int,
        global_batch_size: int,
        micro_batch_size: int,
        seed: int,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        self.lengths, self.epochs, self.seed = lengths, epochs, seed
        self.global_batch_size = global_batch_size
        self.chunk = micro_batch_size * world_size
        self.world_size, self.rank = world_size, rank

    def __len__(self) -> int:
        full, rest = divmod(len(self.lengths) * self.epochs, self.global_batch_size)
        return full * math.ceil(self.global_batch_size / self.chunk) + math.ceil(rest / self.chunk)

    def __iter__(self) -> Iterator[list[int]]:
        stream = self._stream()
        while batch := list(islice(stream, self.global_batch_size)):
            batch.sort(key=lambda index: (-self.lengths[index], index))
            for start in range(0, len(batch), self.chunk):
                yield batch[start : start + self.chunk][self.rank :: self.world_size] or [FILLER]

    def _stream(self) -> Iterator[int]:
        for epoch in range(self.epochs):
            order = list(range(len(self.lengths)))
            random.Random(f"{self.seed}-{epoch}").shuffle(order)
            yield from order
