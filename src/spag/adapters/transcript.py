"""A role's game as one growing conversation, for trainers that treat a whole game as one sample.

A game's prompts are whole texts with a common prefix. Here the first is kept, and each later one adds only its new
lines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spag.engines.base import text_before_stop
from spag.models.tokens import (
    PromptStyle,
    decode_reply,
    encode_follow_up,
    encode_prompt,
    opening_of,
    shared_length,
    spoken,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(slots=True)
class Trajectory:
    """The tokens of a ``role`` in game number ``game``. ``completion_ids``, ``env_mask`` (1: sampled from the model)
    and ``logprobs`` have one length.
    """

    game: int
    role: str
    prompt: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    env_mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)

    def add(self, ids: Sequence[int], mask: int, logprobs: Sequence[float] | None) -> None:
        """Append tokens; if the log-probabilities of one piece are unknown, so are all."""
        self.completion_ids += ids
        self.env_mask += [mask] * len(ids)
        self.logprobs = None if self.logprobs is None or logprobs is None else [*self.logprobs, *logprobs]

    def extend_context(
        self, tokenizer: "PreTrainedTokenizerBase", prompt: str, style: PromptStyle, *, thinking: bool = False
    ) -> list[int]:
        """Append the new part of ``prompt``, and return the tokens that the role's next utterance continues."""
        if self.prompt:
            new_text = new_lines(self.prompt, prompt)
            new = encode_follow_up(tokenizer, self.completion_ids, new_text, style, thinking=thinking)
            self.add(new, 0, [0.0] * len(new))
        else:
            self.prompt_ids = encode_prompt(tokenizer, prompt, style, thinking=thinking)
        self.prompt = prompt
        return [*self.prompt_ids, *self.completion_ids]


def new_lines(before: str, now: str) -> str:
    """Return the lines of the prompt ``now`` after those that it shares with the prompt ``before``."""
    return now[now.rfind("\n", 0, shared_length(before, now)) + 1 :]


def cut(
    tokenizer: "PreTrainedTokenizerBase",
    context: Sequence[int],
    ids: Sequence[int],
    stops: tuple[str, ...],
    style: PromptStyle,
    *,
    thinking: bool = False,
) -> tuple[list[int], str]:
    """Return sampled tokens up to the one that completes a stop string, and the text before it.

    Thoughts may contain stop strings. A template may open a thought unasked; the text then includes the mark.
    """
    tagged = style is PromptStyle.TAGGED
    opening = opening_of(tokenizer, context, style, thinking=thinking or not tagged)

    def before_stop(count: int) -> tuple[str, str | None]:
        whole = opening + decode_reply(tokenizer, context, ids[:count])
        return whole, text_before_stop(whole, stops, thinking=True, tagged=tagged)

    length = len(ids)
    whole, text = before_stop(length)
    if text is not None:
        length = next(count for count in range(1, length + 1) if before_stop(count)[1] is not None)
    return list(ids[:length]), spoken(whole if text is None else text, style, thinking=thinking)
