"""A request's prompt as tokens, and whether a reply has room: the same for every engine that tokenizes here."""

from functools import lru_cache
from typing import TYPE_CHECKING

from spag.engines.base import Request, RequestError
from spag.models.tokens import PromptStyle, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_encode = lru_cache(maxsize=512)(encode_prompt)  # in a small game most prompts recur


def encode_request(
    tokenizer: "PreTrainedTokenizerBase", request: Request, style: PromptStyle
) -> tuple[tuple[int, ...], bool]:
    """Return the prompt's last ``max_prompt_tokens`` tokens, and whether it was longer.

    Raises ``RequestError`` for an empty prompt.
    """
    ids = _encode(tokenizer, request.prompt, style, thinking=request.sampling.thought_tokens > 0)
    if not ids:
        raise RequestError(f"{request.id}: the prompt is empty, and the tokenizer has no BOS to start from")
    kept = ids[-request.sampling.max_prompt_tokens :]  # 0 keeps all
    return tuple(kept), len(kept) < len(ids)


def check_room(request: Request, prompt_tokens: int, most: int | None, fix: str) -> None:
    """Raise ``RequestError`` if the prompt and the longest reply need more than ``most`` tokens; ``None``: no limit."""
    sampling = request.sampling
    if most and prompt_tokens + sampling.most_tokens > most:
        thought = f", thinking.max_tokens={sampling.thought_tokens}" if sampling.thought_tokens else ""
        what = f"a prompt of {prompt_tokens} tokens{thought} and max_new_tokens={sampling.max_new_tokens}"
        raise RequestError(f"{request.id}: {what} exceed {most} tokens; {fix}")


def longest_text(max_length: int, positions: int | None) -> int:
    """Return the longest prompt and reply together, in tokens: ``max_length``, or the model's ``positions`` if it has
    fewer.
    """
    return min(max_length, positions or max_length)
