"""The manifest of a run folder: the stages that are done, with their settings and inputs.

A stage's fingerprint covers its own settings and the fingerprints of the stages it builds on. A done stage with the same fingerprint is not
run again; one whose fingerprint changed is an error that names the changed options, unless the caller forces it. So is one whose files, or
those of a stage that it was built on, hold something else than when it was done. Files that are gone are an error once a stage needs them;
a forced run makes them again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from spag.core.errors import DataError, RunError
from spag.core.jsonfile import convert, read_json
from spag.core.outputs import Outputs, lost_outputs, outputs_digest, record_outputs, replaced_outputs
from spag.core.store import JsonlStore, write_json

SCHEMA_VERSION = 1


@dataclass(slots=True)
class Manifest:
    """``manifest.json`` of a run folder. Saved after every change."""

    folder: Path
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    force: bool = False
    measured: dict[str, Any] = field(default_factory=dict)
    keep: bool = True
    """Whether changes are saved: not by a dry run."""

    @classmethod
    def open(cls, folder: Path, *, force: bool = False) -> "Manifest":
        """Read the manifest of ``folder``; an empty one where there is none. Raises ``DataError`` naming file and field."""
        path = folder / "manifest.json"
        if not path.exists():
            return cls(folder, force=force)
        data = _read(path)
        return cls(folder, data["stages"], force, data["measured"])

    def remember(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what ``measure`` found when the run began, so that a resumed run uses the same value."""
        if name not in self.measured:
            self.measured[name] = measure()
            self._save()
        return self.measured[name]

    def begin(self, stage: str, settings: Mapping[str, Any], inputs: Sequence[str] = ()) -> bool:
        """Record that ``stage`` is about to run; return whether it needs to.

        Raises ``RunError`` when its settings or its files changed, or files of ``inputs`` are gone that it needs.
        """
        if self.is_done(stage) and not self.is_stale(stage, settings, inputs):
            return False
        known = self.stages.get(stage)
        if known and (faults := self._faults(stage, settings, inputs)):
            if not self.force:
                raise self._refusal(stage, faults)
            known = None
        for earlier in inputs:
            if lost := lost_outputs(self.folder, self.stages[earlier].get("outputs", {})):
                fix = f"restore it, or let --force redo {earlier} and what builds on it"
                raise RunError(f"{self.folder / lost[0]}: is gone, and {stage} needs it; {fix}")
        built_on = {earlier: outputs_digest(self.stages[earlier].get("outputs", {})) for earlier in inputs}
        if not known or self.is_done(stage):
            fingerprint = self._fingerprint(settings, inputs)
            self.stages[stage] = {"status": "started", "fingerprint": fingerprint, "settings": dict(settings), "seconds": 0.0}
        self.stages[stage] |= {"built_on": built_on}
        self._save()
        return True

    def foresee(self, stage: str, settings: Mapping[str, Any], inputs: Sequence[str] = ()) -> str:
        """Return what would become of ``stage``: done before, begun, due, or redone; later stages are asked as if it were done by then.

        Nothing is saved (``keep`` must be off). Raises what ``begin`` raises.
        """
        known, stale = self.stages.get(stage), self.is_stale(stage, settings, inputs)
        if not self.begin(stage, settings, inputs):
            return "done before"
        self.stages[stage] |= {"status": "done", "outputs": {}}
        return "redone" if stale else "begun" if known else "due"

    def is_done(self, stage: str) -> bool:
        """Return whether ``stage`` has been done, whatever has become of its results since."""
        return self.stages.get(stage, {}).get("status") == "done"

    def lost(self, stage: str) -> list[str]:
        """Return the files of a done stage that are gone."""
        return lost_outputs(self.folder, self.stages.get(stage, {}).get("outputs", {}))

    def is_stale(self, stage: str, settings: Mapping[str, Any], inputs: Sequence[str] = ()) -> bool:
        """Return whether ``stage`` has results of other settings or other files, or has lost them, so that a forced run redoes it."""
        if stage not in self.stages:
            return False
        return bool(self._faults(stage, settings, inputs) or (self.force and self.lost(stage)))

    def _faults(self, stage: str, settings: Mapping[str, Any], inputs: Sequence[str]) -> list[str]:
        """Return what speaks against the results of a begun stage, in words."""
        known = self.stages[stage]
        if known["fingerprint"] != self._fingerprint(settings, inputs):
            return [f"was begun with other settings ({', '.join(changes(known['settings'], settings)) or 'an earlier stage'})"]
        if not self.is_done(stage):  # what it has begun is checked by who goes on with it
            return []
        if replaced := replaced_outputs(self.folder, known.get("outputs", {})):
            return [f"is done, but {replaced[0]} is not what it made"]
        digests = {earlier: outputs_digest(self.stages[earlier].get("outputs", {})) for earlier in inputs}
        others = [earlier for earlier, digest in known.get("built_on", {}).items() if digests.get(earlier, digest) != digest]
        return [f"was built on other results of {earlier}" for earlier in others]

    def renew(self, stage: str, settings: Mapping[str, Any], *, free: str) -> None:
        """Forget that ``stage`` was begun when its setting ``free`` changed, so that it is due. Raises ``RunError`` when others did.

        A forced run forgets nothing here: ``begin`` redoes what changed.
        """
        known = self.stages.get(stage)
        if known is None or self.force:
            return
        if changed := changes({**known["settings"], free: None}, {**settings, free: None}):
            raise self._refusal(stage, [f"was begun with other settings ({', '.join(changed)})"])
        if known["settings"].get(free) != settings[free]:
            del self.stages[stage]
            self._save()

    def _refusal(self, stage: str, faults: Sequence[str]) -> RunError:
        return RunError(f"{self.folder}: {stage} {faults[0]}; use a new run folder, or --force to redo it")

    @contextmanager
    def running(self, stage: str, outputs: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Time a begun stage and mark it done at the end; the yielded dict takes the stage's results.

        ``outputs``: the files and folders that it makes and later stages read, which are recorded.
        """
        results: dict[str, Any] = {}
        started = time.monotonic()
        try:
            yield results
        finally:
            entry = self.stages[stage]
            entry["seconds"] = round(entry["seconds"] + time.monotonic() - started, 1)
            self._save()
        entry.update(status="done", results=results, outputs=record_outputs(self.folder, outputs))
        self._save()
        with JsonlStore(self.folder / "log.jsonl") as log:
            log.append(
                {"stage": stage, "seconds": entry["seconds"], "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **results}
            )

    def _fingerprint(self, settings: Mapping[str, Any], inputs: Sequence[str]) -> str:
        material = {"settings": settings, "inputs": [self.stages[name]["fingerprint"] for name in inputs]}
        return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:16]

    def _save(self) -> None:
        if self.keep:
            self._write()

    def _write(self) -> None:
        write_json(self.folder / "manifest.json", {"schema_version": SCHEMA_VERSION, "measured": self.measured, "stages": self.stages})


class _Stage(TypedDict):
    status: Literal["started", "done"]
    fingerprint: str
    settings: dict[str, Any]
    seconds: float
    results: NotRequired[dict[str, Any]]
    outputs: NotRequired[Outputs]
    built_on: NotRequired[dict[str, str]]


class _File(TypedDict):
    schema_version: int
    measured: dict[str, Any]
    stages: dict[str, dict[str, Any]]


def _read(path: Path) -> _File:
    """Return the contents of a manifest, once every field is of its kind. Raises ``DataError``."""
    data = read_json(path, _File)
    for name, entry in data["stages"].items():
        convert(entry, _Stage, f"{path}: {name}")
    if data["schema_version"] != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version is {data['schema_version']}, and this version of spag reads {SCHEMA_VERSION}; "
            "use the version that wrote it, or a new run folder"
        )
    return data


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
