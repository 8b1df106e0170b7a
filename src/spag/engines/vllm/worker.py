"""The process of one vLLM replica: reads requests from a pipe, steps the engine, writes back what has finished.

``pool.py`` starts it. It lives as long as the other end of its pipe; a fault ends it with a traceback on its standard error, which the pool
reads.
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
class WorkerRequest:
    """A request to vLLM.

    ``sampling`` are arguments of ``vllm.SamplingParams``; ``adapter`` counts from 1, 0 is the base model.
    """

    key: str
    prompt: list[int]
    sampling: dict[str, Any]
    adapter: int


@dataclass(frozen=True, slots=True)
class WorkerOutput:
    """The sampled tokens, their raw log-probabilities, and whether the token limit ended them."""

    key: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    hit_limit: bool


def serve(pipe: Connection) -> None:
    """Open an engine and answer requests until the pipe closes.

    The first message holds the arguments of ``vllm.EngineArgs`` and the adapters' folders; ``None`` says that vLLM is ready.
    """
    arguments, folders = pipe.recv()
    from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: PLC0415 - only here, in vLLM's own process
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    adapters = [LoRARequest(f"adapter-{index}", index, path) for index, path in enumerate(folders, 1)]
    requests: queue.SimpleQueue[WorkerRequest | None] = queue.SimpleQueue()
    # a thread, so that neither side ever waits for the other to make room in the pipe
    threading.Thread(target=_read, args=(pipe, requests), daemon=True).start()
    pipe.send(None)
    cold = True
    while True:
        while not requests.empty() or not engine.has_unfinished_requests():
            request = requests.get()
            if request is None:
                engine.engine_core.shutdown()
                return
            adapter = adapters[request.adapter - 1] if request.adapter else None
            prompt, sampling = {"prompt_token_ids": request.prompt}, SamplingParams(**request.sampling)
            engine.add_request(request.key, prompt, sampling, lora_request=adapter)
            if cold:
                cold = False
                break  # one prefill fills the cache with the rules that all games share
        outputs = [_output(output) for output in engine.step() if output.finished]
        if outputs:
            pipe.send(outputs)


def _read(pipe: Connection, requests: "queue.SimpleQueue[WorkerRequest | None]") -> None:
    try:
        while True:
            requests.put(pipe.recv())
    except (EOFError, OSError):
        requests.put(None)


def _output(output: Any) -> WorkerOutput:
    done = output.outputs[0]
    token_ids = tuple(int(token) for token in done.token_ids)
    logprobs = tuple(float(step[token].logprob) for token, step in zip(token_ids, done.logprobs, strict=True))
    return WorkerOutput(output.request_id, token_ids, logprobs, done.finish_reason == "length")


def main() -> None:
    cores = os.environ.get("SPAG_VLLM_CORES")
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})  # before torch counts its threads
    status = 1
    try:
        with suppress(BrokenPipeError):  # the pool is gone
            serve(Connection(int(sys.argv[1])))
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # tearing down torch takes seconds, and a thread of vLLM's could block for ever
