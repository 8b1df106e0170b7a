"""From samples as tokens to a batch for the forward pass (``forward.py``).

A batch holds its samples as one packed row without padding (``packing.py``) if the model can attend to such rows, else
as one row per sample, padded on the RIGHT without an attention mask: attention is causal, so no real token ever sees
the padding. ``columns`` are the positions that predict a trained token; logits are needed only there (``forward.py``).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spag.algorithms.base import OTHER
from spag.models.packing import pack

Batch = dict[str, Any]
"""Tensors by name, and the ``Packing`` of a packed row; see ``collate``."""


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
    ``labels`` (K,): that token; ``sample`` (K,): its sample. ``packing``: the ``Packing`` of a packed row.
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


def _packed_rows(samples: Sequence[EncodedSample]) -> Batch:
    packing = pack([sample.fed for sample in samples])
    # from the token before the first trained one to the last that is fed
    sources = [row[sample.completion_start - 1 :] for row, sample in zip(packing.rows, samples, strict=True)]
    columns, picks = torch.unique(torch.cat(sources), return_inverse=True)
    row = {"input_ids": packing.input_ids[None], "position_ids": packing.position_ids[None], "packing": packing}
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
