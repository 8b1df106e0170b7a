"""The processes that vLLM runs in, each with a copy of one model, and the requests in flight on them.

vLLM runs in processes of its own and this one imports nothing of it. In ours, vLLM would pin threads and memory, replace
``torch.set_num_threads``, leave ``torch.distributed`` set up and keep GPU memory, all of which the training that follows would meet; a
process that ends gives everything back, so the next iteration's weights start clean. vLLM's own multi-process mode keeps the client here
and on a CPU starts two processes more: 43 s against 15 s until a tiny model was ready on two cores.
"""

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
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

import spag
from spag.core.errors import EngineError
from spag.engines.vllm.worker import Ask, Opening, Reply

logger = logging.getLogger(__name__)

_CHILD = "from spag.engines.vllm.worker import main; main()"
_LAST_WORDS = re.compile(r"^(?:\(.*?\) )?(?:ERROR .*?\] )?([A-Za-z_.]*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)
_CLOSING_SECONDS = 30.0


class VLLMCopy:
    """One process with one copy of the model."""

    def __init__(self, opening: Opening, environment: dict[str, str]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        shown = "VLLM_LOGGING_LEVEL" in os.environ  # then on our standard error, else kept for when it fails
        self._log: IO[bytes] | None = None if shown else tempfile.TemporaryFile()  # noqa: SIM115 - closed with the copy
        home = str(Path(spag.__file__).parent.parent)
        paths = os.pathsep.join(path for path in (home, os.environ.get("PYTHONPATH", "")) if path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, str(theirs.fileno())],
            env={**os.environ, **environment, "PYTHONPATH": paths},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log or 2,
            stderr=self._log or 2,
            start_new_session=True,  # Ctrl-C is for us; we close it
        )
        theirs.close()
        self.tell(opening)

    def tell(self, message: Opening | Ask) -> None:
        try:
            self.pipe.send(message)
        except OSError as error:
            raise self.failure() from error

    def hear(self) -> Any:
        """Return the next message: ``None`` when vLLM is ready, then lists of ``Reply``. Raises ``EngineError`` when the process ended."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError) as error:
            raise self.failure() from error

    def failure(self) -> EngineError:
        """Return what the process said last."""
        self._end()
        said = b""
        if self._log is not None:
            self._log.seek(0)
            said = self._log.read()
        faults = _LAST_WORDS.findall(said.decode(errors="replace"))
        cause = f"{faults[-1][0].rpartition('.')[2]}: {faults[-1][1]}"[:400] if faults else f"exit status {self._process.returncode}"
        return EngineError(f"vLLM ended: {cause} (VLLM_LOGGING_LEVEL=INFO shows all it says)")

    def close(self) -> None:
        self._end()
        if self._log is not None:
            self._log.close()

    def _end(self) -> None:
        """Ask the process to end by closing its pipe; after a while, kill it and its workers."""
        self.pipe.close()
        try:
            self._process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("vLLM did not end within %.0f s; killing it", _CLOSING_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class VLLMPool:
    """The copies of one model. ``users`` counts the engines over it; the last one to leave closes it."""

    def __init__(self, arguments: dict[str, Any], environments: Sequence[dict[str, str]], adapters: tuple[str, ...] = ()) -> None:
        started = time.monotonic()
        self.max_length = int(arguments["max_model_len"])
        self.users = 0
        self._takers: dict[str, Callable[[Reply], None]] = {}
        self._submitted = 0
        self._copies: list[VLLMCopy] = []
        try:
            for environment in environments:
                self._copies.append(VLLMCopy(Opening(arguments, adapters), environment))
            for copy in self._copies:
                copy.hear()
        except BaseException:  # also Ctrl-C: no process may stay behind
            self.close()
            raise
        logger.info("vLLM ready after %.0f s", time.monotonic() - started)

    def submit(self, id_: str, prompt: list[int], sampling: dict[str, Any], adapter: int, take: Callable[[Reply], None]) -> None:
        """Send a request to a copy: always the same for one ``id_``, whose earlier prompt is in that copy's cache.

        ``pump`` hands the reply to ``take``.
        """
        self._submitted += 1
        key = str(self._submitted)
        self._takers[key] = take
        self._copies[zlib.crc32(id_.encode()) % len(self._copies)].tell(Ask(key, prompt, sampling, adapter))

    def pump(self) -> None:
        """Wait until something has finished and hand it to whoever takes it."""
        by_pipe = {copy.pipe: copy for copy in self._copies}
        for pipe in wait(list(by_pipe)):
            assert isinstance(pipe, Connection)
            for reply in by_pipe[pipe].hear():
                self._takers.pop(reply.key)(reply)

    def leave(self) -> None:
        """A user is gone."""
        self.users -= 1
        if self.users == 0:
            self.close()

    def close(self) -> None:
        self._takers.clear()
        for copy in self._copies:
            copy.pipe.close()  # all end at the same time
        for copy in self._copies:
            copy.close()
        self._copies.clear()
