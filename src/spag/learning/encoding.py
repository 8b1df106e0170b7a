"""Training samples as tokens.

A completion's tokens are the sampled ones, if they are known, the tokenizer decodes them to the same text, and they end
as this model's replies do; otherwise the text is tokenised alone and the end token is appended, unless the completion
was truncated. Only completions are trained. Offline, samples that are too long lose tokens on the left. Online, nothing
is cut: the policy is trained on exactly the tokens that it sampled, after exactly the prompt that the engine saw.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import fmean
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from spag.algorithms.base import OTHER, SFT
from spag.core.episodes import SampleType, TrainingSample
from spag.core.errors import ConfigError, DataError
from spag.core.thinking import ANSWER, END_OF_ANSWER, split_thought
from spag.models.collate import EncodedSample
from spag.models.tokens import (
    PromptStyle,
    as_reply,
    decode_reply,
    encode_prompt,
    end_token_id,
    said_ids,
    special_ids,
    spoken,
    stop_token_ids,
    token_count,
)

logger = logging.getLogger(__name__)


def group_names(samples: Sequence[TrainingSample]) -> tuple[str, ...]:
    """Return the groups with separate metrics: the SFT mix, samples without a role, and each role."""
    return ("sft", "other", *sorted({sample.role for sample in samples if sample.role is not None}))


def encode_samples(
    samples: Sequence[TrainingSample],
    tokenizer: PreTrainedTokenizerBase,
    style: PromptStyle,
    max_length: int,
    generation: GenerationConfig | None = None,
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
            raise DataError(f"{place}: prompt and completion hold no token, so there is nothing to train on")
        # A first token has no context to predict it: if a completion fills max_length, only the rest is trained.
        start = max(len(ids) - len(completion), 1)
        group = OTHER if sample.role is None else groups.index(sample.role, 2)
        group = SFT if sample.type is SampleType.SFT else group
        encoded.append(EncodedSample.of(ids, start, reward=sample.reward, weight=sample.weight, group=group))
    _log_changes(len(encoded), max_length, cut, retokenised)
    return encoded


def _are_of(
    sample: TrainingSample, tokenizer: PreTrainedTokenizerBase, style: PromptStyle, known: int, foreign: frozenset[int]
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
        what = "they lost tokens on the left, so they are trained behind a shorter prompt than was played"
        logger.warning("%d of %d samples are longer than max_length=%d; %s", cut, count, max_length, what)
    if retokenised:
        what = "of another tokenizer, model or prompt style; their text is tokenised again"
        logger.info("%d of %d samples have tokens %s", retokenised, count, what)


def encode_sampled(
    samples: Sequence[TrainingSample], tokenizer: PreTrainedTokenizerBase, style: PromptStyle, roles: Sequence[str]
) -> list[EncodedSample]:
    """Return an online step's samples exactly as the engine saw and sampled them; ``group`` is 2 + the role's index.

    Leaves out samples with a token that the tokenizer does not know: vocabularies are padded, so a model can sample
    tokens that cannot be decoded. Raises ``DataError`` for a sample without log-probabilities.
    """
    encoded, known = [], token_count(tokenizer)
    encoded_prompt = cache(partial(encode_prompt, tokenizer, style=style))
    for sample in samples:
        ids = sample.completion_ids or ()
        if min(ids, default=0) < 0 or max(ids, default=0) >= known:
            continue
        if sample.logprobs is None or len(sample.logprobs) != len(ids):
            place = f"game {sample.episode_id!r}, turn {sample.turn}"
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
