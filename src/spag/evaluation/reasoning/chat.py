"""Models that are prompted in their chat template and may think before they answer.

A task's stop strings apply to the answer, not to the thought before it: lm-eval would end either at the first blank
line. So a model writes until it ends or reaches the token limit; the thought, and text after a stop string, are removed
here. A model still thinking at the limit has given no answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance

from spag.core.thinking import split_thought
from spag.engines.base import text_before_stop


class ChatModel:
    """An lm-eval model with its cache of whole replies."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lm, name)

    def generate_until(self, requests: Sequence[Instance], **options: Any) -> list[str]:
        whole = [replace(one, arguments=(one.args[0], {**one.args[1], "until": []})) for one in requests]
        replies = self.lm.generate_until(whole, **options)
        return [answer_in(reply, one.args[1].get("until")) for reply, one in zip(replies, requests, strict=True)]


def answer_in(reply: str, stop: str | Sequence[str] | None) -> str:
    """Return the text of a reply after its thoughts, up to the first of ``stop``."""
    answer = split_thought(reply).speech.lstrip()
    marks = (stop,) if isinstance(stop, str) else tuple(stop or ())
    cut = text_before_stop(answer, tuple(filter(None, marks)))
    return answer if cut is None else cut
