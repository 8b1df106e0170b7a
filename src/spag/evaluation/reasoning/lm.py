"""lm-eval's interface to a model, with a cache of answers on disk and a progress bar.

lm-eval's own cache holds pickles, which must not be read from a folder that people pass around. Here answers are JSON lines keyed by the
request, in one file per model, so that a stopped evaluation resumes.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm_eval.models.huggingface import HFLM

from spag.config.schema import ModelConfig
from spag.core.episodes import raw_rows
from spag.core.errors import RunError, first_line
from spag.core.progress import Reporter
from spag.core.store import JsonlStore, mend_last_line
from spag.models.loading import load_model, load_tokenizer

CHUNK_BATCHES = 16  # scored between writes of the cache; texts take hundreds of times longer, and are written after each batch


class CachedLM(HFLM):  # type: ignore[misc]
    """lm-eval's transformers model over a model of ours; GGUF files, adapters and the embedded model work as everywhere else.

    ``cache`` holds the answers; it must belong to this model and dtype alone. ``title`` names the progress bar.
    """

    def __init__(self, model: ModelConfig, cache: Path, batch_size: int, reporter: Reporter) -> None:
        trust = model.trust_remote_code
        loaded = load_model(model.name, dtype=model.dtype, device=model.device, trust_remote_code=trust)
        super().__init__(pretrained=loaded, tokenizer=load_tokenizer(model.name, trust_remote_code=trust), batch_size=batch_size)
        self.title = model.name
        self._cache, self._reporter, self._batch = cache, reporter, batch_size
        self._answers = _read_answers(cache)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return for each (context, continuation) the continuation's log-probability in nats, and whether greedy decoding gives it."""
        answers = self._cached("loglikelihood", requests, super().loglikelihood)
        return [(float(value), bool(greedy)) for value, greedy in answers]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return for each request (context, settings) the text generated."""
        if any(request.args[1].get("do_sample") for request in requests):
            drawn: list[str] = super().generate_until(requests, disable_tqdm=True)  # never cached: repeats must differ
            return drawn
        return [str(text) for text in self._cached("generate_until", requests, super().generate_until)]

    def _cached(self, kind: str, requests: Sequence[Any], compute: Callable[..., list[Any]]) -> list[Any]:
        """Compute the missing answers in chunks, longest requests first."""
        chunk_size = self._batch * (1 if kind == "generate_until" else CHUNK_BATCHES)
        keys = [_key(kind, request.args) for request in requests]
        missing = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._answers}
        todo = sorted(missing.items(), key=lambda item: (-len(item[1].args[0]), item[1].args[0]))
        total = len(set(keys))
        with JsonlStore(self._cache) as store, self._reporter.track(self.title, total, total - len(todo)) as tracker:
            for start in range(0, len(todo), chunk_size):
                chunk = todo[start : start + chunk_size]
                answers = self._compute(compute, [request for _, request in chunk])
                known = dict(zip((key for key, _ in chunk), answers, strict=True))
                store.append(*({"key": key, "answer": answer} for key, answer in known.items() if _is_storable(answer)))
                self._answers.update(known)
                tracker.update(total - len(todo) + start + len(chunk))
        return [self._answers[key] for key in keys]

    def _compute(self, compute: Callable[..., list[Any]], requests: list[Any]) -> list[Any]:
        try:
            return compute(requests, disable_tqdm=True)
        except AssertionError as error:  # lm-eval's way to say that a request does not fit the model's context
            raise RunError(f"{self.title}: {first_line(error)}") from error
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            raise RunError(f"{self.title}: out of memory; lower --batch-size and start again: what is answered is kept") from error


def _key(kind: str, arguments: Sequence[Any]) -> str:
    text = json.dumps([kind, *arguments], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _is_storable(answer: Any) -> bool:
    """JSON has no infinities; such an answer is computed again."""
    return isinstance(answer, str) or math.isfinite(answer[0])


def _read_answers(path: Path) -> dict[str, Any]:
    mend_last_line(path)
    if not path.exists():
        return {}
    return {row["key"]: row["answer"] for _, row in raw_rows(path)}
