"""The log-probabilities that a model gives to whole replies."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from spag.models.tokens import PromptStyle, end_token_id


def completion_logprobs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Sequence[int],
    completions: Sequence[str],
    style: PromptStyle = PromptStyle.PLAIN,
) -> list[float]:
    """Return each completion's log-probability after ``prompt_ids``, at temperature 1: the sum over its tokens and the end token."""
    end = end_token_id(tokenizer, style)
    replies = [[*tokenizer(text, add_special_tokens=False).input_ids, end] for text in completions]
    longest = max(map(len, replies))
    rows = [[*prompt_ids, *reply, *[end] * (longest - len(reply))] for reply in replies]
    ids = torch.tensor(rows, device=model.device)  # (B, T), padded on the right, where causal attention sees nothing of it
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=longest + 1)
        logprobs = output.logits[:, :-1].float().log_softmax(-1)  # (B, longest, V)
    spoken = logprobs.gather(-1, ids[:, len(prompt_ids) :, None]).squeeze(-1)
    return [float(row[: len(reply)].sum()) for row, reply in zip(spoken, replies, strict=True)]
