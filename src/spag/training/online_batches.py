"""The micro-batches of an online step: its samples as tokens, and beside each trained token what the loss needs of it."""

import random
from collections.abc import Iterator, Mapping, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from spag.algorithms.reinforce import token_share
from spag.config.schema import OnlineConfig
from spag.core.episodes import TrainingSample
from spag.core.errors import DataError
from spag.models.tokens import PromptStyle
from spag.training.data import FILLER, Batch, EncodedSample, collate, encode_samples
from spag.training.order import micro_batches

Values = Mapping[int, list[float]]
"""Numbers of trained tokens, by the index of their sample."""


class StepSamples:
    """The samples of a step. ``settings.max_length`` cuts prompts on the left. ``roles``: the groups of the metrics.

    Raises ``DataError`` for a sample without log-probabilities, or whose tokens the policy's tokenizer does not know.
    """

    def __init__(
        self,
        samples: Sequence[TrainingSample],
        tokenizer: PreTrainedTokenizerBase,
        style: PromptStyle,
        settings: OnlineConfig,
        roles: Sequence[str],
    ) -> None:
        self.settings = settings
        self.encoded = encode_samples(samples, tokenizer, style, settings.max_length, groups=roles)
        total = sum(sample.weight for sample in samples) / settings.minibatches
        divisor = settings.sampling.max_new_tokens if settings.loss_divisor == "constant" else None
        self.columns: dict[str, dict[int, list[float]]] = {"sampling_logprob": {}, "share": {}}
        for index, (sample, row) in enumerate(zip(samples, self.encoded, strict=True)):
            count = len(row.completion)
            self.columns["sampling_logprob"][index] = _sampling_logprobs(sample, row)
            self.columns["share"][index] = [token_share(sample.weight, count, total, divisor)] * count

    def __len__(self) -> int:
        return len(self.encoded)

    @property
    def groups(self) -> list[int] | None:
        """The samples' groups where a micro-batch may hold one only: each role's adapter computes by itself."""
        return [row.group for row in self.encoded] if self.settings.per_role else None

    def add(self, name: str, values: Values) -> None:
        """Add a column: a number for every trained token of every sample."""
        self.columns[name] = dict(values)

    def updates(self, seed: str, *, packed: bool, rank: int, world_size: int) -> Iterator[list[Batch]]:
        """Yield the micro-batches of one process for each update: samples are shuffled for each pass and cut into mini-batches.

        All processes get equally many; one without samples left gets a filler, whose tokens have no share. Micro-batches are of one role
        where each has an adapter of its own.
        """
        settings, sequences, size = self.settings, [row.input_ids for row in self.encoded], self.settings.micro_batch_size
        for epoch in range(settings.epochs):
            order = list(range(len(self.encoded)))
            random.Random(f"{seed}-{epoch}").shuffle(order)
            for part in range(settings.minibatches):
                found = micro_batches(order[part :: settings.minibatches], sequences, size, packed=packed, groups=self.groups)
                dealt = (found[start : start + world_size][rank:] for start in range(0, max(len(found), 1), world_size))
                yield [self._batch(mine[0] if mine else [FILLER], packed) for mine in dealt]

    def _batch(self, part: Sequence[int], packed: bool) -> Batch:
        """Return ``collate``'s batch of the samples at ``part``, and each column by trained token, (K,)."""
        if list(part) == [FILLER]:
            shortest = min(self.encoded, key=lambda row: len(row.input_ids))
            batch = collate([(shortest, 0.0)], packed=packed)
            batch["weight"] = torch.zeros_like(batch["weight"])
            return {**batch, **{name: torch.zeros(len(shortest.completion)) for name in self.columns}}
        tokens = {name: torch.tensor([value for index in part for value in values[index]]) for name, values in self.columns.items()}
        return {**collate([(self.encoded[index], 0.0) for index in part], packed=packed), **tokens}


def _sampling_logprobs(sample: TrainingSample, row: EncodedSample) -> list[float]:
    place, count = f"game {sample.episode_id!r}, turn {sample.turn}", len(row.completion)
    if tuple(row.completion) != tuple(sample.completion_ids or ())[-count:]:
        raise DataError(f"{place}: its tokens are not those of the policy's tokenizer")
    if sample.logprobs is None:
        raise DataError(f"{place}: it has no log-probabilities; online training needs a local engine")
    return list(sample.logprobs[-count:])
