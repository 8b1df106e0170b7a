"""A run in progress: its settings, its folder, and stages that are done once."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spag.config.files import dump_config
from spag.config.schema import ModelConfig, RunConfig
from spag.core.disk import storage_errors
from spag.core.manifest import Manifest
from spag.core.store import file_digest, write_atomically
from spag.rollout.play import PlaySetup
from spag.runs.folder import BASE, IMITATION, imitates

Results = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run in progress: what every stage needs."""

    config: RunConfig
    folder: Path
    manifest: Manifest
    setup: PlaySetup
    outlook: list[tuple[str, str]] | None = None
    """For a dry run, which does nothing and changes nothing: every stage, and what would become of it."""

    def keep_settings(self) -> None:
        """Write the settings beside the results."""
        if self.outlook is None:
            write_atomically(self.folder / "config.yaml", dump_config(self.config))

    def checkpoint(self, name: str) -> str:
        """Return the model of ``base``, or the checkpoint of ``imitation``, ``iteration-k`` or ``online``."""
        return self.config.model.name if name == BASE else str(self.folder / name / "checkpoint")

    def model(self, name: str) -> ModelConfig:
        return self.config.model.model_copy(update={"name": self.checkpoint(name)})

    @property
    def first(self) -> str:
        """The model that self-play begins with."""
        return IMITATION if imitates(self.config) else BASE

    def trained(self, *names: str) -> list[str]:
        """Return the stages that the models of these names come from."""
        return [f"{name}/train" for name in names if name != BASE]

    def settings(self, *sections: str, **more: Any) -> dict[str, Any]:
        """Return those sections of the config, as a stage's settings, with the digests of the files they name."""
        dumped = self.config.model_dump(mode="json", include=set(sections))
        named = (self.config.game.model_extra or {}).items() if "game" in sections else ()
        files = {name: Path(value) for name, value in named if isinstance(value, str) and Path(value).is_file()}
        return {**dumped, **more, "files": {name: file_digest(path) for name, path in files.items()}}

    def stage(
        self,
        name: str,
        settings: Mapping[str, Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        work: Callable[[], Results],
        *,
        kept: Sequence[str] | None = None,
    ) -> None:
        """Do ``work`` unless the manifest says that it is done; a forced redo removes ``outputs`` first.

        ``kept``: those of ``outputs`` that later stages and people read, by default all; one that is replaced afterwards is noticed.
        """
        if self.outlook is not None:
            self.outlook.append((name, self.manifest.foresee(name, settings, inputs)))
            return
        if self.manifest.force and self.manifest.is_stale(name, settings, inputs):
            for output in outputs:
                remove(self.folder / output)
        if not self.manifest.begin(name, settings, inputs):
            lost = self.manifest.lost(name)
            self.setup.reporter.note(f"{name}: done before{f', but {self.folder / lost[0]} is gone' if lost else ''}")
            return
        with self.manifest.running(name, outputs if kept is None else kept) as results:
            results.update(work())


def remove(path: Path) -> None:
    """Delete a file or folder of a run; a missing one is fine."""
    with storage_errors(path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
