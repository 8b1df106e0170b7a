"""Models that are asked in their chat template, and may think before they answer.

A task's stop strings hold for the answer, not for the thought before it: lm-eval would end both at the first blank
line. So a model writes to its own end or to the limit of tokens, and the thought and what follows a stop string are cut
off here. Who is still thinking at the limit has given no answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.instance import Instance

from spag.core.thinking import split_thought
from spag.engines.base import text_before_stop


class ChatModel:
    """An lm-eval model with its cache, which keeps whole replies."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lm, name)

    def generate_until(self, requests: Sequence[Instance], **options: Any) -> list[str]:
        whole = [replace(one, arguments=(one.args[0], {**one.args[1], "until": []})) for one in requests]
        replies = self.lm.generate_until(whole, **options)
        return [answer_in(reply, one.args[1].get("until")) for reply, one in zip(replies, requests, strict=True)]


def answer_in(reply: str, stop: str | Sequence[str] | None) -> str:
    """Return what a reply says after its thoughts, up to the first of ``stop``."""
    answer = split_thought(reply).speech.lstrip()
    marks = (stop,) if isinstance(stop, str) else tuple(stop or ())
    cut = text_before_stop(answer, tuple(filter(None, marks)))
    return answer if cut is None else cut
