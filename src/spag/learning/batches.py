"""From encoded samples to the batches of each update; updates do not depend on micro-batch size or number of processes.

Within an update, samples may be in any order, because the loss is normalised over the whole update: samples with a
common prefix (unpacked: of similar length) form a micro-batch, and micro-batches are distributed by size, so that all
processes have equal work. Upstream averages RL and SFT losses within random micro-batches of two, then over these;
``loss_shares`` turns that into a factor of each sample's weight, independent of how samples are split.
"""

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from statistics import fmean
from typing import Any

import torch

from spag.algorithms.base import FILLER, SFT, Totals
from spag.models.samples import Batch, EncodedSample, collate, packed_length

Values = Mapping[int, Sequence[float]]
"""Values for trained tokens, by the index of their sample."""


@dataclass(frozen=True, slots=True)
class Update:
    """The samples of one update, by index, and a factor for each weight (``loss_shares``, ``online_updates``)."""

    samples: Sequence[int]
    factors: Sequence[float]
    totals: Totals


def offline_updates(
    samples: Sequence[EncodedSample],
    *,
    seed: int,
    batch_size: int,
    total: int,
    loss_group: int | None = None,
    games: Sequence[str] | None = None,
) -> Iterator[Update]:
    """Yield the updates of ``total`` samples: a stream of passes, each reshuffled, is cut into ``batch_size``.

    ``games``: each sample's game, "" for none; consecutive samples of one game stay together, so that an update
    computes the prefixes that they share only once.
    """
    units = groupby(range(len(samples)), key=lambda index: games[index] or index if games else index)
    stream = islice(_stream([list(unit) for _, unit in units], seed), total)
    rng = random.Random(f"{seed}-groups")
    while chosen := list(islice(stream, batch_size)):
        if games and loss_group:  # else groups would hold the samples of a game, not random ones
            rng.shuffle(chosen)
        is_sft = [samples[index].group == SFT for index in chosen]
        weight = sum(samples[index].weight for index, sft in zip(chosen, is_sft, strict=True) if not sft)
        totals = Totals(samples=is_sft.count(False), sft=is_sft.count(True), weight=weight)
        yield Update(chosen, loss_shares(is_sft, loss_group), totals)


def _stream(units: Sequence[Sequence[int]], seed: int) -> Iterator[int]:
    for epoch in itertools.count():
        order = list(units)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        yield from chain.from_iterable(order)


def online_updates(
    samples: Sequence[EncodedSample], *, seed: str, epochs: int = 1, minibatches: int = 1, left_out: float = 0.0
) -> Iterator[Update]:
    """Yield the updates of a step: its samples are shuffled for each pass and cut into mini-batches.

    Copies of merged samples are drawn one by one, and merged again within each mini-batch. So mini-batches are equally
    large, as in PPO. Cutting merged samples instead would let AdamW, whose update hardly depends on a gradient's scale,
    count a rare sample as much as all copies of a frequent one. Every loss is divided by the mean weight of a
    mini-batch: its own would favour the samples of a smaller one. ``left_out``: the weight of samples that have no
    gradient. They count in that divisor, so that what is left does not stand for the whole step.
    """
    weight = (sum(sample.weight for sample in samples) + left_out) / minibatches
    for epoch in range(epochs):
        order = [index for index, sample in enumerate(samples) for _ in range(sample.copies)]
        random.Random(f"{seed}-{epoch}").shuffle(order)
        for part in range(minibatches):
            drawn = Counter(order[part::minibatches])
            factors = [count / samples[index].copies for index, count in drawn.items()]
            yield Update([*drawn], factors, Totals(samples=len(drawn), sft=0, weight=weight))


def loss_shares(is_sft: Sequence[bool], size: int | None) -> list[float]:
    """Return weight factors that turn means over an update into means within groups, averaged over the groups.

    ``is_sft`` holds the update in its drawn order, cut into groups of ``size`` (``None``: one group). A sample counts
    1 / (its kind's samples in its group x groups) instead of 1 / (its kind's samples in the update).
    """
    if size is None:
        return [1.0] * len(is_sft)
    groups = [is_sft[start : start + size] for start in range(0, len(is_sft), size)]
    return [is_sft.count(kind) / (group.count(kind) * len(groups)) for group in groups for kind in group]


def merge_equal(samples: Sequence[EncodedSample], *, by_advantage: bool = False) -> list[EncodedSample]:
    """Merge samples of equal role and tokens into one with their mean advantage and total weight.

    The gradient is unchanged as long as no ratio is clipped; if one may be, merge only samples with equal advantages
    (``by_advantage``). Their sampling log-probabilities differ by rounding; the first sample's are kept. In a small
    game a step of hundreds of games has a few dozen distinct samples.
    """
    groups: dict[tuple[Any, ...], list[EncodedSample]] = defaultdict(list)
    for sample in samples:
        groups[(*sample.key, sample.reward) if by_advantage else sample.key].append(sample)
    return [
        replace(
            equal[0],
            reward=fmean((sample.reward for sample in equal), weights=[sample.weight for sample in equal]),
            weight=sum(sample.weight for sample in equal),
            copies=sum(sample.copies for sample in equal),
        )
        for equal in groups.values()
    ]


@dataclass
class TrainingData:
    """The samples of a file, or of an online step, and values for their trained tokens by name (``columns``).

    ``groups``: the names of the samples' groups. ``by_group``: micro-batches do not mix groups, for models with an
    adapter for each role. ``short_length``: nor texts of up to this length with longer ones, if set.
    """

    samples: Sequence[EncodedSample]
    micro_batch_size: int
    packed: bool
    groups: Sequence[str] = ()
    by_group: bool = False
    short_length: int | None = None
    rank: int = 0
    world_size: int = 1
    columns: dict[str, Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.samples and self.samples[0].sampling_logprobs is not None:
            for name in ("sampling_logprob", "played_logprob"):
                found = (getattr(sample, f"{name}s") for sample in self.samples)
                self.columns[name] = {index: values or () for index, values in enumerate(found)}

    def batches(self, update: Update) -> list[Batch]:
        """Return this process's micro-batches of an update; all processes get the same number."""
        places = list(zip(update.samples, update.factors, strict=True))
        found = self.split(update.samples)
        dealt = (found[start : start + self.world_size][self.rank :] for start in range(0, len(found), self.world_size))
        return [self._batch([places[at] for at in mine[0]]) if mine else self._filler() for mine in dealt]

    def split(self, chosen: Sequence[int], factor: int = 1) -> list[list[int]]:
        """Divide the ``chosen`` samples into micro-batches, ``factor`` times as large as in training, of places in
        ``chosen``. The last of a kind may be smaller.

        The one with the most tokens comes first, so that memory runs out at once or never.
        """
        samples = [self.samples[index] for index in chosen]

        def kind(at: int) -> tuple[int, bool]:
            return samples[at].group * self.by_group, len(samples[at].fed) > (self.short_length or math.inf)

        def order(at: int) -> tuple[Any, ...]:
            ids = samples[at].input_ids
            return kind(at), ids if self.packed else -len(ids), at

        def tokens(batch: list[int]) -> int:
            rows = [samples[at].input_ids for at in batch]
            return packed_length(rows) if self.packed else max(map(len, rows)) * len(rows)

        kinds = [list(same) for _, same in groupby(sorted(range(len(samples)), key=order), kind)]
        size = self.micro_batch_size * factor
        found = [same[start : start + size] for same in kinds for start in range(0, len(same), size)]
        return sorted(found, key=tokens, reverse=True)

    def _batch(self, places: Sequence[tuple[int, float]]) -> Batch:
        rows = [replace(self.samples[index], weight=self.samples[index].weight * factor) for index, factor in places]
        tokens = {
            name: torch.tensor([value for index, _ in places for value in values[index]], dtype=torch.float32)
            for name, values in self.columns.items()
        }
        return {**collate(rows, packed=self.packed), **tokens}

    def _filler(self) -> Batch:
        """Return the batch of a process without samples left: the shortest sample, not counted, by its own adapter."""
        index = min(range(len(self.samples)), key=lambda at: len(self.samples[at].input_ids))
        batch = self._batch([(index, 0.0)])
        return {**batch, "adapter": batch["group"], "group": torch.full_like(batch["group"], FILLER)}
