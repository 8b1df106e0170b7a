"""The reasoning evaluation: lm-eval's tasks on several models, with a standard error at every figure and item-by-item differences.

The first model is the reference. A (model, task) pair is a stage in the folder's manifest: done ones are not computed again, and one whose
settings, model or data changed is an error that names the change. The folder holds:

    MODEL/TASK.jsonl   one line an item: {"task":"arc_easy","doc":3,"doc_hash":"..","prompt_hash":"..",
                       "metrics":{"acc":1.0,"acc_norm":0.0},"target":"2","answers":[[-9.1,false],[-7.7,false],[-8.2,false]]}
    MODEL/answers-IDENTITY.jsonl   every answer of the model, so that a stopped task resumes
    results.json       everything shown, recomputed from the items
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.utils import set_torch_seed

from spag.config.schema import ModelConfig
from spag.core.disk import FolderLock
from spag.core.errors import ConfigError
from spag.core.manifest import Manifest
from spag.core.progress import Reporter
from spag.core.store import write_json, write_rows
from spag.evaluation.reasoning.lm import CachedLM
from spag.evaluation.reasoning.results import Items, check_same_items, figures_of, read_items
from spag.evaluation.reasoning.tasks import LoadedTask, ReasoningSettings, load_tasks, mean_metrics, quiet_harness
from spag.models.identity import model_contents
from spag.models.loading import library_versions


@dataclass(frozen=True, slots=True)
class _Model:
    """A model to evaluate: its folder, and a digest of what decides its answers."""

    config: ModelConfig
    place: str
    identity: str

    def stage(self, task: LoadedTask, settings: ReasoningSettings) -> tuple[str, dict[str, Any]]:
        """Return the stage of this model and ``task`` in the manifest, with its settings."""
        return f"{self.place}/{task.name}", {
            "model": self.identity,
            "task": {"definition_and_data": task.digest, "shots": task.shots},
            "limit": task.limit,
            "seed": settings.seed,
            "lm_eval": version("lm_eval"),
        }


def evaluate_reasoning(
    models: Mapping[str, ModelConfig], settings: ReasoningSettings, folder: Path, reporter: Reporter, *, force: bool = False
) -> dict[str, Any]:
    """Evaluate ``models`` by name, the reference first, and return the contents of ``folder/results.json``.

    A model's dtype must be resolved (not ``auto``). A task that cannot be loaded is named with its reason under ``left_out``. Raises,
    before any work, ``ConfigError`` for a task that cannot be evaluated, ``DataError`` when none can be loaded, and ``RunError`` when
    results in ``folder`` come from other settings, unless ``force`` redoes those.
    """
    places = _places(models)
    entries = {name: _Model(config, places[name], _identity(config)) for name, config in models.items()}
    reporter.note(f"loading {len(settings.names)} tasks and their data")
    tasks, left_out = load_tasks(settings, reporter)
    with FolderLock(folder):
        manifest = Manifest.open(folder, force=force)
        for stage in (model.stage(task, settings) for model in entries.values() for task in tasks):
            if manifest.is_stale(*stage):
                manifest.begin(*stage)  # refuses now, not after hours
        for name, model in entries.items():
            todo = [task for task in tasks if manifest.begin(*model.stage(task, settings))]
            if done := [task.label for task in tasks if task not in todo]:
                reporter.note(f"{name}: done before: {', '.join(done)}")
            if todo:
                _evaluate(name, model, todo, manifest, settings, reporter)
        results = _results(entries, tasks, manifest, settings) | {"left_out": left_out}
        write_json(folder / "results.json", results)
    return results


def _evaluate(
    name: str, model: _Model, tasks: Sequence[LoadedTask], manifest: Manifest, settings: ReasoningSettings, reporter: Reporter
) -> None:
    """Evaluate one model on ``tasks``; the items of each are on disk before the next begins."""
    place = manifest.folder / model.place
    versions = library_versions() | {name: version(name) for name in ("lm_eval", "datasets")} | {"spag": version("spag-selfplay")}
    with quiet_harness():
        lm = CachedLM(model.config, place / f"answers-{model.identity}.jsonl", settings.batch_size, reporter)
        for task in tasks:
            lm.title = f"{name} {task.label}"
            with manifest.running(f"{model.place}/{task.name}") as results:
                items = _ask(lm, task, settings)
                write_rows(place / f"{task.name}.jsonl", items)
                results.update(items=len(items), versions=versions)


def _ask(lm: CachedLM, task: LoadedTask, settings: ReasoningSettings) -> Items:
    """Return a row per item of ``task``, in the order of its parts."""
    for part in task.parts.values():
        part.set_fewshot_seed(settings.seed)  # every model sees the same solved examples
    set_torch_seed(settings.seed)
    samples = lm_eval.evaluate(lm, {"tasks": task.parts}, limit=task.limit, bootstrap_iters=0, log_samples=True)["samples"]
    return [item for name, part in task.parts.items() for item in _items(name, samples[name], mean_metrics(part))]


def _items(name: str, samples: Sequence[Mapping[str, Any]], metrics: Iterable[str]) -> Items:
    """Keep the answers under the task's first filter, which is the one its authors report."""
    kept = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    return [
        {
            "task": name,
            "doc": sample["doc_id"],
            "doc_hash": sample["doc_hash"][:16],
            "prompt_hash": sample["prompt_hash"][:16],
            "metrics": {metric: float(sample[metric]) for metric in metrics if metric in sample},
            "target": str(sample["target"]),
            "answers": sample["filtered_resps"],
        }
        for sample in sorted(kept, key=lambda sample: sample["doc_id"])
    ]


def _identity(model: ModelConfig) -> str:
    """Return a digest of what decides a model's answers: the contents of its files (those of an adapter's base too) and its dtype."""
    if model.name.startswith("openai:"):
        raise ConfigError(f"{model.name}: an endpoint gives no log-likelihoods of given answers; name a model that can be loaded here")
    material = [*model_contents(model.name), model.dtype]
    return hashlib.sha256(json.dumps(material).encode()).hexdigest()[:16]


def _places(models: Mapping[str, ModelConfig]) -> dict[str, str]:
    """Return a folder name for each model. Raises ``ConfigError`` when two would share one."""
    places = {name: re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model" for name in models}
    if len(set(places.values())) < len(places):
        raise ConfigError(f"models {', '.join(models)} need names that differ as folder names; give them as NAME=MODEL")
    return places


def _results(models: Mapping[str, _Model], tasks: Sequence[LoadedTask], manifest: Manifest, settings: ReasoningSettings) -> dict[str, Any]:
    """Return the contents of ``results.json``, from the items on disk."""
    items = {
        task.name: {name: read_items(manifest.folder / model.place / f"{task.name}.jsonl") for name, model in models.items()}
        for task in tasks
    }
    for task_name, rows in items.items():
        check_same_items(task_name, rows)
    figures = figures_of({task.name: task.metric for task in tasks}, items, settings.seed)
    for name, model in models.items():
        figures[name].update(model=model.config.model_dump(mode="json"), identity=model.identity)
        for task in tasks:
            stage = manifest.stages[f"{model.place}/{task.name}"]
            figures[name]["tasks"][task.name].update(seconds=stage["seconds"], versions=stage["results"]["versions"])
    return {
        "schema_version": 1,
        "reference": next(iter(models)),
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in asdict(settings).items()}
        | {"tasks": [*settings.names]},
        "errors": "se: standard error over items; low, high: 95 % bootstrap interval; p: exact test of better against worse items",
        "tasks": {task.name: {"label": task.label, "metric": task.metric, "shots": task.shots, "digest": task.digest} for task in tasks},
        "models": figures,
    }
