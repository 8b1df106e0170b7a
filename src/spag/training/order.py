"""The batch schedule: seeded, and the same global batches for any micro-batch size and number of processes.

The samples of all epochs, shuffled anew for each, form one stream that is cut into global batches; only the very last batch may be smaller.
Inside a global batch the order is free, because the loss is normalised over all of it: samples with a common prefix (unpacked: of
similar length) form a micro-batch, and micro-batches are dealt to the processes by size, so that all have equal work.

Upstream shuffles in the same way but pads random micro-batches of two, and averages RL and SFT losses within each before it averages the
micro-batches; one without SFT samples counts as an SFT loss of 0. ``shares`` turns that into a factor of each sample's weight, so that
it, too, is independent of how the samples are split.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch.utils.data import Sampler

from spag.training.data import FILLER
from spag.training.packing import packed_length


def micro_batches(
    indices: Sequence[int], sequences: Sequence[Sequence[int]], size: int, *, packed: bool, groups: Sequence[int] | None = None
) -> list[list[int]]:
    """Divide the samples at ``indices`` into batches of ``size`` (the last may be smaller), the most tokens first.

    ``sequences``: every sample's tokens. ``groups``: every sample's group, where a batch may be of one only. The largest batch comes first
    so that memory runs out at once or never.
    """
    ordered = sorted(indices, key=lambda index: (sequences[index], index) if packed else (-len(sequences[index]), index))
    kinds = [ordered] if groups is None else [[index for index in ordered if groups[index] == kind] for kind in sorted(set(groups))]
    batches = [kind[start : start + size] for kind in kinds for start in range(0, len(kind), size)]

    def tokens(batch: list[int]) -> int:
        rows = [sequences[index] for index in batch]
        return packed_length(rows) if packed else max(map(len, rows)) * len(rows)

    return sorted(batches, key=tokens, reverse=True)


def shares(is_sft: Sequence[bool], size: int | None) -> list[float]:
    """Return the factors of the samples' weights that make means over a global batch means within groups, averaged over the groups.

    ``is_sft`` holds the global batch in its drawn order, cut into groups of ``size`` (the last may be smaller; ``None``: one group).
    A sample counts 1 / (its kind's samples in its group x groups) where the loss has 1 / (its kind's samples in the global batch).
    """
    if size is None:
        return [1.0] * len(is_sft)
    groups = [is_sft[start : start + size] for start in range(0, len(is_sft), size)]
    return [is_sft.count(kind) / (group.count(kind) * len(groups)) for group in groups for kind in group]


Place = tuple[int, float]
"""A sample's index and the factor of its weight."""


@dataclass(eq=False)
class MicroBatches(Sampler[list[Place]]):
    """Yields the samples of each micro-batch of one process, the largest micro-batch of a global batch first.

    ``sequences``: every sample's tokens. ``is_sft``: whether it is of the SFT mix. ``loss_group``: see ``shares``.
    """

    sequences: Sequence[Sequence[int]]
    is_sft: Sequence[bool]
    epochs: int
    global_batch_size: int
    micro_batch_size: int
    seed: int
    packed: bool
    loss_group: int | None = None
    world_size: int = 1
    rank: int = 0

    def __len__(self) -> int:
        full, rest = divmod(len(self.sequences) * self.epochs, self.global_batch_size)
        together = self.micro_batch_size * self.world_size
        return full * math.ceil(self.global_batch_size / together) + math.ceil(rest / together)

    def __iter__(self) -> Iterator[list[Place]]:
        stream = self._stream()
        while batch := list(islice(stream, self.global_batch_size)):
            places = list(zip(batch, shares([self.is_sft[index] for index in batch], self.loss_group), strict=True))
            drawn = [self.sequences[index] for index in batch]
            parts = micro_batches(range(len(batch)), drawn, self.micro_batch_size, packed=self.packed)
            for start in range(0, len(parts), self.world_size):
                mine = parts[start : start + self.world_size][self.rank :]
                yield [places[at] for at in mine[0]] if mine else [(FILLER, 1.0)]

    def _stream(self) -> Iterator[int]:
        for epoch in range(self.epochs):
            order = list(range(len(self.sequences)))
            random.Random(f"{self.seed}-{epoch}").shuffle(order)
            yield from order
