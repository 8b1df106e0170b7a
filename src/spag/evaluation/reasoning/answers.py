"""lm-eval's cache of answers, so that a stopped evaluation resumes.

lm-eval stores pickles, which are unsafe to read from a folder that people share; here the same SQLite file holds JSON.
Sampled answers are not cached: samples of one item must differ.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lm_eval.api.model import LM, CachingLM
from sqlitedict import SqliteDict  # type: ignore[import-untyped]


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
