"""The log-probabilities that a model gives to whole replies."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from spag.models.tokens import PromptStyle, end_token_id, shared_length

_ROWS = 32
"""Replies in a forward pass: each holds the keys and values of the prompt, and logits for its tokens."""


def completion_logprobs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[str]],
    style: PromptStyle = PromptStyle.PLAIN,
) -> list[list[float]]:
    """Return the log-probabilities of each prompt's completions, at temperature 1: the sum over a completion's tokens
    and the end token.

    What all prompts begin with goes through the model once, where it keeps keys and values.
    """
    if not prompts:
        return []
    end = end_token_id(tokenizer, style)

    @cache
    def reply_ids(text: str) -> list[int]:
        return [*tokenizer(text, add_special_tokens=False).input_ids, end]

    found = [[0.0] * len(texts) for texts in completions]
    with torch.inference_mode():
        prefix = prompts[0][: min(shared_length(prompts[0], prompt[:-1]) for prompt in prompts)]
        past = _keys_and_values(model, prefix)
        start = len(prefix) if past is not None else 0
        rows: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by length: a batch is padded behind replies only
        for at, prompt in enumerate(prompts):
            rows[len(prompt)] += [(at, which) for which in range(len(completions[at]))]
        for same in rows.values():
            for first in range(0, len(same), _ROWS):
                batch = same[first : first + _ROWS]
                asked = [list(prompts[at][start:]) for at, _ in batch]
                replies = [reply_ids(completions[at][which]) for at, which in batch]
                for (at, which), logprob in zip(batch, _reply_logprobs(model, asked, replies, past), strict=True):
                    found[at][which] = logprob
    return found


def _keys_and_values(model: PreTrainedModel, ids: Sequence[int]) -> DynamicCache | None:
    """Return what the model keeps of ``ids``; ``None`` where there are none, or it keeps more than keys and values."""
    if not ids:
        return None
    past = model(input_ids=torch.tensor([ids], device=model.device), use_cache=True, logits_to_keep=1).past_key_values
    plain = isinstance(past, DynamicCache) and all(isinstance(layer, DynamicLayer) for layer in past.layers)
    return past if plain else None


def _reply_logprobs(
    model: PreTrainedModel, asked: Sequence[list[int]], replies: Sequence[list[int]], past: DynamicCache | None
) -> list[float]:
    """Return the log-probability of each reply after ``past`` and the tokens that were ``asked``, of one length."""
    longest = max(map(len, replies))
    rows = [[*ask, *reply, *[reply[-1]] * (longest - len(reply))] for ask, reply in zip(asked, replies, strict=True)]
    ids = torch.tensor(rows, device=model.device)  # (B, T), padded on the right, where causal attention sees nothing
    if past is not None:
        past = copy.deepcopy(past)  # the model appends to it
        past.batch_repeat_interleave(len(rows))
    output = model(input_ids=ids, past_key_values=past, use_cache=past is not None, logits_to_keep=longest + 1)
    logits = output.logits[:, :-1].float()  # (B, longest, V)
    spoken = logits.gather(-1, ids[:, -longest:, None]).squeeze(-1) - logits.logsumexp(-1)  # (B, longest)
    return [float(row[: len(reply)].sum()) for row, reply in zip(spoken, replies, strict=True)]
