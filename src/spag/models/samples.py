"""Training samples as tokens, and micro-batches of them for the forward pass (``forward.py``).

A completion's tokens are the sampled ones, if they are known, the tokenizer decodes them to the same text, and they end
as this model's replies do; otherwise the text is tokenised alone and the end token is appended, unless the completion
was truncated. Only completions are trained. Offline, samples that are too long lose tokens on the left. Online, nothing
is cut: the policy is trained on exactly the tokens that it sampled, after exactly the prompt that the engine saw.

A batch holds its samples as one packed row without padding if the model can attend to such rows, else as one row per
sample, padded on the RIGHT without an attention mask: attention is causal, so no real token ever sees the padding.
``columns`` are the positions that predict a trained token; logits are needed only there.

The samples of a packed row form a prefix tree: a prefix of several of them (the rules of the game, the shared history
of two moves of a game) appears once. The tree is laid out depth first; a token attends to itself and its ancestors
(``spans.py``), and its position is its depth. Every token sees exactly the context of its own sample, so
log-probabilities and gradients equal those of separate samples, up to rounding. Upstream pads each sample to the
longest of its batch and recomputes every prefix.
"""

import logging
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spag.algorithms.base import OTHER, SFT
from spag.core.episodes import SampleType, TrainingSample
from spag.core.errors import ConfigError, DataError
from spag.core.thinking import ANSWER, END_OF_ANSWER, split_thought
from spag.models.tokens import (
    PromptStyle,
    as_reply,
    decode_reply,
    encode_prompt,
    end_token_id,
    said_ids,
    shared_length,
    special_ids,
    spoken,
    stop_token_ids,
    token_count,
)

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

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


def group_names(samples: Sequence[TrainingSample]) -> tuple[str, ...]:
    """Return the groups with separate metrics: the SFT mix, samples without a role, and each role."""
    return ("sft", "other", *sorted({sample.role for sample in samples if sample.role is not None}))


def encode_samples(
    samples: Sequence[TrainingSample],
    tokenizer: "PreTrainedTokenizerBase",
    style: PromptStyle,
    max_length: int,
    generation: "GenerationConfig | None" = None,
) -> list[EncodedSample]:
    """Tokenise ``samples`` for offline training; ``group`` is an index in ``group_names``. ``generation``: the trained
    model's config, which may name further tokens that end replies.

    Raises ``DataError`` for a reward or weight that is not finite, ``ConfigError`` for a useless ``max_length``.
    """
    if max_length < 2:
        need = "at least 2 tokens are needed, one to predict and one to predict it from"
        raise ConfigError(f"max_length={max_length}: {need}")
    end, groups, known = end_token_id(tokenizer, style), group_names(samples), token_count(tokenizer)
    foreign = special_ids(tokenizer) - stop_token_ids(generation, tokenizer, style)
    encoded, retokenised, cut = [], 0, 0
    for index, sample in enumerate(samples):
        place = f"sample {index} (episode {sample.episode_id!r})"
        if not (math.isfinite(sample.reward) and math.isfinite(sample.weight)):
            raise DataError(f"{place}: reward {sample.reward} and weight {sample.weight} must be finite")
        as_sampled = _are_of(sample, tokenizer, style, known, foreign)
        retokenised += sample.completion_ids is not None and not as_sampled
        prompt = list(sample.prompt_ids or ()) if as_sampled else []
        prompt = prompt or encode_prompt(tokenizer, sample.prompt, style, thinking=sample.thinking and as_sampled)
        if as_sampled:
            completion = list(sample.completion_ids or ())
        else:
            ending = [] if sample.truncated else [end]
            text = sample.completion if sample.truncated else as_reply(sample.completion, style)
            completion = said_ids(tokenizer, text) + ending
        cut += len(prompt) + len(completion) > max_length
        ids = (prompt + completion)[-max_length:]
        if len(ids) < 2:
            raise DataError(f"{place}: prompt and completion have no tokens, so there is nothing to train on")
        # A first token has no context to predict it: if a completion fills max_length, only the rest is trained.
        start = max(len(ids) - len(completion), 1)
        group = OTHER if sample.role is None else groups.index(sample.role, 2)
        group = SFT if sample.type is SampleType.SFT else group
        encoded.append(EncodedSample.of(ids, start, reward=sample.reward, weight=sample.weight, group=group))
    _log_changes(len(encoded), max_length, cut, retokenised)
    return encoded


def _are_of(
    sample: TrainingSample,
    tokenizer: "PreTrainedTokenizerBase",
    style: PromptStyle,
    known: int,
    foreign: frozenset[int],
) -> bool:
    """Whether the sample has tokens that ``tokenizer``, which has ``known``, decodes to its completion, and that end as
    replies in ``style`` do. ``foreign``: the special tokens that end no reply.
    """
    ids = sample.completion_ids
    if not ids or min(ids) < 0 or max(ids) >= known:
        return False
    text = decode_reply(tokenizer, (), ids)
    if style is PromptStyle.TAGGED and not sample.thinking:
        text = ANSWER + text  # the prompt ends with the mark
    said = spoken(text, style, thinking=sample.thinking)
    said = (split_thought(said).speech if sample.thinking else said).strip()
    completion = sample.completion.strip()
    if not said.startswith(completion) or (ids[-1] in foreign and not sample.truncated):
        return False
    # A tagged reply may leave its answer open. In another style the mark would be trained as speech.
    return style is PromptStyle.TAGGED or not said[len(completion) :].lstrip().startswith(END_OF_ANSWER)


def _log_changes(count: int, max_length: int, cut: int, retokenised: int) -> None:
    if cut:
        what = "they lost tokens on the left, so they are trained after a shorter prompt than in play"
        logger.warning("%d of %d samples are longer than max_length=%d; %s", cut, count, max_length, what)
    if retokenised:
        what = "of another tokenizer, model or prompt style; their text is retokenised"
        logger.info("%d of %d samples have tokens %s", retokenised, count, what)


def encode_sampled(
    samples: Sequence[TrainingSample], tokenizer: "PreTrainedTokenizerBase", style: PromptStyle, roles: Sequence[str]
) -> list[EncodedSample]:
    """Return an online step's samples exactly as the engine saw and sampled them; ``group`` is 2 + the role's index.

    Raises ``DataError`` for a sample that no engine made: without log-probabilities, or with an unknown token.
    """
    encoded, known = [], token_count(tokenizer)
    encoded_prompt = cache(partial(encode_prompt, tokenizer, style=style))
    for sample in samples:
        ids = sample.completion_ids or ()
        place = f"game {sample.episode_id!r}, turn {sample.turn}"
        if min(ids, default=0) < 0 or max(ids, default=0) >= known:
            raise DataError(f"{place}: it has tokens of another tokenizer; online training needs its own games")
        if sample.logprobs is None or len(sample.logprobs) != len(ids):
            raise DataError(f"{place}: it has no log-probabilities; online training needs a local engine")
        prompt = list(sample.prompt_ids or encoded_prompt(sample.prompt, thinking=sample.thinking))
        encoded.append(
            EncodedSample.of(
                [*prompt, *ids],
                len(prompt),
                reward=sample.reward,
                weight=sample.weight,
                group=2 + roles.index(str(sample.role)),
                sampling_logprobs=tuple(sample.logprobs),
                played_logprobs=tuple(sample.raw_logprobs or sample.logprobs),
            )
        )
    return encoded


def collate(samples: Sequence[EncodedSample], *, packed: bool) -> Batch:
    """Return one batch of B samples, K trained tokens and R rows of T tokens (R = 1 if ``packed``, else B).

    ``input_ids`` and ``position_ids`` (R, T) int64, unpacked rows right-padded with 0. ``columns`` (C,): positions
    where logits are needed. ``picks`` (K,): the position in the flattened (R, C) that predicts each trained token;
    ``labels`` (K,): that token; ``sample`` (K,): its sample. ``depths``: the position ids of a packed row, as a list.
    ``advantage`` and ``weight`` (B,) float32. ``group`` (B,) int64, a group's number or ``FILLER``.
    """
    fed = [sample.fed for sample in samples]
    if packed:
        tokens, depths, paths = pack(fed)
        rows: Batch = {"input_ids": torch.tensor([tokens]), "position_ids": torch.tensor([depths]), "depths": depths}
    else:
        paths = [torch.arange(len(ids)) for ids in fed]
        input_ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in fed], batch_first=True).long()
        rows = {"input_ids": input_ids, "position_ids": torch.arange(input_ids.shape[1]).expand_as(input_ids)}
    # from the token before the first trained one to the last that is fed
    sources = [path[sample.completion_start - 1 :] for path, sample in zip(paths, samples, strict=True)]
    columns, picks = torch.unique(torch.cat(sources), return_inverse=True)
    owners = torch.tensor([index for index, sample in enumerate(samples) for _ in sample.completion])
    return {
        **rows,
        "columns": columns,
        "picks": picks if packed else owners * len(columns) + picks,
        "labels": torch.tensor([token for sample in samples for token in sample.completion]),
        "sample": owners,
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
