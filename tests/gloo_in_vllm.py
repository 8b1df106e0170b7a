"""Our extension of a real vLLM's worker on a CPU. Importing it puts gloo in the place of NCCL, and nothing in that of a
GPU's streams; vLLM's own ``nccl`` engine does the rest.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.weight_transfer import nccl_common, packed_tensor

from gloo_nccl import GlooCommunicator
from spag.engines.vllm.extension import WorkerExtension


class GlooExtension(WorkerExtension):
    pass


def _join(address: str, port: int, rank: int, size: int, device: Any) -> GlooCommunicator:
    return GlooCommunicator(address, port, rank, size)


nccl_common.stateless_init_process_group = _join
packed_tensor._get_streams = lambda device, count: [SimpleNamespace(synchronize=lambda: None)] * count
torch.cuda.stream = lambda stream: nullcontext()  # type: ignore[assignment,misc]
torch.accelerator.current_device_index = lambda: 0
torch.accelerator.synchronize = lambda device=None: None
