"""Messages between a pool and the processes that vLLM runs in (``pool.py``, ``worker.py``)."""

from dataclasses import dataclass
from typing import Any

HOST = "host"
"""Where the id of a GPU would be, for a buffer in host memory."""


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
    """Requests to drop, by key; those that have finished may be among them."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerAdapter:
    """New weights of an adapter, in a folder. Nothing may be in flight."""

    folder: str
    adapter: int


@dataclass(frozen=True, slots=True)
class WorkerWeights:
    """A part of the base model's new weights, from the ``first`` to the ``last``. Nothing may be in flight.

    ``update``: vLLM's ``update_info``, whose ``ipc_handles`` say where the buffer is by the GPU's id, or by ``HOST``
    in which file. ``sums``: what the sums of some weights must be in the end.
    """

    update: dict[str, Any]
    first: bool
    last: bool
    sums: dict[str, float]


@dataclass(frozen=True, slots=True)
class WorkerSleep:
    """Give up memory of the GPU, at vLLM's level 1 or 2; 0: take it again. Nothing may be in flight."""

    level: int


@dataclass(frozen=True, slots=True)
class WorkerOutput:
    """Sampled tokens, raw log-probabilities and those drawn from, and whether the token limit ended them."""

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    hit_limit: bool


Order = WorkerAdapter | WorkerWeights | WorkerSleep
"""What a worker answers with ``None`` when it is done, or with the reason why it cannot."""
Message = WorkerRequest | WorkerAbort | Order
