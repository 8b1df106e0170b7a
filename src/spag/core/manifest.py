"""The manifest of a run folder: the stages that are done, with their settings and inputs.

A stage's fingerprint covers its own settings and the fingerprints of the stages it builds on. A done stage with the same fingerprint is not
run again; one whose fingerprint changed is an error that names the changed options, unless the caller forces it.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spag.core.errors import DataError, RunError
from spag.core.store import JsonlStore, write_json

SCHEMA_VERSION = 1


@dataclass(slots=True)
class Manifest:
    """``manifest.json`` of a run folder. Saved after every change."""

    folder: Path
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    force: bool = False
    measured: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, *, force: bool = False) -> "Manifest":
        path = folder / "manifest.json"
        if not path.exists():
            return cls(folder, force=force)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(folder, dict(data["stages"]), force, dict(data["measured"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a manifest: {error}; restore it or start a new run folder") from error

    def remember(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what ``measure`` found when the run began, so that a resumed run uses the same value."""
        if name not in self.measured:
            self.measured[name] = measure()
            self._save()
        return self.measured[name]

    def begin(self, stage: str, settings: Mapping[str, Any], inputs: Sequence[str] = ()) -> bool:
        """Record that ``stage`` is about to run; return whether it needs to. Raises ``RunError`` when its settings changed."""
        fingerprint = self._fingerprint(settings, inputs)
        known = self.stages.get(stage)
        if known and known["fingerprint"] != fingerprint:
            if not self.force:
                raise self._refusal(stage, changes(known["settings"], settings) or ["an earlier stage"])
            known = None
        if known and known["status"] == "done":
            return False
        if not known:
            self.stages[stage] = {"status": "started", "fingerprint": fingerprint, "settings": dict(settings), "seconds": 0.0}
            self._save()
        return True

    def is_stale(self, stage: str, settings: Mapping[str, Any], inputs: Sequence[str] = ()) -> bool:
        """Return whether ``stage`` has results of other settings, which a forced run must remove first."""
        known = self.stages.get(stage)
        return known is not None and known["fingerprint"] != self._fingerprint(settings, inputs)

    def renew(self, stage: str, settings: Mapping[str, Any], *, free: str) -> None:
        """Forget that ``stage`` was begun when its setting ``free`` changed, so that it is due. Raises ``RunError`` when others did.

        A forced run forgets nothing here: ``begin`` redoes what changed.
        """
        known = self.stages.get(stage)
        if known is None or self.force:
            return
        if changed := changes({**known["settings"], free: None}, {**settings, free: None}):
            raise self._refusal(stage, changed)
        if known["settings"].get(free) != settings[free]:
            del self.stages[stage]
            self._save()

    def _refusal(self, stage: str, changed: Sequence[str]) -> RunError:
        what = ", ".join(changed)
        return RunError(f"{self.folder}: {stage} was begun with other settings ({what}); use a new run folder, or --force to redo it")

    @contextmanager
    def running(self, stage: str) -> Iterator[dict[str, Any]]:
        """Time a begun stage and mark it done at the end; the yielded dict takes the stage's results."""
        results: dict[str, Any] = {}
        started = time.monotonic()
        try:
            yield results
        finally:
            entry = self.stages[stage]
            entry["seconds"] = round(entry["seconds"] + time.monotonic() - started, 1)
            self._save()
        entry.update(status="done", results=results)
        self._save()
        with JsonlStore(self.folder / "log.jsonl") as log:
            log.append(
                {"stage": stage, "seconds": entry["seconds"], "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **results}
            )

    def _fingerprint(self, settings: Mapping[str, Any], inputs: Sequence[str]) -> str:
        material = {"settings": settings, "inputs": [self.stages[name]["fingerprint"] for name in inputs]}
        return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:16]

    def _save(self) -> None:
        write_json(self.folder / "manifest.json", {"schema_version": SCHEMA_VERSION, "measured": self.measured, "stages": self.stages})


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted settings that differ, with both values: ``arena.tasks was 2, is 3``."""
    changed = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed += changes(before, after, f"{prefix}{key}.")
        elif before != after:
            changed.append(f"{prefix}{key} was {before!r}, is {after!r}")
    return changed
