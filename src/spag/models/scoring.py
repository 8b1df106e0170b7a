"""Log-probabilities of whole replies under a model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.models.packed_attention import ATTENTION, UNSUPPORTED, PackedRow, attends_to_all, computing_dtype
from spag.models.packing import pack
from spag.models.tokens import PromptStyle, end_token_id, shared_length

_ROW = 2048
"""Tokens of a packed row: enough for fast matrix products; the logits of its replies take about 100 MB."""
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.3  # half precision differs by the order of sums

Asked = tuple[list[int], int]
"""The tokens of a prompt with a reply, and where the reply begins."""


def completion_logprobs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[str]],
    style: PromptStyle = PromptStyle.PLAIN,
    on_scored: Callable[[int], object] = lambda count: None,
) -> list[list[float]]:
    """Return each prompt's completions' log-probabilities, at temperature 1: sums over their tokens and the end token.

    Shared prefixes are computed once (``packing.py``), unless the model cannot attend to packed rows. ``on_scored`` is
    called with the number of completions after each part of the work.
    """
    end = end_token_id(tokenizer, style)

    @cache
    def reply_ids(text: str) -> list[int]:
        return [*tokenizer(text, add_special_tokens=False).input_ids, end]

    pairs = [(prompt, text) for prompt, texts in zip(prompts, completions, strict=True) for text in texts]
    asked = [([*prompt, *reply_ids(text)], len(prompt)) for prompt, text in pairs]
    order = sorted(range(len(asked)), key=lambda at: asked[at][0])
    logprobs: list[float] = []
    with torch.inference_mode():
        for part in _logprobs(model, [asked[at] for at in order]):
            logprobs += part
            on_scored(len(part))
    scored = dict(zip(order, logprobs, strict=True))
    found = iter([scored[at] for at in range(len(asked))])
    return [[next(found) for _ in texts] for texts in completions]


def _logprobs(model: PreTrainedModel, asked: Sequence[Asked]) -> Iterator[list[float]]:
    """Yield the log-probabilities in order, some at a time."""
    if asked and attends_to_all(model.config, max(len(ids) for ids, _ in asked)):
        rows = list(_rows(asked))
        tried = [asked[0], asked[len(rows[0]) - 1]]  # the longest distance in one row
        expected = [_alone(model, *one) for one in tried]
        with _packed_attention(model):
            if _agrees(model, tried, expected):
                yield from (_in_one_row(model, row) for row in rows)
                return
    yield from ([_alone(model, *one)] for one in asked)


def _rows(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    """Split the requests, in order, into rows of about ``_ROW`` tokens, counting shared ones once."""
    row: list[Asked] = []
    size = 0
    for ids, start in asked:
        new = len(ids) - (shared_length(row[-1][0], ids) if row else 0)
        if row and size + new > _ROW:
            yield row
            row, size, new = [], 0, len(ids)
        row.append((ids, start))
        size += new
    yield row


def _agrees(model: PreTrainedModel, tried: Sequence[Asked], expected: Sequence[float]) -> bool:
    """Whether the model computes the same in a packed row as in separate rows."""
    try:
        found = _in_one_row(model, tried)
    except UNSUPPORTED:
        return False
    tolerance = _TOLERANCE if computing_dtype(model.device, model.dtype) is torch.float32 else _HALF_TOLERANCE
    return all(abs(one - other) <= tolerance * max(1, abs(other)) for one, other in zip(found, expected, strict=True))


def _in_one_row(model: PreTrainedModel, asked: Sequence[Asked]) -> list[float]:
    packing = pack([ids[:-1] for ids, _ in asked])  # the last token predicts nothing
    columns, picks = packing.predicted_from([start for _, start in asked])
    device = model.device
    packed: dict[str, Any] = {
        "position_ids": packing.position_ids[None].to(device),
        "packed_row": PackedRow(packing, device),
        "logits_to_keep": columns.to(device),
    }
    logits = model(input_ids=packing.input_ids[None].to(device), use_cache=False, **packed).logits[0]
    labels = torch.tensor([token for ids, start in asked for token in ids[start:]], device=device)
    spoken = _label_logprobs(logits, picks.to(device), labels)
    return [float(part.sum()) for part in spoken.split_with_sizes([len(ids) - start for ids, start in asked])]


def _label_logprobs(logits: Tensor, picks: Tensor, labels: Tensor) -> Tensor:
    """Return log p(label), (K,), for ``logits`` (C, V) of different positions; ``picks`` (K,) are each label's."""
    total = logits.float().logsumexp(-1)
    return logits[picks, labels].float() - total[picks]


def _alone(model: PreTrainedModel, ids: Sequence[int], start: int) -> float:
    reply = torch.tensor(ids[start:], device=model.device)
    inputs = torch.tensor([ids[:-1]], device=model.device)
    logits = model(input_ids=inputs, use_cache=False, logits_to_keep=len(reply)).logits[0]
    return float(_label_logprobs(logits, torch.arange(len(reply), device=model.device), reply).sum())


@contextmanager
def _packed_attention(model: PreTrainedModel) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
