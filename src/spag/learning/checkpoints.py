"""Checkpoint and resume: the state that training keeps on disk in case it is interrupted.

``state/`` holds checkpoint folders, one after another, named by how many updates are done. One is complete if it has
``state.json``, which is written last, after every other file is on disk, and deleted first; folders without it are
deleted. ``state/fingerprint`` identifies the training: a state from other samples, another start model or other
settings is never resumed.
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from pickle import PickleError
from typing import Any

import msgspec
from accelerate.utils import DistributedType
from torch.distributed.checkpoint.api import CheckpointException

from spag.algorithms.online_settings import OnlineSettings
from spag.algorithms.settings import FREE_TO_CHANGE
from spag.core.errors import DataError, RunError, first_line, is_out_of_memory
from spag.learning.job import TrainingJob
from spag.learning.policy import TrainedPolicy
from spag.learning.sharding import check_resumable, load_shares, save_shares
from spag.models.identity import weights_digest
from spag.models.refusals import library_errors
from spag.storage.jsonfile import read_json
from spag.storage.store import sync_files, unfinished_pattern, write_atomically, write_json

logger = logging.getLogger(__name__)

STATE = "state.json"
"""The algorithm's state in a complete checkpoint, and the number of trained samples: plain JSON."""
ONLINE_GAMES = ("episodes", "evaluations", "snapshots", "start")
"""Folders of an online phase that hold play of its policies, or the policies themselves."""
_PREFIX = "checkpoint-"
_LABEL = "fingerprint"


def phase_fingerprint(job: TrainingJob) -> str:
    """Return a digest of everything that a phase's results depend on."""
    settings = job.settings.model_dump(mode="json", exclude=set(FREE_TO_CHANGE))
    model = job.model
    origin = [weights_digest(job.start_from), model.prompt_style, model.dtype, model.trust_remote_code]
    digest = hashlib.sha256()
    for part in (job.algorithm.name, origin, settings, job.seed, job.identity):
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


class _Finished(msgspec.Struct):
    """``training.json``."""

    fingerprint: str
    result: dict[str, Any]


def earlier_work(job: TrainingJob, wanted: str, processes: int) -> tuple[dict[str, Any] | None, Path | None]:
    """Return the result of a finished phase, else the newest complete checkpoint to resume from, if there is one.

    Deletes stale files: those of another fingerprint than ``wanted``, with the games that its policy played online, and
    what a killed process was saving. For the first process.

    Raises ``DataError`` or ``RunError`` for files that no training wrote, and a checkpoint that cannot be resumed.
    """
    state, record = job.output / "state", job.output / "training.json"
    label = state / _LABEL
    _check_own(state)
    finished = read_json(record, _Finished) if record.exists() else None
    if finished is not None and finished.fingerprint == wanted and (job.output / "checkpoint").is_dir():
        discard_state(state)
        return finished.result, None
    other_state = state.is_dir() and not (label.is_file() and label.read_bytes() == wanted.encode())
    others = other_state or (finished is not None and finished.fingerprint != wanted)
    for name in ONLINE_GAMES if others and isinstance(job.settings, OnlineSettings) else ():
        shutil.rmtree(job.output / name, ignore_errors=True)  # before record and label, which tell whose games they are
    record.unlink(missing_ok=True)
    for place in ("checkpoint", "start", "snapshots/*"):
        for leftover in job.output.glob(unfinished_pattern(place)):
            discard_state(leftover)
    if other_state:
        if any(state.glob("[!.]*")):  # what a kill left of the first label is no training
            logger.warning("%s belongs to other samples or settings; training starts over", state)
        discard_state(state)
    write_atomically(label, wanted)
    return None, _newest_checkpoint(state, job.settings.parallel, processes)


def _newest_checkpoint(state: Path, parallel: str, processes: int) -> Path | None:
    """Return the newest complete checkpoint and delete all others. Raises an error if it cannot be resumed."""
    complete = [folder for folder in state.glob(f"{_PREFIX}*") if (folder / STATE).is_file()]
    newest = max(complete, key=checkpoint_updates, default=None)
    _discard_all(state, but=newest)
    if newest is not None:
        try:
            read_state(newest)
        except DataError as error:
            raise DataError(f"{error}; remove {state} to train from the start") from error
        check_resumable(newest, parallel, processes)
    return newest


def save(output: Path, updates: int, policy: TrainedPolicy, state: Mapping[str, Any]) -> None:
    """Save the checkpoint after this many updates: weights, optimiser, other changing weights, and ``state``, plain
    JSON. Older ones are deleted.

    There is no random state: orders come from seeds, and dropout is off (``start.py``). Every process must call it.
    """
    accelerator, folder = policy.accelerator, output / "state" / f"{_PREFIX}{updates}"
    folder.mkdir(parents=True, exist_ok=True)
    if accelerator.distributed_type is DistributedType.DEEPSPEED:
        policy.model.save_checkpoint(folder)
    else:
        save_shares(folder, policy.model, policy.optimizer.optimizer, policy.moving)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else {}
        sync_files(folder)
        write_json(folder / STATE, {**state, "scaler": scaler})
        _discard_all(folder.parent, but=folder)


def load(folder: Path, policy: TrainedPolicy) -> None:
    """Load what ``save`` wrote. Every process must call it. Raises ``RunError`` for a damaged file."""
    accelerator = policy.accelerator
    with resuming(folder):
        if accelerator.distributed_type is DistributedType.DEEPSPEED:
            policy.model.load_checkpoint(folder)
        else:
            load_shares(folder, policy.model, policy.optimizer.optimizer, policy.moving)
        if accelerator.scaler is not None and (scaler := read_state(folder)["scaler"]):
            accelerator.scaler.load_state_dict(scaler)


def read_state(folder: Path) -> dict[str, Any]:
    """Return the ``state`` written by ``save``."""
    return read_json(folder / STATE, dict[str, Any])


def resuming(checkpoint: Path) -> AbstractContextManager[None]:
    """Turn errors from reading a damaged checkpoint into one line with the fix."""

    def explain(error: BaseException) -> RunError:
        if is_out_of_memory(error):
            return RunError(f"{checkpoint}: out of memory while reading it; free memory, then retry: training resumes")
        fix = f"remove {checkpoint.parent} to train from the start"
        return RunError(f"{checkpoint}: cannot be resumed, a file in it is damaged ({first_line(error, 120)}); {fix}")

    return library_errors(explain, also=(CheckpointException, PickleError))


def _check_own(state: Path) -> None:
    """Raise ``RunError`` for a folder of that name that no training wrote."""
    for path in state.iterdir() if state.is_dir() else ():
        hidden = path.name.startswith(".")  # an unfinished write
        if not hidden and path.name != _LABEL and not re.fullmatch(rf"{_PREFIX}\d+", path.name):
            raise RunError(f"{state}: holds {path.name}, which training did not write; choose another --output")


def record_result(output: Path, wanted: str, result: dict[str, Any]) -> None:
    """Record that the checkpoint in ``output`` is complete; only then delete the state."""
    write_atomically(output / "training.json", json.dumps({"fingerprint": wanted, "result": result}, indent=2) + "\n")
    discard_state(output / "state")


def checkpoint_updates(folder: Path) -> int:
    """Return the number of updates in a checkpoint."""
    return int(folder.name.removeprefix(_PREFIX))


def discard_state(state: Path) -> None:
    """Delete ``state`` so that a half-deleted checkpoint never counts as complete."""
    _discard_all(state, but=None)
    shutil.rmtree(state, ignore_errors=True)


def _discard_all(state: Path, *, but: Path | None) -> None:
    for folder in state.glob(f"{_PREFIX}*"):
        if folder != but:
            (folder / STATE).unlink(missing_ok=True)
            shutil.rmtree(folder)
