"""vLLM's processes, each with a replica of one model, and the requests in flight on them.

This process does not import vLLM, which would pin threads and memory, replace ``torch.set_num_threads``, leave
``torch.distributed`` initialised and keep GPU memory, all of which would hinder later training. Ending a process
releases everything. vLLM's own multi-process mode keeps the client here and on a CPU starts two more processes: 43 s
against 15 s until a tiny model was ready on two cores.
"""

import itertools
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from spag.core.errors import EngineError
from spag.engines.vllm.transfer import AdapterFolders, WeightTransfer
from spag.engines.vllm.worker import WorkerOrder, WorkerOutput, WorkerRequest

logger = logging.getLogger(__name__)

WORKER = [sys.executable, "-P", "-c", "from spag.engines.vllm.worker import main; main()"]
"""The command of a replica's process; the number of its end of the pipe follows."""
_ERROR_LINE = re.compile(r"^(?:\(.*?\) )?(?:ERROR .*?\] )?([A-Za-z_.]*(?:Error|Exception|Interrupt)): (.+)$", re.M)
_REFUSED = re.compile(r"^  (?:Value error, )?(.+?) \[type=", re.M)
"""Why pydantic refuses a setting: in the lines after its error's."""
_CLOSING_SECONDS = 30.0
_GROUP_CHECKS = 10


class VLLMReplica:
    """A process with one replica of the model."""

    def __init__(self, setup: tuple[dict[str, Any], tuple[str, ...], int], environment: dict[str, str]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        # with this variable its output goes to our stderr, else to a file that is read after a failure
        shown = "VLLM_LOGGING_LEVEL" in os.environ
        self._log: IO[bytes] | None = None if shown else tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        home = str(Path(__file__).parents[3])  # the location of spag
        paths = os.pathsep.join(path for path in (home, os.environ.get("PYTHONPATH", "")) if path)
        self._process = subprocess.Popen(
            [*WORKER, str(theirs.fileno())],
            env={**os.environ, **environment, "PYTHONPATH": paths},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log or 2,
            stderr=self._log or 2,
            start_new_session=True,  # Ctrl-C is for this process, which closes it
        )
        theirs.close()
        try:
            self.send(setup)
        except EngineError:  # it has ended already, and nobody else can close the file
            self.close()
            raise

    def send(self, message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self.failure() from error

    def receive(self) -> Any:
        """Return the next message: ``None`` when vLLM is ready, the result of a ``WorkerOrder``, or a list of
        ``WorkerOutput``. Raises ``EngineError`` if the process ended.
        """
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self.failure() from error

    def failure(self) -> EngineError:
        """Return the last error in the process's output."""
        self._end()
        cause = f"exit status {self._process.returncode}"
        if self._log is None:
            return EngineError(f"vLLM ended: {cause}; its output is above")
        self._log.seek(0)
        output = self._log.read().decode(errors="replace")
        for name, message in _ERROR_LINE.findall(output)[-1:]:
            reasons = _REFUSED.findall(output) if name.endswith("ValidationError") else []
            cause = f"{name.rpartition('.')[2]}: {(reasons or [message])[-1]}"[:400]
        return EngineError(f"vLLM ended: {cause} (VLLM_LOGGING_LEVEL=INFO shows its whole output)")

    def close(self) -> None:
        self._end()
        if self._log is not None:
            self._log.close()

    def _end(self) -> None:
        """Ask the process to end by closing its pipe; kill it after a while, and its workers in any case."""
        self.pipe.close()
        if self._process.returncode is not None:  # its number may be another's by now
            return
        try:
            self._process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("vLLM did not end within %.0f s; killing it", _CLOSING_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        _end_group(self._process.pid)


def _end_group(leader: int) -> None:
    """Kill what a replica's process started and left: workers that hang in NCCL keep their GPU's memory."""
    with suppress(ProcessLookupError):  # none is left
        for _ in range(_GROUP_CHECKS):  # Python's resource tracker first removes what is left in shared memory
            os.killpg(leader, 0)
            time.sleep(0.1)
        os.killpg(leader, signal.SIGKILL)


class VLLMPool:
    """Replicas of one model, which sample tokens below ``token_count``.

    ``sleep``: the level at which vLLM may sleep between requests; 0: it stays awake. ``gpus``: the GPUs it runs on, by
    our index; none on a CPU.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        environments: Sequence[dict[str, str]],
        token_count: int,
        adapters: tuple[str, ...] = (),
        sleep: int = 0,
        gpus: Sequence[int] = (),
    ) -> None:
        started = time.monotonic()
        self.max_length = int(arguments["max_model_len"])
        self._callbacks: dict[str, Callable[[WorkerOutput], None]] = {}
        self._keys = itertools.count(1)
        self._sleep, self._asleep = sleep, False
        self._adapters, self._transfer = AdapterFolders(adapters, arguments["dtype"]), WeightTransfer(arguments, gpus)
        self._learned = self._dropped = False  # whether the base model was given new weights, and lost them
        self._replicas: list[VLLMReplica] = []
        try:
            for environment in environments:
                self._replicas.append(VLLMReplica((arguments, adapters, token_count), environment))
            for replica in self._replicas:
                replica.receive()
        except BaseException:  # on Ctrl-C too: no process may stay behind
            self.close()
            raise
        logger.info("vLLM ready after %.0f s", time.monotonic() - started)

    def submit(
        self,
        id_: str,
        prompt: list[int],
        sampling: dict[str, Any],
        adapter: int,
        callback: Callable[[WorkerOutput], None],
    ) -> None:
        """Send a request to a replica, always the same for one ``id_``: its cache holds that game's earlier prompt.

        ``wait`` calls ``callback`` with the output. Wakes replicas if needed.
        """
        self.rest(asleep=False)
        key = str(next(self._keys))
        self._callbacks[key] = callback
        replica = self._replicas[zlib.crc32(id_.encode()) % len(self._replicas)]
        replica.send(WorkerRequest(key, prompt, sampling, adapter))

    def wait(self) -> None:
        """Wait until requests have finished, or few have grown, and call their callbacks."""
        ready = wait_for_any([replica.pipe for replica in self._replicas])
        for replica in (one for one in self._replicas if one.pipe in ready):
            for output in replica.receive():
                callback = self._callbacks.pop if output.finished else self._callbacks.__getitem__
                callback(output.key)(output)

    def update_weights(self, weights: Mapping[str, Tensor], adapter: int) -> None:
        """Give all replicas weights of the base model (0) or an adapter. Raises ``EngineError``."""
        if self._callbacks:
            raise EngineError("weights change only between requests")
        if not weights:
            return
        if adapter:
            self._tell_all("adapt", adapter, str(self._adapters.write(weights, adapter)))
        else:
            self._transfer.send(weights, self._tell_all)
            self._learned, self._dropped = True, False
        self._asleep = False  # they wake sleeping replicas

    def rest(self, *, asleep: bool) -> bool:
        """Let all replicas release their GPU memory, or reclaim it; return whether the base model's new weights were
        lost.

        Raises ``EngineError`` if requests are in flight, or replicas wake for requests without the weights that they
        lost.
        """
        if asleep != self._asleep and self._sleep:
            if self._callbacks:
                raise EngineError("vLLM sleeps only between requests")
            if self._dropped:
                raise EngineError("vLLM dropped new weights when it went to sleep; give it weights before requests")
            self._tell_all("sleep", self._sleep if asleep else 0)
            self._asleep = asleep
            self._dropped = self._learned and self._sleep > 1
        return self._dropped

    def _tell_all(self, method: str, *arguments: Any) -> str | None:
        """Send each replica an order and wait until all have completed it, or one says why it cannot."""
        for replica in self._replicas:
            replica.send(WorkerOrder(method, arguments))
        refusals = [replica.receive() for replica in self._replicas]
        return next(filter(None, refusals), None)

    def close(self) -> None:
        self._adapters.close()
        self._callbacks.clear()
        for replica in self._replicas:
            replica.pipe.close()  # all end at the same time
        for replica in self._replicas:
            replica.close()
        self._replicas.clear()
