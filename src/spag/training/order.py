"""The batch schedule: seeded, and the same global batches for any micro-batch size and number of processes.

The samples of all epochs, shuffled anew for each, form one stream that is cut into global batches; only the very last batch may be smaller.
Inside a global batch the order is free, because the loss is normalised over all of it: samples with a common prefix (unpacked: of
similar length) form a micro-batch, and micro-batches are dealt to the processes by size, so that all have equal work. Upstream shuffles
in the same way but pads random micro-batches.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch.utils.data import Sampler

from spag.training.data import FILLER
from spag.training.packing import packed_length


def micro_batches(indices: Sequence[int], sequences: Sequence[Sequence[int]], size: int, *, packed: bool) -> list[list[int]]:
    """Divide the samples at ``indices`` into batches of ``size`` (the last may be smaller), the most tokens first.

    ``sequences``: every sample's tokens. The largest batch comes first so that memory runs out at once or never.
    """
    ordered = sorted(indices, key=lambda index: (sequences[index], index) if packed else (-len(sequences[index]), index))
    batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]

    def tokens(batch: list[int]) -> int:
        rows = [sequences[index] for index in batch]
        return packed_length(rows) if packed else max(map(len, rows)) * len(rows)

    return sorted(batches, key=tokens, reverse=True)


@dataclass(eq=False)
class MicroBatches(Sampler[list[int]]):
    """Yields the sample indices of each micro-batch of one process, the largest micro-batch of a global batch first."""

    sequences: Sequence[Sequence[int]]
    epochs: int
    global_batch_size: int
    micro_batch_size: int
    seed: int
    packed: bool
    world_size: int = 1
    rank: int = 0

    def __len__(self) -> int:
        full, rest = divmod(len(self.sequences) * self.epochs, self.global_batch_size)
        together = self.micro_batch_size * self.world_size
        return full * math.ceil(self.global_batch_size / together) + math.ceil(rest / together)

    def __iter__(self) -> Iterator[list[int]]:
        stream = self._stream()
        while batch := list(islice(stream, self.global_batch_size)):
            parts = micro_batches(batch, self.sequences, self.micro_batch_size, packed=self.packed)
            for start in range(0, len(parts), self.world_size):
                mine = parts[start : start + self.world_size][self.rank :]
                yield mine[0] if mine else [FILLER]

    def _stream(self) -> Iterator[int]:
        for epoch in range(self.epochs):
            order = list(range(len(self.sequences)))
            random.Random(f"{self.seed}-{epoch}").shuffle(order)
            yield from order
