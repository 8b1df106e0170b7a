"""What a run folder holds, read from its files each time it is asked, because a run may be writing them right now.

Everything is optional: a folder of a run that has just begun, or a plain file of episodes, is fine.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spag.config.files import load_config
from spag.config.schema import RunConfig
from spag.core.errors import DataError, RunError
from spag.runs.manifest import Manifest
from spag.runs.offline import BASE, IMITATION, iteration_name, trained_models
from spag.runs.stages import TEACHER, teacher_path

_TAIL_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Source:
    """A file of episodes under the name that the page shows."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the run. ``status`` is the manifest's, or ``waiting``; ``idle_s`` is how long ago its files were last written."""

    name: str
    status: str
    seconds: float = 0.0
    results: dict[str, Any] | None = None
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder, or a single file of episodes."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Raises ``RunError`` when there is nothing at ``path`` that could be shown."""
        folder = cls(path)
        if path.is_file():
            with path.open("rb") as stream:
                if stream.read(64).lstrip().startswith(b"["):
                    raise RunError(f"{path}: a JSON list; turn it into JSON lines first: spag import episodes {path} --output FILE")
        elif not path.is_dir():
            raise RunError(f"{path}: no such run folder or file of episodes")
        elif not (path / "manifest.json").exists() and not any(folder.sources()):
            raise RunError(f"{path}: not a run folder: it has neither a manifest.json nor games; name the --output of spag run")
        return folder

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def sources(self) -> Iterator[Source]:
        """Yield the files of games that exist by now: teacher play, iterations in order, the arena."""
        if self.path.is_file():
            yield Source(self.path.stem, self.path)
            return
        config = self.config()
        if config is not None and TEACHER in config.imitation.episodes:
            yield Source(TEACHER, teacher_path())
        folders = sorted(self.path.glob("iteration-*"), key=lambda folder: (len(folder.name), folder.name))
        for folder in (self.path / IMITATION, *folders, self.path / "arena"):
            if (folder / "episodes.jsonl").is_file():
                yield Source(folder.name, folder / "episodes.jsonl")
        if (self.path / "episodes.jsonl").is_file():
            yield Source("episodes", self.path / "episodes.jsonl")

    def config(self) -> RunConfig | None:
        """Return the run's settings; ``None`` before they are written. Raises ``ConfigError``."""
        path = self.path / "config.yaml"
        return load_config(str(path)) if path.is_file() else None

    def stages(self) -> list[Stage]:
        """Return every stage that the settings ask for, in order, with what the manifest knows about it. Raises ``DataError``."""
        known = Manifest.open(self.path).stages if self.path.is_dir() else {}
        config = self.config()
        planned = list(_planned(config.iterations)) if config else []
        return [self._stage(name, known.get(name)) for name in dict.fromkeys((*planned, *known))]

    def _stage(self, name: str, entry: dict[str, Any] | None) -> Stage:
        if entry is None:
            return Stage(name, "waiting")
        idle = None if entry["status"] == "done" else self._idle(name.partition("/")[0])
        return Stage(name, entry["status"], entry["seconds"], entry.get("results"), idle)

    def _idle(self, folder: str) -> float | None:
        times = [path.stat().st_mtime for path in (self.path / folder).glob("*") if path.is_file()]
        times.append((self.path / "manifest.json").stat().st_mtime)
        return max(0.0, time.time() - max(times))

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """Return the last rows of ``name/metrics.jsonl``, oldest first; a torn last line is left out. Raises ``DataError``."""
        path = self.path / name / "metrics.jsonl"
        if not path.is_file():
            return []
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            tail = stream.read()
        lines = tail.split(b"\n")[:-1]
        if len(tail) >= _TAIL_BYTES:
            lines = lines[1:]  # cut somewhere
        try:
            return [json.loads(line) for line in lines if line.strip()]  # of the standard library: a lost loss is NaN
        except ValueError as error:
            raise DataError(f"{path}: not JSON lines: {error}") from error

    def arena(self) -> dict[str, Any] | None:
        """Return the arena's ``results.json``, or ``None``."""
        path = self.path / "arena" / "results.json"
        return dict(msgspec.json.decode(path.read_bytes())) if path.is_file() else None

    def checkpoints(self) -> dict[str, str]:
        """Return the models that one can play against: name to what opens it. Empty without settings."""
        config = self.config()
        return {} if config is None else {BASE: config.model.name, **trained_models(self.path)}


def _planned(iterations: int) -> Iterator[str]:
    yield from (f"{IMITATION}/samples", f"{IMITATION}/train")
    for number in range(1, iterations + 1):
        yield from (f"{iteration_name(number)}/{part}" for part in ("play", "samples", "train"))
    yield "arena"
