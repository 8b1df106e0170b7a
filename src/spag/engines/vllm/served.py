"""The weights in vLLM's process: they sleep, wake and change between requests.

New weights of the base model use vLLM's weight transfer: ``init_weight_transfer_engine`` once (for ``nccl``: for each
group), then for each update ``start_weight_update``, ``update_weights`` part by part, ``finish_weight_update``.
"""

from collections.abc import Sequence
from typing import Any

from spag.core.errors import first_line
from spag.engines.vllm.messages import HOST, Order, WorkerJoin, WorkerSleep, WorkerWeights

_STEPS = 10  # seconds that vLLM may take to drop requests


class ServedWeights:
    """The weights in a running vLLM, initially those of the folder ``model`` and its adapters' ``folders``.
    ``transfer`` is the backend that vLLM was started with.
    """

    def __init__(self, engine: Any, model: str, folders: Sequence[str], transfer: str) -> None:
        self.engine, self.model = engine, model
        self.adapters = {index: _adapter(index, path) for index, path in enumerate(folders, 1)}
        self.asleep: set[str] = set()
        self.level = 0
        self.ready, self.taking = transfer != "ipc", False

    def obey(self, order: Order) -> str | None:
        """Carry out ``order``; return the reason if it cannot be done."""
        if isinstance(order, WorkerWeights):
            return self.take(order)
        if isinstance(order, WorkerJoin):
            return self.join(order)
        if isinstance(order, WorkerSleep):
            self.sleep(order.level)
        else:
            self.sleep(0)
            self.forget_texts()
            self.engine.add_lora(_adapter(order.adapter, order.folder, new=True))
            self.adapters[order.adapter] = _adapter(order.adapter, order.folder)
        return None

    def sleep(self, level: int) -> None:
        """Send the engine to sleep at ``level``, or wake it (0).

        Level 1 keeps the weights in CPU memory; level 2 drops them, and waking reads those of the folder.
        """
        if level:
            self.engine.sleep(level)
            self.level, self.asleep = level, {"weights", "kv_cache"}
            return
        if self.asleep and self.level > 1:
            self._wake("weights")
            self.engine.collective_rpc("reload_weights", kwargs={"weights_path": self.model})
        self._wake("weights", "kv_cache")

    def join(self, message: WorkerJoin) -> str | None:
        """Join a group of the ``nccl`` transfer, and leave the previous one; return the reason if vLLM refuses."""
        try:
            self.engine.collective_rpc("shutdown_weight_transfer_engine")
            self.engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": message.place})
        except (ValueError, RuntimeError) as error:
            return first_line(error)
        return None

    def take(self, message: WorkerWeights) -> str | None:
        """Take a chunk of new weights; after the last one, drop the cache of the old weights. Wakes the engine if it
        sleeps.

        Returns why the buffer cannot be opened. Raises vLLM's errors of a broadcast: part of it may be loaded.
        """
        self._wake("weights")
        handles = message.update.get("ipc_handles")
        if not self.ready:
            self.engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": {"packed": True}})
            self.ready = True
        if not self.taking:
            self.engine.collective_rpc("start_weight_update")
            self.taking = True
        if handles and HOST in handles:
            self.engine.collective_rpc("update_weights_from_host", args=(message.update, handles[HOST]))
        else:
            try:
                self.engine.collective_rpc("update_weights", kwargs={"update_info": message.update})
            except (ValueError, RuntimeError) as error:
                if not message.first or not handles:
                    raise
                self.taking = False  # vLLM has ended the update
                return first_line(error)
        if message.last:
            self.engine.collective_rpc("finish_weight_update")
            self.engine.collective_rpc("refresh_packed_weights")
            if message.sums:
                self.engine.collective_rpc("check_weights", args=(message.sums,))
            self.taking = False
            self._wake("kv_cache")
            self.forget_texts()
        return None

    def forget_texts(self) -> None:
        """Drop the keys and values computed with old weights."""
        for _ in range(_STEPS):
            if self.engine.reset_prefix_cache():
                return
            self.engine.step()  # a dropped request holds its blocks until its current step has ended
        raise RuntimeError("keys and values of old weights are still in use")

    def _wake(self, *parts: str) -> None:
        if due := [part for part in parts if part in self.asleep]:
            self.engine.wake_up(due)
            self.asleep -= {*due}


def _adapter(index: int, folder: str, *, new: bool = False) -> Any:
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    return LoRARequest(f"adapter-{index}", index, folder, load_inplace=new)
