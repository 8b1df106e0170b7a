"""Checkpoint and resume: the state that an interrupted training stage leaves on disk.

``state/`` holds the trainer's own checkpoint folders. One is complete when it holds the marker that is written last, after every file is on
disk; all others are thrown away. A folder loses its marker before anything else of it is deleted. ``state/fingerprint`` says what the state
belongs to: a state made from other samples, another start model or other settings is never resumed.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spag.core.store import folder_identity, mend_last_line, write_atomically
from spag.models.finding import adapter_base, resolve_model

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
    folder = Path(resolve_model(name))
    if not folder.is_dir():
        return [name]
    base = adapter_base(folder)
    return [*folder_identity(folder), *(model_identity(base) if base else [])]


def open_state(state: Path, belongs_to: str) -> Path | None:
    """Return the newest complete checkpoint with the fingerprint ``belongs_to``, and delete everything else in ``state``."""
    label = state / "fingerprint"
    if state.is_dir() and not (label.is_file() and label.read_text(encoding="utf-8") == belongs_to):
        if any(state.iterdir()):
            logger.warning("%s is of other samples or settings; training starts over", state)
        discard_state(state)
    write_atomically(label, belongs_to)
    complete = [folder for folder in state.glob(f"{_PREFIX}*") if (folder / _MARKER).is_file()]
    newest = max(complete, key=checkpoint_step, default=None)
    _discard_all(state, but=newest)
    return newest


def finished_result(output: Path, belongs_to: str) -> dict[str, Any] | None:
    """Return the result that ``record_result`` wrote for the same fingerprint; else delete it and half-saved checkpoints."""
    record = output / "training.json"
    finished = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if finished.get("fingerprint") == belongs_to and (output / "checkpoint").is_dir():
        discard_state(output / "state")
        return dict(finished["result"])
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

    Rows after the step that training resumes from are dropped.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        self.path = path
        mend_last_line(path)
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        kept = [row for row in map(json.loads, lines) if row["step"] <= resume_step]
        self.last: dict[str, float | None] = kept[-1] if kept else {}
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept))

    def append(self, row: dict[str, float | None]) -> None:
        self.last = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
