"""The training processes of one machine, started with torch's elastic launcher; failures become one line that names the
cause.

The processes print to logs: when one is lost, the others fail with pages of uninformative output. They end with this
process, however it dies.
"""

import logging
import os
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from spag.core import errors
from spag.core.errors import RunError, SpagError
from spag.learning.job import TrainingJob
from spag.learning.metrics import OnProgress
from spag.learning.worker import PROGRESS
from spag.storage.store import write_atomically

WORKER = [sys.executable, "-m", "spag.learning.worker"]
"""The command of each process; the job's file and the id of this process follow."""
_POLL_S = 0.25
_GRACE_S = 5
"""How long the other processes may take to end when one is lost; then the launcher kills them."""

logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # failed processes are reported in one line


def run_in_processes(job: TrainingJob, count: int, progress: OnProgress) -> None:
    """Run ``job`` with ``count`` processes on this machine; ``progress`` is called from another thread.

    Raises a process's error if it is a ``SpagError``, else ``RunError`` naming process and cause.
    """
    shutil.rmtree(job.folder, ignore_errors=True)
    path = job.folder / "job.json"
    write_atomically(path, job.to_json())
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(job.folder), redirects=Std.ALL),
        signals_to_handle="SIGTERM",  # SIGINT stays KeyboardInterrupt
        shutdown_timeout=_GRACE_S,
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        with watching(job, progress):
            elastic_launch(config, WORKER[0])(*WORKER[1:], str(path), str(os.getpid()))
    except ChildFailedError as failed:
        raise _cause(failed, job, count) from None
    except SignalException as received:
        if callable(before):
            before(received.sigval, None)  # the meaning of SIGTERM for the training command
        raise SystemExit(128 + received.sigval) from received
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # the launcher replaces the handler for good
    shutil.rmtree(job.folder)


@contextmanager
def watching(job: TrainingJob, progress: OnProgress) -> Iterator[None]:
    """Forward progress written by the first process of ``job`` to ``progress``, until the block ends."""
    ended = threading.Event()

    def watch() -> None:
        seen, last = b"", False
        while not last:
            last = ended.wait(_POLL_S)
            data = job.progress_file.read_bytes() if job.progress_file.exists() else b""
            if data != seen:
                progress(PROGRESS.validate_json(data))
                seen = data

    thread = threading.Thread(target=watch, name="spag-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def described(text: str) -> SpagError | None:
    """Return the ``SpagError`` described by ``text``, ``ClassName: message``; ``None`` for any other error."""
    name, _, message = text.partition(": ")
    kind = getattr(errors, name.rpartition(".")[2], None)
    return kind(message) if isinstance(kind, type) and issubclass(kind, SpagError) else None


def _cause(failed: ChildFailedError, job: TrainingJob, count: int) -> SpagError:
    """Return the error that ended the processes: when one is lost, the others fail or are terminated soon after."""
    first = min(failure.timestamp for failure in failed.failures.values())
    early = [rank for rank, failure in failed.failures.items() if failure.timestamp < first + _GRACE_S]

    def order(rank: int) -> tuple[bool, bool, int]:
        failure = failed.failures[rank]
        return failure.exitcode != -signal.SIGKILL, described(_message(failure)) is None, failure.timestamp

    rank = min(early, key=order)
    failure = failed.failures[rank]
    message = _message(failure)
    if (error := described(message)) is not None:
        return error
    where = f"{job.output}: process {rank} of {count} (they count from 0)"
    if failure.exitcode < 0:
        hint = ", as when the system runs out of memory" if failure.exitcode == -signal.SIGKILL else ""
        return RunError(f"{where} was killed by {failure.signal_name()}{hint}; the same command resumes the training")
    what = message.partition("\n")[0][:200] or f"exit status {failure.exitcode}"
    log = next(Path(job.folder).glob(f"*/*/{rank}/stderr.log"), job.folder)
    return RunError(f"{where} failed: {what} ({log}); the same command resumes the training")


def _message(failure: ProcessFailure) -> str:
    """Return ``ClassName: message`` of the exception that ended a process; empty if there was none."""
    message = failure.error_file_data.get("message", "")
    return str(message.get("message", "")) if isinstance(message, dict) else ""
