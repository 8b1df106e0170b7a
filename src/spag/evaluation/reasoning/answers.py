"""lm-eval's model with its answers cached, and with replies in chats cut to the answer.

lm-eval's cache stores pickles, which are unsafe to read from a folder that people share; here the same SQLite file
holds JSON, so that a stopped evaluation resumes. Sampled answers are not cached: samples of one item must differ.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CachingLM
from sqlitedict import SqliteDict  # type: ignore[import-untyped]

from spag.core.thinking import OPEN, split_thought
from spag.engines.base import text_before_stop


class _JsonCachingLM(CachingLM):  # type: ignore[misc]
    def __init__(self, lm: LM, path: Path) -> None:
        self.lm, self.cache_db = lm, str(path)
        self.dbdict = SqliteDict(str(path), autocommit=True, encode=json.dumps, decode=json.loads)
        lm.set_cache_hook(self.get_cache_hook())


@contextmanager
def cached(lm: LM, path: Path) -> Iterator[LM]:
    """Yield ``lm`` with its answers cached in the file ``path``, which must belong only to this model and dtype."""
    path.parent.mkdir(parents=True, exist_ok=True)
    caching = _JsonCachingLM(lm, path)
    with caching.dbdict:
        yield caching


class ChatModel:
    """An lm-eval model, with its cache of whole replies, that may think before it answers.

    A task's stop strings apply to the answer, not to the thought before it: lm-eval would end either at the first blank
    line. So a model writes until it ends or reaches the token limit; the thought, and text after a stop string, are
    removed here. A model still thinking at the limit has given no answer.
    """

    def __init__(self, lm: Any) -> None:
        self.lm = lm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lm, name)

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        whole = [replace(one, arguments=(one.args[0], {**one.args[1], "until": []})) for one in requests]
        asked = zip(self.lm.generate_until(whole), (one.args for one in requests), strict=True)
        return [answer_in(_opening(prompt) + reply, options.get("until")) for reply, (prompt, options) in asked]


def _opening(prompt: str) -> str:
    """Return the mark of a thought that a template opens: a reply that is cut inside it shows no mark."""
    return OPEN if prompt.rstrip().endswith(OPEN) else ""


def answer_in(reply: str, stop: str | Sequence[str] | None) -> str:
    """Return the text of a reply after its thoughts, up to the first of ``stop``."""
    answer = split_thought(reply).speech.lstrip()
    marks = (stop,) if isinstance(stop, str) else tuple(stop or ())
    cut = text_before_stop(answer, tuple(filter(None, marks)))
    return answer if cut is None else cut
