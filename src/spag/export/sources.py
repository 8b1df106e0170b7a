"""What is to be exported: one of a run's models, or any model that spag can load."""

from dataclasses import dataclass
from pathlib import Path

from spag.core.errors import ModelError, RunError
from spag.engines.opening import OPENAI_PREFIX
from spag.models.loading import adapter_base
from spag.runs.folder import BASE, trained_models
from spag.runs.reading import RunData, read_run


@dataclass(frozen=True, slots=True)
class Source:
    """A model to export.

    name: ``base``, ``imitation`` or ``iteration-K`` of a run, else the model's own name. model: what ``load_model`` takes. base: the model
    that training began with, by its name (untrained, the model itself), ``None`` where nothing tells. run: ``None`` outside a run folder.
    """

    name: str
    model: str
    base: str | None
    run: RunData | None

    @property
    def trust_remote_code(self) -> bool:
        return bool(self.run and self.run.config and self.run.config.model.trust_remote_code)


def find_source(what: str, name: str | None = None) -> Source:
    """Return the model that ``what`` names: a run folder, a checkpoint in one, or any model.

    ``name`` chooses among a run's models; by default the last that was trained. Raises ``RunError`` for a run without that model, and
    ``ModelError`` for what has no weights here.
    """
    path = Path(what).expanduser()
    if (path / "manifest.json").is_file():
        return _of_run(read_run(path), name)
    if name is not None:
        raise RunError(f"--name {name}: {what} is no run folder, so there is nothing to choose from; leave --name out")
    run_folder = path.parent.parent
    if path.name == "checkpoint" and (run_folder / "manifest.json").is_file():
        return _of_run(read_run(run_folder), path.parent.name)
    if what.startswith(OPENAI_PREFIX):
        raise ModelError(f"{what}: a model behind an endpoint has no weights here to export")
    base = adapter_base(path) or (None if path.exists() else what)
    return Source(name=Path(what).stem if path.is_file() else path.name, model=what, base=base, run=None)


def _of_run(run: RunData, name: str | None) -> Source:
    trained = trained_models(run.folder)
    if name is None and not trained:
        raise RunError(
            f"{run.folder}: no model has been trained yet; resume it with spag run, or export what it starts from: --name {BASE}"
        )
    chosen = name or list(trained)[-1]
    base = run.config.model.name if run.config else None
    if chosen == BASE:
        if base is None:
            raise RunError(f"{run.folder}: no config.yaml, so nothing tells which model it started from; export that model by its name")
        return Source(BASE, base, base, run)
    if chosen not in trained:
        raise RunError(f"{run.folder}: no trained model {chosen!r}; there are: {', '.join((BASE, *trained))}")
    return Source(chosen, trained[chosen], base, run)
