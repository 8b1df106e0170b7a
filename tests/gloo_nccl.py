"""Gloo in the place of NCCL, so that vLLM's ``nccl`` weight transfer runs between processes without GPUs.

``trainer_init`` and ``packed_nccl_broadcast_producer`` stand in for vLLM 0.32.0's functions in the process that trains
(``at_the_trainer``), ``GlooCommunicator`` for its ``PyNcclCommunicator``. As with NCCL, a broadcast whose partner has
died hangs until it is aborted. ``gloo_in_vllm.py`` puts it into a real vLLM.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    import pytest

_FOR_EVER = 600.0
_PATIENCE = timedelta(seconds=300)
Item = TypeVar("Item")


class GlooCommunicator:
    """A process's end of a group; returns when all have joined."""

    disabled = False

    def __init__(self, address: str, port: int, rank: int, size: int) -> None:
        assert rank < size
        store = dist.TCPStore(address, port, None, rank == 0, _PATIENCE, wait_for_workers=False)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = _PATIENCE
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options)
        self._gloo.barrier().wait()
        self._aborted = threading.Event()

    def broadcast(self, tensor: Tensor, src: int) -> None:
        if self.disabled:
            return
        try:
            self._gloo.broadcast(tensor, src).wait()
            self._gloo.barrier().wait()  # else what fits a socket's buffers is sent without the others
        except RuntimeError:
            self._aborted.wait(_FOR_EVER)
            raise

    def destroy(self) -> None:
        self._aborted.set()
        self.disabled = True


def trainer_init(init_info: Mapping[str, Any]) -> GlooCommunicator:
    return GlooCommunicator(init_info["master_address"], init_info["master_port"], 0, init_info["world_size"])


def chunks(items: Iterable[Item], size: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Yield the parts of a transfer: vLLM ends one with the weight that makes it larger than ``most`` bytes."""
    chunk: list[Item] = []
    for item in items:
        chunk.append(item)
        if sum(map(size, chunk)) > most:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def packed_nccl_broadcast_producer(
    iterator: Iterator[tuple[str, Tensor]],
    group: GlooCommunicator,
    src: int,
    post_iter_func: Callable[[tuple[str, Tensor]], Tensor],
    buffer_size_bytes: int,
) -> None:
    flat = (post_iter_func(item).contiguous().view(torch.uint8).view(-1) for item in iterator)
    for chunk in chunks(flat, Tensor.numel, buffer_size_bytes):
        group.broadcast(torch.cat(chunk), src=src)


def received(update: Mapping[str, Any], group: GlooCommunicator, most: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that a trainer sends."""
    dtypes = [getattr(torch, name) for name in update["dtype_names"]]
    described = list(zip(update["names"], dtypes, map(torch.Size, update["shapes"]), strict=True))
    for chunk in chunks(described, lambda item: item[1].itemsize * item[2].numel(), most):
        sizes = [dtype.itemsize * shape.numel() for _, dtype, shape in chunk]
        packed = torch.empty(sum(sizes), dtype=torch.uint8)
        group.broadcast(packed, src=0)
        for (name, dtype, shape), part in zip(chunk, packed.split(sizes), strict=True):
            yield name, part.clone().view(dtype).view(shape)


def at_the_trainer(patch: "pytest.MonkeyPatch") -> None:
    """Let this process find the stand-ins in vLLM's place. vLLM itself is not imported."""
    for name in ("nccl_common", "packed_tensor"):
        patch.setitem(sys.modules, f"vllm.distributed.weight_transfer.{name}", sys.modules[__name__])
