"""The trainer's end of vLLM's ``nccl`` weight transfer: new weights of a whole model for engines on other devices.

The trainer is rank 0 of a group with vLLM's processes, which get the weights at the same time, in chunks, in their own
dtype. A training process imports parts of vLLM only here. An NCCL call whose partner has died never returns, so each
call has its own thread, and ``close`` aborts it.
"""

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import wraps
from operator import itemgetter
from typing import Any, ParamSpec

import torch
from torch import Tensor

from spag.config.schema import ModelConfig
from spag.core.errors import EngineError, first_line
from spag.engines.base import GroupPlace
from spag.engines.vllm.setup import installed_vllm
from spag.engines.vllm.transfer import BUFFER_BYTES, WeightTransfer
from spag.models.finding import read_adapter, resolve_model
from spag.models.roles import read_roles
from spag.storage.home import expanded

P = ParamSpec("P")


def in_background(work: Callable[P, None]) -> "Callable[P, Future[None]]":
    """Let ``work`` run in a thread that does not keep the process alive."""

    @wraps(work)
    def start(*args: P.args, **kwargs: P.kwargs) -> "Future[None]":
        result: Future[None] = Future()

        def run() -> None:
            try:
                work(*args, **kwargs)
            except (RuntimeError, OSError, ValueError, ImportError, AssertionError, EngineError) as error:
                result.set_exception(error)
            else:
                result.set_result(None)

        threading.Thread(target=run, daemon=True, name="spag-broadcast").start()
        return result

    return start


def open_broadcast(model: ModelConfig) -> "WeightBroadcast | str":
    """Return the trainer's end for ``model``, on the current GPU, or the reason why there can be none."""
    if read_adapter(expanded(model.name)) or read_roles(model.name):
        return "vLLM reads adapters from folders"
    if not torch.cuda.is_available():
        return "the first training process has no GPU"
    if (found := installed_vllm()) is None or found[1]:
        return "no vLLM for GPUs is installed where the first training process runs"
    try:  # before engines wait for it
        importlib.import_module("vllm.distributed.weight_transfer.nccl_common")
    except ImportError as error:
        return f"vLLM cannot be imported where the first training process runs: {first_line(error)}"
    return WeightBroadcast(model, torch.device("cuda", torch.cuda.current_device()), found[0])


class WeightBroadcast:
    """Weights of ``model`` from ``device`` to a group; ``version`` is that of vLLM here."""

    def __init__(self, model: ModelConfig, device: torch.device, version: str) -> None:
        name, trusted = resolve_model(model.name), model.trust_remote_code
        arguments = {"model": name, "dtype": model.dtype, "trust_remote_code": trusted}
        self._transfer, self._device, self.version = WeightTransfer(arguments, ()), device, version
        self._group: Any = None

    @in_background
    def open(self, place: GroupPlace) -> None:
        """Form a group; it is there when all others have joined."""
        from vllm.distributed.weight_transfer.nccl_common import trainer_init  # noqa: PLC0415 - slow, and optional

        self._use_device()
        group = trainer_init(broadcast_info(place))
        if group.disabled:  # then vLLM's broadcasts do nothing
            raise EngineError("vLLM finds no NCCL library, or VLLM_DISABLE_PYNCCL is set")
        self._group = group

    def described(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what ``send`` takes, and its description for the engines. Raises ``EngineError``."""
        named = self._transfer.as_in_files(weights)
        return named, self._transfer.described([*named.items()])

    @in_background
    def send(self, named: Mapping[str, Tensor]) -> None:
        """Broadcast weights; they are sent when all others have received them."""
        from vllm.distributed.weight_transfer.packed_tensor import (  # noqa: PLC0415 - slow, and optional
            packed_nccl_broadcast_producer as send,
        )

        self._use_device()
        group = self._group

        def parts() -> Iterator[tuple[str, Tensor]]:
            for name, weight in named.items():
                if self._group is not group:  # its memory is being freed
                    raise EngineError("the group was left during an update")
                yield name, weight.to(self._device, self._transfer.dtype)

        send(parts(), group, src=0, post_iter_func=itemgetter(1), buffer_size_bytes=BUFFER_BYTES)

    def close(self) -> None:
        """Leave the group, and abort what is under way in it."""
        group, self._group = self._group, None
        if group is not None:
            group.destroy()

    def _use_device(self) -> None:
        """Let this thread use the device, and wait until others have written the weights."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.synchronize()


def broadcast_info(place: GroupPlace) -> dict[str, Any]:
    """Return what both ends must say alike; the trainer's takes no notice of how weights are packed."""
    meeting = {"master_address": place.address, "master_port": place.port, "world_size": place.size}
    return {**meeting, "packed": True, "packed_buffer_size_bytes": BUFFER_BYTES}
