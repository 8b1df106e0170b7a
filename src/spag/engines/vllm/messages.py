"""Messages between a pool and its vLLM processes (``pool.py``, ``worker.py``)."""

from dataclasses import dataclass
from typing import Any

HOST = "host"
"""Replaces the id of a GPU for a buffer in host memory."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A request to vLLM.

    ``sampling`` are arguments of ``vllm.SamplingParams``; ``adapter`` counts from 1, 0 is the base model.
    """

    key: str
    prompt: list[int]
    sampling: dict[str, Any]
    adapter: int


@dataclass(frozen=True, slots=True)
class WorkerAbort:
    """Requests to drop, by key; some may have finished."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerAdapter:
    """New weights of an adapter, in a folder. Nothing may be in flight."""

    folder: str
    adapter: int


@dataclass(frozen=True, slots=True)
class WorkerWeights:
    """A chunk of the base model's new weights; ``first`` and ``last`` mark the first and last one. Nothing may be in
    flight.

    ``update``: vLLM's ``update_info``, whose ``ipc_handles`` give the buffer by GPU id, or under ``HOST``
    in which file; without them the trainer broadcasts. ``sums``: what the sums of some weights must be in the end.
    """

    update: dict[str, Any]
    first: bool
    last: bool
    sums: dict[str, float]


@dataclass(frozen=True, slots=True)
class WorkerJoin:
    """A group to join, with the trainer whose broadcasts bring new weights: vLLM's ``init_info``."""

    place: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerSleep:
    """Release GPU memory, at vLLM's level 1 or 2; 0: reclaim it. Nothing may be in flight."""

    level: int


@dataclass(frozen=True, slots=True)
class WorkerOutput:
    """Sampled tokens, their raw and sampling log-probabilities, and whether the token limit ended them."""

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    hit_limit: bool


Order = WorkerAdapter | WorkerWeights | WorkerJoin | WorkerSleep
"""Orders that a worker answers with ``None`` when done, or with the reason why it cannot."""
Message = WorkerRequest | WorkerAbort | Order
