"""From samples as tokens to a batch for the forward pass (``forward.py``).

A batch holds its samples as one packed row without padding if the model can attend to such rows, else as one row per
sample, padded on the RIGHT without an attention mask: attention is causal, so no real token ever sees the padding.
``columns`` are the positions that predict a trained token; logits are needed only there (``forward.py``).

The samples of a packed row form a prefix tree: a prefix of several of them (the rules of the game, the shared history
of two moves of a game) appears once. The tree is laid out depth first; a token attends to itself and its ancestors
(``spans.py``), and its position is its depth. Every token sees exactly the context of its own sample, so
log-probabilities and gradients equal those of separate samples, up to rounding. Upstream pads each sample to the
longest of its batch and recomputes every prefix.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spag.algorithms.base import OTHER
from spag.models.tokens import shared_length

Batch = dict[str, Any]
"""Tensors by name, and the ``depths`` of a packed row; see ``collate``."""


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """One sample as tokens: ``input_ids`` (T,), trained from ``completion_start`` (at least 1) on.

    ``sampling_logprobs``: log-probabilities of the trained tokens when they were sampled, if needed, and
    ``played_logprobs`` those of the policy that played, at temperature 1 without filters. ``copies``: how many equal
    samples it represents (``merge_equal``); ``weight`` is their total weight.
    """

    input_ids: "array[int]"
    completion_start: int
    reward: float = 0.0
    weight: float = 1.0
    group: int = OTHER
    sampling_logprobs: tuple[float, ...] | None = None
    played_logprobs: tuple[float, ...] | None = None
    copies: int = 1

    @staticmethod
    def of(ids: Sequence[int], completion_start: int, **values: Any) -> "EncodedSample":
        return EncodedSample(array("i", ids), completion_start, **values)

    @property
    def fed(self) -> "array[int]":
        """(T - 1,): the model's input; the last token is only predicted."""
        return self.input_ids[:-1]

    @property
    def completion(self) -> "array[int]":
        """The trained tokens."""
        return self.input_ids[self.completion_start :]

    @property
    def key(self) -> tuple[int, int, bytes]:
        """Equal for samples of equal role and tokens."""
        return self.group, self.completion_start, self.input_ids.tobytes()


def collate(samples: Sequence[EncodedSample], *, packed: bool) -> Batch:
    """Return one batch of B samples, K trained tokens and R rows of T tokens (R = 1 if ``packed``, else B).

    ``input_ids`` and ``position_ids`` (R, T) int64, unpacked rows right-padded with 0. ``columns`` (C,): positions
    where logits are needed. ``picks`` (K,): the position in the flattened (R, C) that predicts each trained token;
    ``labels`` (K,): that token; ``sample`` (K,): its sample. ``depths``: the position ids of a packed row, as a list.
    ``advantage`` and ``weight`` (B,) float32. ``group`` (B,) int64, a group's number or ``FILLER``.
    """
    sources = _packed_rows(samples) if packed else _padded_rows(samples)
    return {
        **sources,
        "labels": torch.tensor([token for sample in samples for token in sample.completion]),
        "sample": torch.tensor([index for index, sample in enumerate(samples) for _ in sample.completion]),
        "advantage": torch.tensor([sample.reward for sample in samples], dtype=torch.float32),
        "weight": torch.tensor([sample.weight for sample in samples], dtype=torch.float32),
        "group": torch.tensor([sample.group for sample in samples], dtype=torch.int64),
    }


def pack(sequences: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[Tensor]]:
    """Lay out ``sequences``, each of at least one token, as one row. Return its tokens, their depths in the tree, and
    each sequence's tokens as indices in the row, (L,) int64.

    Those with a common prefix should be adjacent: only prefixes shared with the previous sequence are computed once.
    """
    tokens: list[int] = []
    depths: list[int] = []
    rows: list[Tensor] = []
    path: list[int] = []  # index in the row of each token of the previous sequence
    for before, sequence in pairwise([(), *sequences]):
        kept = shared_length(before, sequence)
        path = path[:kept] + list(range(len(tokens), len(tokens) + len(sequence) - kept))
        tokens.extend(sequence[kept:])
        depths.extend(range(kept, len(sequence)))
        rows.append(torch.tensor(path))
    return tokens, depths, rows


def packed_length(sequences: Sequence[Sequence[int]]) -> int:
    """Return how many tokens ``pack`` would lay out."""
    return sum(len(sequence) - shared_length(before, sequence) for before, sequence in pairwise([(), *sequences]))


def _packed_rows(samples: Sequence[EncodedSample]) -> Batch:
    tokens, depths, rows = pack([sample.fed for sample in samples])
    # from the token before the first trained one to the last that is fed
    sources = [row[sample.completion_start - 1 :] for row, sample in zip(rows, samples, strict=True)]
    columns, picks = torch.unique(torch.cat(sources), return_inverse=True)
    row = {"input_ids": torch.tensor([tokens]), "position_ids": torch.tensor([depths]), "depths": depths}
    return {**row, "columns": columns, "picks": picks}


def _padded_rows(samples: Sequence[EncodedSample]) -> Batch:
    rows = [torch.tensor(sample.fed) for sample in samples]
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).long()
    width = input_ids.shape[1]
    wanted = torch.zeros(len(samples), width, dtype=torch.bool)
    for index, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        wanted[index, sample.completion_start - 1 : len(row)] = True
    columns = wanted.any(dim=0).nonzero().squeeze(1)
    picks = wanted[:, columns].flatten().nonzero().squeeze(1)
    return {
        "input_ids": input_ids,
        "position_ids": torch.arange(width).expand_as(input_ids),
        "columns": columns,
        "picks": picks,
    }
