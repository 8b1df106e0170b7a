"""Checkpoint and resume: the state that an interrupted training stage leaves on disk.

``state/`` holds the trainer's own checkpoint folders. One is complete when it holds the marker that is written last, after every file is on
disk; all others are thrown away. A folder loses its marker before anything else of it is deleted. ``state/fingerprint`` says what the state
belongs to: a state made from other samples, another start model or other settings is never resumed.
"""

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from spag.core.errors import DataError
from spag.core.jsonfile import json_lines, read_json
from spag.core.store import folder_identity, mend_last_line, write_atomically
from spag.models.finding import adapter_base, resolve_model
from spag.models.roles import read_roles

logger = logging.getLogger(__name__)

_MARKER = "complete"
_PREFIX = "checkpoint-"


def fingerprint(parts: Iterable[Any]) -> str:
    """Return a digest of JSON values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def model_identity(name: str) -> list[Any]:
    """Return what identifies a model: a hub id, or its files' names, sizes and times of change, so that a folder may be moved.

    An adapter's includes its base model's. Raises ``ModelError`` for a path that is not a model.
    """
    if roles := read_roles(name):
        return [[role, model_identity(adapter)] for role, adapter in roles.items()]
    folder = Path(resolve_model(name))
    if not folder.is_dir():
        return [name]
    base = adapter_base(folder)
    return [*folder_identity(folder), *(model_identity(base) if base else [])]


def open_state(state: Path, belongs_to: str) -> Path | None:
    """Return the newest complete checkpoint with the fingerprint ``belongs_to``, and delete everything else in ``state``.

    Raises ``DataError`` for a checkpoint whose own record of the steps was damaged.
    """
    label = state / "fingerprint"
    if state.is_dir() and not (label.is_file() and label.read_bytes() == belongs_to.encode()):
        if any(state.iterdir()):
            logger.warning("%s is of other samples or settings; training starts over", state)
        discard_state(state)
    write_atomically(label, belongs_to)
    complete = [folder for folder in state.glob(f"{_PREFIX}*") if (folder / _MARKER).is_file()]
    newest = max(complete, key=checkpoint_step, default=None)
    _discard_all(state, but=newest)
    if newest is not None:
        _check_steps(newest)
    return newest


def _check_steps(checkpoint: Path) -> None:
    file = checkpoint / "trainer_state.json"
    try:
        read_json(file, _Steps)
    except DataError as error:
        raise DataError(f"{error}; remove {checkpoint.parent} to train from the start") from error


class _Steps(msgspec.Struct):
    """What we check of the file that Trainer resumes from."""

    global_step: int
    max_steps: int


class _Finished(msgspec.Struct):
    """``training.json``."""

    fingerprint: str
    result: dict[str, Any]


def finished_result(output: Path, belongs_to: str) -> dict[str, Any] | None:
    """Return the result that ``record_result`` wrote for the same fingerprint; else delete it and half-saved checkpoints.

    Raises ``DataError`` for a file of that name that it did not write.
    """
    record = output / "training.json"
    finished = read_json(record, _Finished) if record.exists() else None
    if finished is not None and finished.fingerprint == belongs_to and (output / "checkpoint").is_dir():
        discard_state(output / "state")
        return finished.result
    record.unlink(missing_ok=True)
    for leftover in output.glob(".checkpoint-*"):
        discard_state(leftover)
    return None


def record_result(output: Path, belongs_to: str, result: dict[str, Any]) -> None:
    """Record that the checkpoint in ``output`` is complete; only then delete the state."""
    write_atomically(output / "training.json", json.dumps({"fingerprint": belongs_to, "result": result}, indent=2) + "\n")
    discard_state(output / "state")


def checkpoint_step(folder: Path) -> int:
    return int(folder.name.removeprefix(_PREFIX))


def finish_checkpoint(state: Path, step: int) -> None:
    """Mark the checkpoint of ``step`` complete, then delete older ones."""
    folder = state / f"{_PREFIX}{step}"
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
    write_atomically(folder / _MARKER, "")
    _discard_all(state, but=folder)


def discard_state(state: Path) -> None:
    """Delete ``state`` such that no half-deleted checkpoint can ever be taken for a complete one."""
    _discard_all(state, but=None)
    shutil.rmtree(state, ignore_errors=True)


def _discard_all(state: Path, *, but: Path | None) -> None:
    for folder in state.glob(f"{_PREFIX}*"):
        if folder != but:
            (folder / _MARKER).unlink(missing_ok=True)
            shutil.rmtree(folder)


class MetricsLog:
    """``metrics.jsonl``: one row a logged step, on disk before training goes on.

    Rows after the step that training resumes from are dropped. Raises ``DataError`` for a row that is none.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        self.path = path
        mend_last_line(path)
        kept = [row for row in _metrics(path) if row["step"] <= resume_step] if path.exists() else []
        self.last: dict[str, Any] = kept[-1] if kept else {}
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))

    def append(self, row: dict[str, Any]) -> None:
        # in float16 the loss scaler skips steps whose gradient is not finite, and JSON has no such numbers
        self.last = row = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _metrics(path: Path) -> Iterator[dict[str, Any]]:
    for place, row in json_lines(path):
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise DataError(f"{place}: is no row of a training's metrics (no step); remove {path} to go on without its rows")
        yield row
