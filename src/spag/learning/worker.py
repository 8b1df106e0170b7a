"""The training process: runs a job (``job.py``) alone or as one of several ranks.

    output/processes/  job.json  progress.json (of the first process)  one folder of logs per launch

Each of several processes runs ``python -m spag.learning.worker JOB PARENT`` (started by ``processes.py``, or ``ray.py``
on Ray). The folder is removed when training ends.
"""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.elastic.multiprocessing.errors import record

from spag.algorithms.settings import OfflineSettings
from spag.core.errors import RunError, SpagError, StorageError, first_line, is_out_of_memory
from spag.learning.job import TrainingJob
from spag.learning.loop import Loop
from spag.learning.metrics import MetricsLog, OnProgress, TrainProgress
from spag.learning.policy import TrainedPolicy
from spag.learning.selfplay import SelfplaySource
from spag.learning.sources import FileSource, Source
from spag.rollout.steps import StepPlayer
from spag.storage.home import expanded
from spag.storage.machine import exit_with_parent, free_objects, usable_cores

PROGRESS = TypeAdapter(TrainProgress)
_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.ESTALE}
_DISK_TEXTS = ("no space left on device", "file write failed", "failed writing file", "unexpected pos")  # torch's


def run_job(job: TrainingJob, progress: OnProgress | None = None) -> dict[str, Any]:
    """Run ``job`` in this process, together with its process group if there is one; return the result.

    Raises ``DataError`` without samples, ``ConfigError`` for unsuitable settings, ``ModelError``, ``RunError`` if the
    loss is not finite or memory runs out, and ``StorageError`` if the disk is full.
    """
    with training_errors(job.output):
        job.output.mkdir(parents=True, exist_ok=True)
        start = expanded(job.start_from)
        if start.is_dir():
            job = job.model_copy(update={"start_from": str(start.resolve())})
        try:
            return Loop(job, open_source, progress).run()
        finally:
            free_objects()  # wrapped models and optimisers refer to each other


def open_source(job: TrainingJob, policy: TrainedPolicy, log: MetricsLog | None, step: int) -> Source:
    """Open the source of games or samples. ``log``: of the ``step`` steps done. Every process must call it."""
    settings = job.settings
    if isinstance(settings, OfflineSettings):
        return FileSource(job, settings)
    kind: Any = StepPlayer
    if job.cluster.actors:
        from spag.rollout.ray.steps import RayStepPlayer  # noqa: PLC0415 - ray is optional

        kind = partial(RayStepPlayer, cluster=job.cluster)
    player = kind(
        folder=job.output,
        mix=job.mix,
        policy=job.model.model_copy(update={"name": policy.as_engines_load_it(job.output)}),
        engine=job.engine,
        settings=settings,
        seed=job.seed,
        rank=policy.accelerator.process_index,
        world_size=policy.accelerator.num_processes,
    )
    return SelfplaySource(player, log, step)


@contextmanager
def training_errors(output: Path) -> Iterator[None]:
    """Raise ``StorageError`` or ``RunError`` in place of the libraries' errors when disk or memory run out.

    torch and safetensors wrap the system's errors in their own exceptions and name the cause only in the text, which
    in safetensors has its number.
    """
    try:
        yield
    except CheckpointException as error:  # not an Exception: torch's, from the first process that failed
        cause = next((cause for cause, _ in error.failures.values()), error)
        if isinstance(cause, KeyboardInterrupt):  # interrupted while a checkpoint was written
            raise cause from None
        described = _explained(cause, output) if isinstance(cause, Exception) else None
        fix = f"remove {output / 'state'} to start this training over"
        raise described or RunError(
            f"{output}: its state cannot be read or written: {type(cause).__name__}; {fix}"
        ) from error
    except (MemoryError, OSError, RuntimeError, SafetensorError) as error:
        if described := _explained(error, output):
            raise described from error
        raise


def _explained(error: Exception, output: Path) -> SpagError | None:
    """Return the one-line error for a library's error, ``None`` if neither disk nor memory is the cause."""
    text = str(error).lower()
    named = re.search(r"\(os error (\d+)\)", text)
    number = error.errno if isinstance(error, OSError) else int(named[1]) if named else None
    if number in _DISK_ERRNOS or any(one in text for one in _DISK_TEXTS):
        path = getattr(error, "filename", None) or output
        fix = "free space or fix permissions, and rerun: training resumes"
        return StorageError(f"{path}: cannot be written ({first_line(error, 200)}); {fix}")
    if is_out_of_memory(error):
        fix = "lower micro_batch_size (offline also max_length), set gradient_checkpointing, or train a LoRA adapter"
        return RunError(f"{output}: out of memory while training; {fix}, and rerun: training resumes")
    return None


def run_in_group(text: str) -> None:
    """Run the job described by ``text`` as one of several processes, and write progress to a file."""
    job = TrainingJob.model_validate_json(text)

    def report(at: TrainProgress) -> None:
        beside = job.progress_file.with_suffix(".new")
        beside.write_bytes(PROGRESS.dump_json(at))
        beside.replace(job.progress_file)  # a reader sees the old file or the new one

    run_job(job, report)


@record
def main() -> None:
    """Run as one of several processes. Arguments: the job's file, and the id of the parent process."""
    exit_with_parent(int(sys.argv[2]))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, usable_cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    run_in_group(Path(sys.argv[1]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
