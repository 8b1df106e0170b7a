"""The tokens of a request's prompt, the same for every engine that tokenizes here."""

from functools import lru_cache
from typing import TYPE_CHECKING

from spag.core.errors import EngineError
from spag.engines.base import Request
from spag.models.tokens import PromptStyle, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_request(
    tokenizer: "PreTrainedTokenizerBase", request: Request, style: PromptStyle
) -> tuple[tuple[int, ...], bool]:
    """Return the prompt's last ``max_prompt_tokens`` tokens, and whether it was longer.

    Raises ``EngineError`` for an empty prompt.
    """
    ids = _encoded(tokenizer, request.prompt, style, thinking=request.sampling.thought_tokens > 0)
    if not ids:
        raise EngineError(f"{request.id}: the prompt is empty, and the tokenizer has no BOS to start from")
    kept = ids[-request.sampling.max_prompt_tokens :]  # 0 keeps all
    return kept, len(kept) < len(ids)


@lru_cache(maxsize=512)  # in a small game most prompts recur
def _encoded(
    tokenizer: "PreTrainedTokenizerBase", prompt: str, style: PromptStyle, *, thinking: bool
) -> tuple[int, ...]:
    return tuple(encode_prompt(tokenizer, prompt, style, thinking=thinking))
