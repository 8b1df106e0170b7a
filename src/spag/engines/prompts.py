"""A request as tokens, and the tokens of a reply as a completion: the same for every engine that tokenizes here."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from spag.engines.base import Completion, FinishReason, Request, RequestError, text_before_stop
from spag.models.tokens import PromptStyle, decode_reply, encode_prompt, opening_of, spoken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_encode = lru_cache(maxsize=512)(encode_prompt)  # in a small game most prompts recur


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request with its prompt's tokens, the last ``max_prompt_tokens``. ``opening``: the mark of a thought or an
    answer, if the prompt ends with it.
    """

    request: Request
    tokenizer: "PreTrainedTokenizerBase"
    style: PromptStyle
    prompt: tuple[int, ...]
    truncated: bool
    opening: str

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a reply, with what the prompt opens."""
        return self.opening + decode_reply(self.tokenizer, self.prompt, ids)

    def before_stop(self, text: str) -> str | None:
        """Return the part of a reply's text before its first stop; ``None`` if it has none."""
        thinking, tagged = self.request.sampling.thinks, self.style is PromptStyle.TAGGED
        return text_before_stop(text, self.request.stop, thinking=thinking, tagged=tagged)

    def spoken(self, text: str) -> str:
        """Return a reply's text with only its thought in marks."""
        return spoken(text, self.style, thinking=self.request.sampling.thinks)

    def completion(
        self,
        text: str,
        reason: FinishReason,
        ids: Sequence[int],
        logprobs: Sequence[float],
        sampling_logprobs: Sequence[float],
        *,
        unknown_token: bool = False,
    ) -> Completion:
        """Return a reply with ``text``, from ``decode`` or ``before_stop``, as a completion."""
        return Completion(
            id=self.request.id,
            text=self.spoken(text),
            finish_reason=reason,
            prompt_tokens=len(self.prompt),
            completion_tokens=len(ids),
            prompt_ids=self.prompt,
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            sampling_logprobs=tuple(sampling_logprobs),
            prompt_truncated=self.truncated,
            unknown_token=unknown_token,
        )


def tokenize(
    tokenizer: "PreTrainedTokenizerBase", request: Request, style: PromptStyle, most: int | None, fix: str
) -> TokenizedRequest | Completion:
    """Return ``request`` as tokens or, if prompt and longest reply need more than ``most`` (``None``: no limit),
    its completion, with a ``refusal`` that ends with ``fix``. Raises ``RequestError`` for an empty prompt.
    """
    sampling = request.sampling
    ids = _encode(tokenizer, request.prompt, style, thinking=sampling.thinks)
    if not ids:
        raise RequestError(f"{request.id}: the prompt is empty, and the tokenizer has no BOS to start from")
    prompt = tuple(ids[-sampling.max_prompt_tokens :])  # 0 keeps all
    if most and len(prompt) + sampling.most_tokens > most:
        thought = f", thinking.max_tokens={sampling.thought_tokens}" if sampling.thinks else ""
        what = f"a prompt of {len(prompt)} tokens{thought} and max_new_tokens={sampling.max_new_tokens}"
        refusal = f"{what} exceed the context length of {most} tokens; {fix}"
        return Completion(request.id, "", FinishReason.CONTEXT, token_ids=(), logprobs=(), refusal=refusal)
    opening = opening_of(tokenizer, prompt, style, thinking=sampling.thinks)
    return TokenizedRequest(request, tokenizer, style, prompt, len(prompt) < len(ids), opening)


def context_length(max_length: int, positions: int | None) -> int:
    """Return the longest prompt and reply together, in tokens; ``positions`` are those of the model, if known."""
    return min(max_length, positions or max_length)
