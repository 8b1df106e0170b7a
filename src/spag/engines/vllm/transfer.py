"""New weights for vLLM's processes.

Whole models take vLLM's ``ipc`` weight transfer: chunk by chunk through a buffer that both sides have open. Each GPU
that vLLM runs on has a buffer, which its processes open by CUDA IPC, so weights on the same GPU never leave it. If that
is refused, and on CPUs, the buffer is host memory: an unlinked file, which leaves nothing behind.

vLLM reads adapters from folders. They are in shared memory if it has room, else in the temporary folder. The newest
weights of each adapter stay until replaced: an update that names only some weights takes the others from them.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from transformers import AutoConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from spag.core.errors import EngineError, first_line
from spag.engines.base import check_shapes
from spag.engines.vllm.served import HOST
from spag.models.adapters import ADAPTER_WEIGHTS
from spag.models.finding import ADAPTER_CONFIG
from spag.models.weights import empty_model, weights_of

logger = logging.getLogger(__name__)

BUFFER_BYTES = 256 * 2**20
"""Size of the buffer, unless a single weight is larger. vLLM copies a chunk once more while it loads it."""
SHARED_MEMORY = Path("/dev/shm")
SHARED_SHARE = 0.25
"""Share of the free shared memory that one update takes, at most."""

Tell = Callable[..., str | None]
"""Calls a method of every ``ServedWeights``, by name; returns the reason if one cannot do it."""
Buffers = tuple[Sequence[Tensor], Mapping[str, Any]]
"""Buffers that get the same bytes, (N,) uint8, and their handles for vLLM's processes, by GPU id or ``HOST``."""


class WeightTransfer:
    """Sends new weights of ``arguments["model"]`` to ``gpus``, by our index, or to the CPU if there are none."""

    def __init__(self, arguments: Mapping[str, Any], gpus: Sequence[int]) -> None:
        self._name: str = arguments["model"]
        self._dtype: torch.dtype = getattr(torch, arguments["dtype"])
        self._trust_remote_code: bool = arguments["trust_remote_code"]
        self._gpus, self._by_ipc = gpus, bool(gpus)
        self._model: PreTrainedModel | None = None

    def send(self, weights: Mapping[str, Tensor], tell: Tell) -> None:
        """Send ``weights``, all of the model's, by their names in the loaded model. Raises ``EngineError``."""
        named = self._as_in_files(weights)
        if self._by_ipc and (refusal := self._try(named, gpu_buffers(self._gpus, self._size(named)), tell)):
            self._by_ipc = False
            logger.warning("new weights go through host memory, not CUDA IPC: %s", refusal)
        if not self._by_ipc and (refusal := self._try(named, _host_buffer(self._size(named)), tell)):
            raise EngineError(f"vLLM cannot load new weights: {refusal}")

    def _try(self, named: Mapping[str, Tensor], opened: AbstractContextManager[Buffers], tell: Tell) -> str | None:
        """Send all chunks; return the reason if that cannot work."""
        try:
            with opened as (buffers, handles):
                for chunk in self._chunks(named):
                    if refusal := tell("take", {**self._fill(buffers, chunk), "ipc_handles": handles}):
                        return refusal
                tell("finish")
        except (RuntimeError, OSError) as error:  # no memory for a buffer, or no way to share it
            return first_line(error)
        return None

    def _as_in_files(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``weights`` by their names in files, which vLLM knows: all trained ones, and any frozen ones.
        Buffers, which saved models have too, never change.
        """
        if self._model is None:  # to map its names here to those in files
            config = AutoConfig.from_pretrained(self._name, trust_remote_code=self._trust_remote_code)
            self._model = empty_model(config, trust_remote_code=self._trust_remote_code)
        model = self._model
        own = dict(model.named_parameters())
        check_shapes(weights, {name: value.shape for name, value in weights_of(model)})
        if missing := [name for name, value in own.items() if value.requires_grad and name not in weights]:
            raise EngineError(f"{missing[0]}: one of {len(missing)} missing weights; vLLM needs the whole model")
        given = {name: weights[name].detach() for name in own if name in weights}
        found: dict[str, Tensor] = revert_weight_conversion(model, given)
        return found

    def _bytes(self, weight: Tensor) -> int:
        return weight.numel() * self._dtype.itemsize

    def _size(self, named: Mapping[str, Tensor]) -> int:
        sizes = [self._bytes(weight) for weight in named.values()]
        return max(min(BUFFER_BYTES, sum(sizes)), *sizes)

    def _chunks(self, named: Mapping[str, Tensor]) -> Iterator[list[tuple[str, Tensor]]]:
        """Yield, in order, groups of weights that fill the buffer."""
        chunk: list[tuple[str, Tensor]] = []
        free = size = self._size(named)
        for name, weight in named.items():
            if self._bytes(weight) > free:
                yield chunk
                chunk, free = [], size
            chunk.append((name, weight))
            free -= self._bytes(weight)
        yield chunk

    def _fill(self, buffers: Sequence[Tensor], chunk: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
        """Write a chunk into the buffers; return vLLM's ``update_info`` without the handles."""
        sizes = [self._bytes(weight) for _, weight in chunk]
        for buffer in buffers:
            parts = buffer[: sum(sizes)].split_with_sizes(sizes)
            for part, (_, weight) in zip(parts, chunk, strict=True):
                part.view(self._dtype).copy_(weight.reshape(-1))
            if buffer.is_cuda:
                torch.cuda.synchronize(buffer.device)
        return {
            "names": [name for name, _ in chunk],
            "dtype_names": [str(self._dtype).removeprefix("torch.")] * len(chunk),
            "shapes": [list(weight.shape) for _, weight in chunk],
            "tensor_sizes": sizes,
        }


@contextmanager
def gpu_buffers(gpus: Sequence[int], size: int) -> Iterator[Buffers]:
    """Return a buffer on each of ``gpus``, for other processes to open by CUDA IPC."""
    buffers = [torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in gpus]
    ids = [str(torch.cuda.get_device_properties(gpu).uuid) for gpu in gpus]
    handles = [reduce_tensor(buffer)[1] for buffer in buffers]  # type: ignore[no-untyped-call]
    yield buffers, dict(zip(ids, handles, strict=True))
    del buffers
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


@contextmanager
def _host_buffer(size: int) -> Iterator[Buffers]:
    """Return a buffer in an unnamed file; other processes can open it while we have it open."""
    with TemporaryFile(dir=place_for(size)) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        name = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        yield [torch.from_file(name, shared=True, size=size, dtype=torch.uint8)], {HOST: name}


class AdapterFolders:
    """The weights of a pool's ``adapters``, numbered from 1; ``dtype`` is the engine's."""

    def __init__(self, adapters: tuple[str, ...], dtype: str) -> None:
        self._adapters = adapters
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._folders: dict[int, TemporaryDirectory[str]] = {}  # of adapters with new weights

    def write(self, weights: Mapping[str, Tensor], adapter: int) -> Path:
        """Return a folder with all weights, updated with ``weights``. Raises ``EngineError`` for a mismatch."""
        old = self._folders.get(adapter)
        current = Path(old.name if old else self._adapters[adapter - 1])
        try:
            own = load_file(current / ADAPTER_WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise EngineError(f"{current / ADAPTER_WEIGHTS}: cannot be read: {first_line(error)}") from error
        names = {name: name.replace(".default", "") for name in weights}  # peft's files leave the adapter's name out
        check_shapes(weights, {name: own[in_file].shape for name, in_file in names.items() if in_file in own})
        own |= {names[name]: value.detach().to("cpu", self._dtype).contiguous() for name, value in weights.items()}
        size = sum(value.nbytes for value in own.values())
        folder = TemporaryDirectory(prefix="spag-weights-", dir=place_for(size))
        shutil.copy(current / ADAPTER_CONFIG, folder.name)
        save_file(own, Path(folder.name) / ADAPTER_WEIGHTS)
        self._folders[adapter] = folder
        if old:
            old.cleanup()
        return Path(folder.name)

    def close(self) -> None:
        """Remove all folders."""
        for folder in self._folders.values():
            folder.cleanup()
        self._folders.clear()


def place_for(size: int) -> Path | None:
    """Return the best place for this many bytes: shared memory if it has room, else ``None``, the temporary folder."""
    roomy = SHARED_MEMORY.is_dir() and size < SHARED_SHARE * shutil.disk_usage(SHARED_MEMORY).free
    return SHARED_MEMORY if roomy else None
