"""The process of one vLLM replica: reads requests and new weights from a pipe, steps the engine, writes back what has
finished.

``pool.py`` starts it. It lives as long as the other end of its pipe; a fault ends it with a traceback on its standard
error, which the pool reads.
"""

import os
import queue
import shutil
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_STEPS = 10  # that vLLM may take to drop requests
_GRACE_S = 6.0  # between the pool's end and ours


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
class WorkerUpdate:
    """New weights: the folder of a checkpoint (``adapter`` 0) or of an adapter. Nothing may be in flight."""

    folder: str
    adapter: int


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


Message = WorkerRequest | WorkerAbort | WorkerUpdate | WorkerSleep


def serve(pipe: Connection) -> None:
    """Open an engine and answer messages until the pipe closes.

    The first message holds the arguments of ``vllm.EngineArgs``, the adapters' folders and the number of tokens that
    may be sampled; ``None`` says that vLLM is ready, with its first weights or with new ones, or asleep or awake.
    """
    arguments, folders, token_count = pipe.recv()
    learned: dict[int, str] = {}
    messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    # a thread, so that neither side ever waits for the other to make room in the pipe, and the pool's end is seen while
    # vLLM is starting
    threading.Thread(target=_read, args=(pipe, messages, learned), daemon=True).start()
    from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: PLC0415 - only here, in vLLM's own process

    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    engine.collective_rpc("extend_sampler", args=(token_count,))
    adapters = {index: _adapter(index, path) for index, path in enumerate(folders, 1)}
    pipe.send(None)
    cold, asleep = True, 0
    while True:
        while not messages.empty() or not engine.has_unfinished_requests():
            message = messages.get()
            if message is None:
                engine.engine_core.shutdown()
                _remove(learned)
                return
            if isinstance(message, WorkerUpdate):
                current = message.folder if not message.adapter else learned.get(0, arguments["model"])
                if not (_sleep(engine, 0, asleep, current) and not message.adapter):
                    _update(engine, adapters, message)
                asleep = 0
                learned[message.adapter] = message.folder
                pipe.send(None)
                cold = True
            elif isinstance(message, WorkerSleep):
                _sleep(engine, message.level, asleep, learned.get(0, arguments["model"]))
                asleep = message.level
                pipe.send(None)
                cold = True
            elif isinstance(message, WorkerAbort):
                engine.abort_request(list(message.keys))
            else:
                prompt, sampling = {"prompt_token_ids": message.prompt}, SamplingParams(**message.sampling)
                engine.add_request(message.key, prompt, sampling, lora_request=adapters.get(message.adapter))
                if cold:
                    cold = False
                    break  # one prefill fills the cache with the rules that all games share
        outputs = [_output(output) for output in engine.step() if output.finished]
        if outputs:
            pipe.send(outputs)


def _adapter(index: int, folder: str, *, new: bool = False) -> Any:
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    return LoRARequest(f"adapter-{index}", index, folder, load_inplace=new)


def _update(engine: Any, adapters: dict[int, Any], update: WorkerUpdate) -> None:
    """Forget the keys and values of the old weights and load new ones into the running engine."""
    for _ in range(_STEPS):
        if engine.reset_prefix_cache():
            break
        engine.step()  # a dropped request holds its blocks until the step that it was in has ended
    else:
        raise RuntimeError("keys and values of old weights are still in use")
    if update.adapter:
        engine.add_lora(_adapter(update.adapter, update.folder, new=True))
        adapters[update.adapter] = _adapter(update.adapter, update.folder)
    else:
        engine.collective_rpc("reload_weights", kwargs={"weights_path": update.folder})
        engine.collective_rpc("refresh_packed_weights")


def _sleep(engine: Any, level: int, before: int, weights: str) -> bool:
    """Send the engine to sleep at ``level``, or wake it (0) from level ``before``; return whether that read weights.

    Level 1 keeps the weights in CPU memory, level 2 drops them: waking then reads those of the folder ``weights``.
    """
    if level:
        engine.sleep(level)
    elif before == 1:
        engine.wake_up()
    elif before:
        engine.wake_up(["weights"])
        engine.collective_rpc("reload_weights", kwargs={"weights_path": weights})
        engine.wake_up(["kv_cache"])
    return not level and before > 1


def _read(pipe: Connection, messages: "queue.SimpleQueue[Message | None]", learned: dict[int, str]) -> None:
    """Pass messages on. When the pipe closes, end the process, even if vLLM hangs."""
    try:
        while True:
            messages.put(pipe.recv())
    except (EOFError, OSError):
        messages.put(None)
    time.sleep(_GRACE_S)
    _remove(learned)
    os._exit(1)


def _remove(learned: dict[int, str]) -> None:
    """Delete the folders of new weights: the pool's process may have been killed before it could."""
    for folder in list(learned.values()):
        shutil.rmtree(folder, ignore_errors=True)


def _output(output: Any) -> WorkerOutput:
    done = output.outputs[0]
    values = done.logprobs.logprobs  # flat: the sampled distribution's and the raw one for each token
    token_ids = tuple(int(token) for token in done.token_ids)
    assert len(values) == 2 * len(token_ids)
    return WorkerOutput(
        output.request_id, token_ids, tuple(values[1::2]), tuple(values[::2]), done.finish_reason == "length"
    )


def main() -> None:
    """Serve the pool that started this process, on the cores that it gave."""
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
