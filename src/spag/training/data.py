"""Training samples as tokens, and their batches.

A completion's tokens are those that were sampled, where they are known and the tokenizer decodes them to the same text; else the text is
tokenised on its own and the end token is appended, unless the completion was truncated. Samples that are too long lose tokens on the left.
Only completions are trained.

A batch holds its samples as one packed row without padding (``packing.py``) where the model can attend to such rows, else as one row a
sample, padded on the RIGHT without an attention mask: attention is causal, so no real token ever sees the padding. ``columns`` are the
positions that predict a trained token; only for them are logits needed (``policy.py``).
"""

import logging
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from spag.core.episodes import SampleType, TrainingSample
from spag.core.errors import ConfigError, DataError
from spag.models.tokens import PromptStyle, encode_prompt, end_token_id
from spag.training.packing import pack

logger = logging.getLogger(__name__)

FILLER = -1
"""Index (and group) of the sample that fills the batch of a process without samples left: weight 0, not counted."""

Batch = dict[str, Any]
"""Tensors by name, and the ``Span``s of a packed row: see ``collate``."""


SFT, OTHER = 0, 1
"""Groups of the SFT mix, and of samples without a role; the groups from 2 on are the roles."""


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """One sample as tokens: ``input_ids`` (T,), of which those from ``completion_start`` (at least 1) on are trained."""

    input_ids: "array[int]"
    completion_start: int
    reward: float = 0.0
    weight: float = 1.0
    group: int = OTHER

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


def group_names(samples: Sequence[TrainingSample]) -> tuple[str, ...]:
    """Return the groups with metrics of their own: the SFT mix, samples without a role, and each role."""
    return ("sft", "other", *sorted({sample.role for sample in samples if sample.role is not None}))


def encode_samples(
    samples: Sequence[TrainingSample],
    tokenizer: PreTrainedTokenizerBase,
    style: PromptStyle,
    max_length: int,
    groups: Sequence[str] | None = None,
) -> list[EncodedSample]:
    """Tokenise ``samples``. ``groups``: the groups that roles belong to, by default ``group_names``.

    Raises ``DataError`` for a reward or weight that is not a finite number, ``ConfigError`` for a useless ``max_length``.
    """
    if max_length < 2:
        raise ConfigError(f"training.max_length={max_length}: at least 2 tokens are needed, one to predict and one to predict it from")
    end, groups = end_token_id(tokenizer, style), groups or group_names(samples)
    encoded, retokenised = [], 0
    for index, sample in enumerate(samples):
        place = f"sample {index} (episode {sample.episode_id!r})"
        if not (math.isfinite(sample.reward) and math.isfinite(sample.weight)):
            raise DataError(f"{place}: reward {sample.reward} and weight {sample.weight} must be finite")
        as_sampled = _are_of(sample, tokenizer)
        retokenised += sample.completion_ids is not None and not as_sampled
        prompt = list(sample.prompt_ids or ()) if as_sampled else []
        prompt = prompt or encode_prompt(tokenizer, sample.prompt, style)
        if as_sampled:
            completion = list(sample.completion_ids or ())
        else:
            completion = tokenizer.encode(sample.completion, add_special_tokens=False) + ([] if sample.truncated else [end])
        ids = (prompt + completion)[-max_length:]
        if len(ids) < 2:
            raise DataError(f"{place}: prompt and completion hold no token, so there is nothing to train on")
        # A first token has no context to be predicted from: of a completion that fills max_length, the last max_length - 1 are trained.
        start = max(len(ids) - len(completion), 1)
        group = SFT if sample.type is SampleType.SFT else OTHER if sample.role is None else groups.index(sample.role)
        encoded.append(EncodedSample.of(ids, start, reward=sample.reward, weight=sample.weight, group=group))
    _log_changes(encoded, max_length, retokenised)
    return encoded


def _are_of(sample: TrainingSample, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the sample has sampled tokens that ``tokenizer`` decodes to its completion; another model's tokens are not trained."""
    ids = sample.completion_ids
    if not ids or min(ids) < 0 or max(ids) >= len(tokenizer):
        return False
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip().startswith(sample.completion.strip())


def _log_changes(encoded: Sequence[EncodedSample], max_length: int, retokenised: int) -> None:
    cut = sum(len(sample.input_ids) == max_length for sample in encoded)
    if cut:
        logger.info("%d of %d samples fill max_length=%d; longer ones lost tokens on the left", cut, len(encoded), max_length)
    if retokenised:
        logger.info("%d of %d samples have tokens of another tokenizer; their text is tokenised again", retokenised, len(encoded))


class TrainingSet(Dataset[tuple[EncodedSample, float]]):
    """The samples with their reference log-probabilities, which ``reference.py`` fills in before the first step.

    ``FILLER`` indexes the filler.
    """

    def __init__(self, samples: Sequence[EncodedSample]) -> None:
        self.samples = samples
        self.ref_logprobs = [0.0] * len(samples)
        self.filler = replace(min(samples, key=lambda sample: len(sample.input_ids)), weight=0.0, group=FILLER)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: tuple[int, float]) -> tuple[EncodedSample, float]:
        """Return the sample at an index, its weight times a factor (``order.shares``), and its reference log-probability."""
        index, factor = place
        if index == FILLER:
            return self.filler, 0.0
        sample = self.samples[index]
        return replace(sample, weight=sample.weight * factor), self.ref_logprobs[index]


def collate(rows: Sequence[tuple[EncodedSample, float]], *, packed: bool) -> Batch:
    """Return one batch of B samples, K trained tokens and R rows of T tokens (R = 1 if ``packed``, else B).

    ``input_ids`` and ``position_ids`` (R, T) int64, unpacked rows right-padded with 0. ``columns`` (C,): positions where logits are needed.
    ``picks`` (K,): where in the flattened (R, C) each trained token is predicted; ``labels`` (K,): that token; ``sample`` (K,): its
    sample. ``spans``: which tokens of a packed row see each other. ``ref_logprob``, ``reward``, ``weight`` (B,) float32. ``group`` (B,)
    int64, a group's number or ``FILLER``.
    """
    samples = [sample for sample, _ in rows]
    sources = _packed_rows(samples) if packed else _padded_rows(samples)
    return {
        **sources,
        "labels": torch.tensor([token for sample in samples for token in sample.completion]),
        "sample": torch.tensor([index for index, sample in enumerate(samples) for _ in sample.completion]),
        "ref_logprob": torch.tensor([ref for _, ref in rows], dtype=torch.float32),
        "reward": torch.tensor([sample.reward for sample in samples], dtype=torch.float32),
        "weight": torch.tensor([sample.weight for sample in samples], dtype=torch.float32),
        "group": torch.tensor([sample.group for sample in samples], dtype=torch.int64),
    }


def _packed_rows(samples: Sequence[EncodedSample]) -> Batch:
    packing = pack([sample.fed for sample in samples])
    sources = torch.cat([row[sample.completion_start - 1 :] for sample, row in zip(samples, packing.rows, strict=True)])
    columns, picks = torch.unique(sources, return_inverse=True)
    row = {"input_ids": packing.input_ids[None], "position_ids": packing.position_ids[None], "spans": packing.spans}
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
    return {"input_ids": input_ids, "position_ids": torch.arange(width).expand_as(input_ids), "columns": columns, "picks": picks}
