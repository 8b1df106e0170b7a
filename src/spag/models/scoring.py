"""Log-probabilities of whole replies under a model."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import inf

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.models.forward import probe_capabilities, to_device, token_scores
from spag.models.packed_attention import short_length
from spag.models.samples import EncodedSample, collate
from spag.models.tokens import PromptStyle, end_token_id, shared_length

_ROW, _ROW_OF_LOGITS = 2048, 512
"""Tokens of a packed row: enough for fast matrix products; fewer where all logits of its replies exist at once, which
then take about 100 MB.
"""


def completion_logprobs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[str]],
    style: PromptStyle = PromptStyle.PLAIN,
    on_scored: Callable[[int], object] = lambda count: None,
) -> list[list[float]]:
    """Return each prompt's completions' log-probabilities, at temperature 1: sums over their tokens and the end token.
    Tagged ones have none: play stops at the tag that closes the answer.

    Shared prefixes are computed once (``samples.py``), unless the model cannot attend to packed rows. ``on_scored`` is
    called with the number of completions after each part of the work.
    """
    end = [] if style is PromptStyle.TAGGED else [end_token_id(tokenizer, style)]

    @cache
    def reply_ids(text: str) -> list[int]:
        return [*tokenizer(text, add_special_tokens=False).input_ids, *end]

    pairs = [(prompt, text) for prompt, texts in zip(prompts, completions, strict=True) for text in texts]
    asked = [EncodedSample.of([*prompt, *reply_ids(text)], len(prompt)) for prompt, text in pairs]
    short, attention = short_length(model.config) or inf, model.config._attn_implementation
    order = sorted(range(len(asked)), key=lambda at: (len(asked[at].fed) > short, asked[at].input_ids))
    logprobs: list[float] = []
    try:
        with torch.inference_mode():
            capabilities = probe_capabilities(model, max((len(one.input_ids) for one in asked), default=0))
            most = 0 if not capabilities.packed else _ROW if capabilities.chunked else _ROW_OF_LOGITS
            for row in _rows([asked[at] for at in order], most, short):
                batch = to_device(collate(row, packed=capabilities.packed), model.device)
                scores = token_scores(model, batch, capabilities)[:, 0]
                logprobs += [float(one.sum()) for one in scores.split_with_sizes([len(one.completion) for one in row])]
                on_scored(len(row))
    finally:
        model.set_attn_implementation(attention)
    scored = dict(zip(order, logprobs, strict=True))
    found = iter([scored[at] for at in range(len(asked))])
    return [[next(found) for _ in texts] for texts in completions]


def _rows(samples: Sequence[EncodedSample], most: int, short: float) -> Iterator[list[EncodedSample]]:
    """Split the samples, in order, into rows of about ``most`` tokens, counting shared ones once. Texts longer than
    ``short`` come last, in rows of their own: others would get their frequencies.
    """
    row: list[EncodedSample] = []
    size = 0
    for one in samples:
        new = len(one.fed) - (shared_length(row[-1].fed, one.fed) if row else 0)
        if row and (size + new > most or len(row[-1].fed) <= short < len(one.fed)):
            yield row
            row, size, new = [], 0, len(one.fed)
        row.append(one)
        size += new
    if row:
        yield row
