"""The process of one vLLM replica: reads requests and new weights from a pipe, steps the engine, writes back
completions.

``pool.py`` starts it. It lives as long as the other end of its pipe; an error ends it with a traceback on stderr, which
the pool reads.
"""

import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from spag.engines.vllm.served import ServedWeights

_GRACE_S = 12.0
"""Between the pool's end and ours: vLLM waits 5 s for its own workers, and 4 more before it kills them, and only then
removes their shared memory. Less than ``_CLOSING_SECONDS`` of ``pool.py``.
"""
WATCHED = 16
"""With more texts in a step nobody reads them as they grow; reporting them would delay the next step."""
_SHOWN_S = 0.1
"""Between two reports of unfinished texts."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A request. ``sampling``: arguments of ``vllm.SamplingParams``; ``adapter``: from 1, 0 for the base model."""

    key: str
    prompt: list[int]
    sampling: dict[str, Any]
    adapter: int


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """A call of a ``method`` of ``ServedWeights``, while nothing is in flight. The worker answers with its result:
    ``None`` when done, or the reason why it cannot.
    """

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class WorkerOutput:
    """Sampled tokens, their raw and sampling log-probabilities (none until ``finished``), and whether the token limit
    ended them.
    """

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    hit_limit: bool
    finished: bool = True


Message = WorkerRequest | WorkerOrder


def serve(pipe: Connection) -> None:
    """Open an engine and answer each ``Message`` until the pipe closes.

    The first message holds the arguments of ``vllm.EngineArgs``, the adapters' folders and the number of tokens that
    may be sampled; ``None`` means that vLLM is ready.
    """
    arguments, folders, token_count = pipe.recv()
    messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    # a thread, so that neither side ever blocks on a full pipe, and the pool's end is noticed while vLLM is starting
    threading.Thread(target=_read, args=(pipe, messages), daemon=True).start()
    from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: PLC0415 - only here, in vLLM's own process

    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    engine.collective_rpc("extend_sampler", args=(token_count,))
    weights = ServedWeights(engine, arguments["model"], folders)
    _send(pipe, None)
    cold, shown = True, 0.0
    while True:
        while not messages.empty() or not engine.has_unfinished_requests():
            message = messages.get()
            if message is None:
                engine.engine_core.shutdown()
                return
            if isinstance(message, WorkerRequest):
                prompt, sampling = {"prompt_token_ids": message.prompt}, SamplingParams(**message.sampling)
                engine.add_request(message.key, prompt, sampling, lora_request=weights.adapters.get(message.adapter))
                if cold:
                    cold = False
                    break  # one prefill fills the cache with the rules shared by all games
            else:
                cold = True
                _send(pipe, getattr(weights, message.method)(*message.arguments))
        outputs, now = engine.step(), time.monotonic()
        show = len(outputs) <= WATCHED and now - shown >= _SHOWN_S
        shown = now if show else shown
        if sent := [_output(output) for output in outputs if show or output.finished]:
            _send(pipe, sent)


def _send(pipe: Connection, answer: Any) -> None:
    with suppress(ConnectionError):  # the pool is gone, and the last message of ``_read`` says so
        pipe.send(answer)


def _read(pipe: Connection, messages: "queue.SimpleQueue[Message | None]") -> None:
    """Forward messages. When the pipe closes, end the process, even if vLLM hangs."""
    folders: dict[int, str] = {}  # of adapters' new weights
    with suppress(EOFError, OSError):
        while True:
            message = pipe.recv()
            if isinstance(message, WorkerOrder) and message.method == "adapt":
                folders.update([message.arguments])
            messages.put(message)
    for folder in folders.values():  # the pool's process may have been killed before it could
        shutil.rmtree(folder, ignore_errors=True)
    messages.put(None)
    time.sleep(_GRACE_S)
    _kill_group()


def _kill_group() -> None:
    """End this process, and those that vLLM started for tensor parallelism: they may hang in NCCL."""
    if os.getpgrp() == os.getpid():  # as the pool starts it; any other group has processes that are not ours
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _output(output: Any) -> WorkerOutput:
    done = output.outputs[0]
    token_ids = tuple(int(token) for token in done.token_ids)
    if not output.finished:
        return WorkerOutput(output.request_id, token_ids, (), (), hit_limit=False, finished=False)
    values = done.logprobs.logprobs  # flat: for each token the sampling log-probability, then the raw one
    assert len(values) == 2 * len(token_ids)
    return WorkerOutput(
        output.request_id, token_ids, tuple(values[1::2]), tuple(values[::2]), done.finish_reason == "length"
    )


def main() -> None:
    """Serve the pool that started this process, on its assigned cores."""
    cores = os.environ.get("SPAG_VLLM_CORES")
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})  # before torch counts its threads
    status = 1
    try:
        serve(Connection(int(sys.argv[1])))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # tearing down torch takes seconds, and a vLLM thread could block for ever
