"""The weights in vLLM's process: they sleep, wake and change between requests.

New weights of the base model use vLLM's weight transfer: ``init_weight_transfer_engine`` once, then for each update
``start_weight_update``, ``update_weights`` part by part, ``finish_weight_update``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from spag.core.errors import first_line

HOST = "host"
"""Replaces the id of a GPU for a buffer in host memory."""
_STEPS = 10  # that vLLM may take to free the blocks of texts that were cut


class ServedWeights:
    """The weights in a running vLLM, initially those of the folder ``model`` and its adapters' ``folders``. A
    ``WorkerOrder`` calls one of the public methods.
    """

    def __init__(self, engine: Any, model: str, folders: Sequence[str]) -> None:
        self.adapters = {index: _adapter(index, path) for index, path in enumerate(folders, 1)}
        self._engine, self._model = engine, model
        self._asleep: set[str] = set()
        self._level = 0
        self._ready = self._taking = False

    def sleep(self, level: int) -> None:
        """Send the engine to sleep at ``level``, or wake it (0).

        Level 1 keeps the weights in CPU memory; level 2 drops them, and waking reads those of the folder.
        """
        if level:
            self._engine.sleep(level)
            self._level, self._asleep = level, {"weights", "kv_cache"}
            return
        if self._asleep and self._level > 1:
            self._wake("weights")
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": self._model})
        self._wake("weights", "kv_cache")

    def adapt(self, adapter: int, folder: str) -> None:
        """Replace an adapter by the one in ``folder``."""
        self.sleep(0)
        self._forget_texts()
        self._engine.add_lora(_adapter(adapter, folder, new=True))
        self.adapters[adapter] = _adapter(adapter, folder)

    def take(self, update: Mapping[str, Any]) -> str | None:
        """Take a chunk of new weights of the base model. Wakes the engine if it sleeps.

        ``update``: vLLM's ``update_info``, whose ``ipc_handles`` give the buffer by GPU id, or under ``HOST`` in which
        file. Returns why the buffer cannot be opened.
        """
        self._wake("weights")
        handles, is_first = update["ipc_handles"], not self._taking
        if not self._ready:
            self._engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": {"packed": True}})
            self._ready = True
        if is_first:
            self._engine.collective_rpc("start_weight_update")
        self._taking = True
        if HOST in handles:
            self._engine.collective_rpc("update_weights_from_host", args=(update, handles[HOST]))
            return None
        try:
            self._engine.collective_rpc("update_weights", kwargs={"update_info": update})
        except (ValueError, RuntimeError) as error:
            if not is_first:  # part of the weights is loaded
                raise
            self._taking = False  # vLLM has ended the update
            return first_line(error)
        return None

    def finish(self) -> None:
        """Use the new weights, and drop the cache of the old ones."""
        self._engine.collective_rpc("finish_weight_update")
        self._engine.collective_rpc("refresh_packed_weights")
        self._taking = False
        self._wake("kv_cache")
        self._forget_texts()

    def _forget_texts(self) -> None:
        """Drop the keys and values computed with old weights."""
        for _ in range(_STEPS):
            if self._engine.reset_prefix_cache():
                return
            self._engine.step()  # a text cut at a stop string holds its blocks until its current step has ended
        raise RuntimeError("keys and values of old weights are still in use")

    def _wake(self, *parts: str) -> None:
        if due := [part for part in parts if part in self._asleep]:
            self._engine.wake_up(due)
            self._asleep -= {*due}


def _adapter(index: int, folder: str, *, new: bool = False) -> Any:
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    return LoRARequest(f"adapter-{index}", index, folder, load_inplace=new)
