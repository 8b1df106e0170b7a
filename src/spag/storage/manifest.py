"""The manifest of a run folder: its stages with their settings, inputs and outputs.

``decide`` alone determines what happens to a stage:

    never begun                                   RUN
    given up by a forced run                      REDO
    other settings or files that it reads, or its
    own files were replaced                       REFUSE; with force REDO
    its files are gone                            SKIP, and REFUSE for a later stage that needs them; with force REDO
    built on other results of an earlier stage    REDO; that stage was redone by force, and this one goes with it
    begun, or done with another free setting      RUN, which goes on with the files that are there
    anything else                                 SKIP

A forced run records the results it discards before it starts; if it is killed, the same command resumes it without
force.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from spag.core.errors import DataError, RunError
from spag.storage.disk import storage_errors
from spag.storage.jsonfile import convert, read_json
from spag.storage.outputs import (
    Outputs,
    changed_files,
    changes,
    lost_outputs,
    outputs_digest,
    record_files,
    record_outputs,
    replaced_outputs,
)
from spag.storage.store import write_json

MANIFEST = "manifest.json"
"""Its name in a run folder. Other tools have files of that name, too."""
SCHEMA_VERSION = 1
Names = Sequence[str]
Settings = Mapping[str, Any]
Files = Mapping[str, Path | str] | None


class Record(TypedDict):
    """A stage in the manifest. ``waiting``: a forced run discarded its results, for the reason ``given_up``.

    ``free``: settings that may differ without a redo. ``built_on``: a digest of the results of each earlier stage that
    it reads. ``files``: others that it began with, such as those of a local model.
    """

    status: Literal["waiting", "started", "done"]
    settings: dict[str, Any]
    seconds: float
    finished: NotRequired[str]
    given_up: NotRequired[str]
    free: NotRequired[Any]
    built_on: NotRequired[dict[str, str | None]]
    results: NotRequired[dict[str, Any]]
    outputs: NotRequired[Outputs]
    files: NotRequired[Outputs]


class _File(TypedDict):
    schema_version: int
    measured: dict[str, Any]
    stages: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StageRequest:
    """The requested settings of a stage, and the present state of the run folder.

    ``free``, ``built_on``: as in its record; the digest is ``None`` for a stage that is not done. ``replaced``,
    ``lost``: its files whose contents changed, or that are gone. ``missing``: lost files by the earlier stage that made
    them. ``changed``: other files that it reads and that changed since it began.
    """

    settings: Settings
    free: Any = None
    built_on: Mapping[str, str | None] = field(default_factory=dict)
    force: bool = False
    replaced: Names = ()
    lost: Names = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    changed: Names = ()


class Action(Enum):
    """What happens to a stage; the value is shown to the user."""

    SKIP = "done before"
    RUN = "due"
    REDO = "redone"
    REFUSE = "refused"


@dataclass(frozen=True, slots=True)
class StageDecision:
    """``reason``: text for the user that follows the stage's name. ``forced``: redone only because of force."""

    action: Action
    reason: str
    forced: bool = False

    @property
    def is_due(self) -> bool:
        """Whether the stage has work to do."""
        return self.action in (Action.RUN, Action.REDO)

    @property
    def state(self) -> str:
        """Return the state in one or two words: ``done before``, ``begun``, ``due`` or ``redone``."""
        return self.reason if self.action is Action.RUN else self.action.value


def decide(record: Record | None, request: StageRequest) -> StageDecision:
    """Return what to do with a stage."""
    decision = StageDecision(Action.RUN, "due") if record is None else _decide_again(record, request)
    if decision.is_due and request.missing:
        earlier, file = next(iter(request.missing.items()))
        fix = f"restore it, or let --force redo {earlier} and what builds on it"
        return StageDecision(Action.REFUSE, f"needs {file}, which is gone; {fix}")
    return decision


def _decide_again(record: Record, request: StageRequest) -> StageDecision:
    """Return what to do with a stage that has a record."""
    if record["status"] == "waiting":
        return StageDecision(Action.REDO, record.get("given_up", "was given up"))
    if fault := _fault(record, request):
        if request.force:
            return StageDecision(Action.REDO, fault, forced=True)
        return StageDecision(Action.REFUSE, f"{fault}; use a new run folder, or --force to redo it")
    for earlier, digest in record.get("built_on", {}).items():
        if request.built_on.get(earlier, digest) != digest:
            return StageDecision(Action.REDO, f"was built on other results of {earlier}")
    has_same_free = record.get("free") == request.free
    if record["status"] == "started" or not has_same_free:
        return StageDecision(Action.RUN, "begun" if has_same_free else "due")
    gone = f", but {request.lost[0]} is gone; --force redoes it" if request.lost else ""
    return StageDecision(Action.SKIP, f"done before{gone}")


def _fault(record: Record, request: StageRequest) -> str:
    """Return why a stage's results do not match the request, so that only force redoes it; empty if they match."""
    known, asked = sorted(record.get("built_on", {})), sorted(request.built_on)
    if changed := changes(record["settings"], request.settings):
        return f"was begun with other settings ({', '.join(changed)})"
    if request.changed:
        return f"was begun before {request.changed[0]} changed"
    if known != asked and record.get("free") == request.free:
        return f"was built on {', '.join(known) or 'nothing'}, not on {', '.join(asked) or 'nothing'}"
    if request.replaced:
        return f"is done, but {request.replaced[0]} is not what it wrote"
    return f"has lost {request.lost[0]}" if request.lost and request.force else ""


@dataclass(slots=True)
class Manifest:
    """``manifest.json`` of a run folder. ``dry``: begun stages are not recorded; later stages see them as not done."""

    folder: Path
    stages: dict[str, Record] = field(default_factory=dict)
    force: bool = False
    measured: dict[str, Any] = field(default_factory=dict)
    dry: bool = False

    @classmethod
    def open(cls, folder: Path, *, force: bool = False, dry: bool = False) -> "Manifest":
        """Read the manifest of ``folder``, empty if there is none. Raises ``DataError`` naming file and field."""
        path = folder / MANIFEST
        if not path.exists():
            return cls(folder, force=force, dry=dry)
        data = read_json(path, _File)
        if (version := data["schema_version"]) != SCHEMA_VERSION:
            fault = f"schema_version is {version}, and this version of spag reads {SCHEMA_VERSION}"
            raise DataError(f"{path}: {fault}; use the version that wrote it, or a new run folder")
        for name, entry in data["stages"].items():
            convert(entry, Record, f"{path}: {name}")
        return cls(folder, data["stages"], force, data["measured"], dry)

    def remember(self, name: str, value: Any) -> None:
        """Record a value measured when the run begins, so that a resumed run uses the same one."""
        if name not in self.measured:
            self.measured[name] = value
            self._save()

    def is_done(self, stage: str) -> bool:
        """Return whether ``stage`` has been done, even if its results have changed since."""
        return stage in self.stages and self.stages[stage]["status"] == "done"

    def valid_stages(self) -> set[str]:
        """Return the stages that are done and built on valid results: no redo is pending for them or earlier ones."""
        built_on = {name: self.stages[name].get("built_on", {}) for name in filter(self.is_done, self.stages)}
        found = {name: on for name, on in built_on.items() if self._built_on([*on]) == on}
        while fallen := [name for name, on in found.items() if not found.keys() >= on.keys()]:
            for name in fallen:
                del found[name]
        return set(found)

    def decide(
        self, stage: str, settings: Settings, inputs: Names = (), free: Any = None, files: Files = None
    ) -> StageDecision:
        """Return what to do with ``stage``, which reads ``inputs`` and ``files``. Raises ``RunError`` when refused."""
        outputs, lost = self._outputs(stage), {name: lost_outputs(self.folder, self._outputs(name)) for name in inputs}
        record = self.stages.get(stage)
        request = StageRequest(
            settings=json.loads(json.dumps(settings)),  # lists for tuples, as the manifest has them
            free=free,
            built_on=self._built_on(inputs),
            force=self.force,
            replaced=replaced_outputs(self.folder, outputs),
            lost=lost_outputs(self.folder, outputs),
            missing={name: files[0] for name, files in lost.items() if files},
            changed=changed_files(files or {}, record.get("files", {}) if record else {}),
        )
        decision = decide(record, request)
        if decision.action is Action.REFUSE:
            raise RunError(f"{self.folder}: {stage} {decision.reason}")
        return decision

    def give_up(self, decisions: Mapping[str, StageDecision]) -> None:
        """Record the stages that are redone by force, so that a later run redoes them without it."""
        if forced := {stage: _given_up(decision) for stage, decision in decisions.items() if decision.forced}:
            self.stages |= forced
            self._save()

    def begin(
        self,
        stage: str,
        settings: Settings,
        inputs: Names = (),
        free: Any = None,
        outputs: Names = (),
        files: Files = None,
    ) -> StageDecision:
        """Decide, and record a due stage as started; a redo deletes ``outputs`` first. Raises ``StorageError``, too."""
        decision = self.decide(stage, settings, inputs, free, files)
        if self.dry and decision.is_due:
            self.stages[stage] = _given_up(decision)
        elif decision.is_due:
            if decision.action is Action.REDO:
                for name in outputs:  # before the record changes: if killed in between, it is still a redo
                    _remove(self.folder / name)
            known = self.stages.get(stage)
            seconds = known["seconds"] if known and decision.action is Action.RUN else 0.0
            record: Record = {"status": "started", "settings": dict(settings), "seconds": seconds}
            record |= {"free": free, "built_on": self._built_on(inputs)}
            self.stages[stage] = {**record, "files": record_files(files)} if files else record
            self._save()
        return decision

    @contextmanager
    def running(self, stage: str, outputs: Names = ()) -> Iterator[dict[str, Any]]:
        """Time a begun stage and mark it done at the end; the yielded dict takes the stage's results.

        ``outputs``: the files and folders that it makes for later stages; they are recorded.
        """
        results: dict[str, Any] = {}
        started = time.monotonic()
        try:
            yield results
        finally:
            entry = self.stages[stage]
            entry["seconds"] = round(entry["seconds"] + time.monotonic() - started, 1)
            self._save()
        made = record_outputs(self.folder, outputs)
        finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry.update({"status": "done", "finished": finished, "results": results, "outputs": made})
        self._save()

    def _outputs(self, stage: str) -> Outputs:
        return self.stages[stage].get("outputs", {}) if self.is_done(stage) else {}

    def _built_on(self, inputs: Names) -> dict[str, str | None]:
        return {name: outputs_digest(self._outputs(name)) if self.is_done(name) else None for name in inputs}

    def _save(self) -> None:
        content: _File = {"schema_version": SCHEMA_VERSION, "measured": self.measured, "stages": self.stages}
        write_json(self.folder / MANIFEST, content)


def _given_up(decision: StageDecision) -> Record:
    return {"status": "waiting", "settings": {}, "seconds": 0.0, "given_up": decision.reason}


def _remove(path: Path) -> None:
    """Delete a file, folder or link of a run, if it exists. Raises ``StorageError``."""
    with storage_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
