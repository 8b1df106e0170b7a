"""One copy of vLLM in a process of its own: reads requests from a pipe, steps the engine, writes back what has finished.

Started by ``vllm.py``. It lives as long as the other end of its pipe does; a fault ends it with
a traceback on its standard error, which the other side reads.
"""

import os
import queue
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True, slots=True)
class Ask:
    """A request on its way to vLLM.

    ``sampling`` are arguments of ``vllm.SamplingParams``; ``adapter`` counts from 1, 0 is the base model.
    """

    key: str
    prompt: list[int]
    sampling: dict[str, Any]
    adapter: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What vLLM sampled: tokens, their raw log-probabilities, and whether the token limit ended it."""

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    hit_limit: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """The first message: arguments of ``vllm.EngineArgs`` and the adapters' folders. It is answered with ``None`` once vLLM is ready."""

    arguments: dict[str, Any]
    adapters: tuple[str, ...]


def serve(pipe: Connection) -> None:
    """Open the engine that the first message describes and answer requests until the pipe closes."""
    opening: Opening = pipe.recv()
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - only here, in vLLM's own process
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    engine = LLMEngine.from_engine_args(EngineArgs(**opening.arguments))
    adapters = [LoRARequest(f"adapter-{index}", index, path) for index, path in enumerate(opening.adapters, 1)]
    asks: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
    # a thread, so that neither side ever waits for the other to make room in the pipe
    threading.Thread(target=_read, args=(pipe, asks), daemon=True).start()
    pipe.send(None)
    cold = True
    while True:
        while not asks.empty() or not engine.has_unfinished_requests():
            ask = asks.get()
            if ask is None:
                engine.engine_core.shutdown()
                return
            _submit(engine, ask, adapters[ask.adapter - 1] if ask.adapter else None)
            if cold:
                cold = False
                break  # one prefill fills the cache with the rules that all games share
        replies = [_reply(output) for output in engine.step() if output.finished]
        if replies:
            pipe.send(replies)


def _read(pipe: Connection, asks: "queue.SimpleQueue[Ask | None]") -> None:
    try:
        while True:
            asks.put(pipe.recv())
    except (EOFError, OSError):
        asks.put(None)


def _submit(engine: Any, ask: Ask, adapter: Any) -> None:
    from vllm import SamplingParams  # noqa: PLC0415

    engine.add_request(ask.key, {"prompt_token_ids": ask.prompt}, SamplingParams(**ask.sampling), lora_request=adapter)


def _reply(output: Any) -> Reply:
    done = output.outputs[0]
    token_ids = tuple(int(token) for token in done.token_ids)
    logprobs = tuple(float(step[token].logprob) for token, step in zip(token_ids, done.logprobs, strict=True))
    return Reply(output.request_id, token_ids, logprobs, done.finish_reason == "length")


def main() -> None:
    cores = os.environ.get("SPAG_VLLM_CORES")
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})  # before torch counts its threads
    status = 1
    try:
        with suppress(BrokenPipeError):  # the other side is gone, and so is all need for us
            serve(Connection(int(sys.argv[1])))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # nothing is left to save, tearing down torch takes seconds, and a thread of vLLM's could hold us up for ever
