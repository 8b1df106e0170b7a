"""The reasoning evaluation: lm-eval's tasks on several models, with error bars and item-by-item differences.

The first model is the reference. A (model, task) pair is a stage in the folder's manifest: finished ones are kept; if
settings, model or data changed, an error names the change. The folder holds:

    MODEL/TASK.jsonl   one line per item: {"task":"arc_easy","doc":3,"doc_hash":"..","prompt_hash":"..",
                       "metrics":{"acc":1.0,"acc_norm":0.0},"target":"2",
                       "answers":[[-9.1,false],[-7.7,false],[-8.2,false]]}
    MODEL/answers-IDENTITY.sqlite   every answer of the model, so that a stopped task resumes
    results.json       everything shown, recomputed from the items
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import LM
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import set_torch_seed

from spag.config.schema import ModelConfig
from spag.core.errors import ConfigError, RunError, first_line, is_out_of_memory
from spag.core.progress import Reporter
from spag.core.visible import counted
from spag.engines.players import Kind, kind_of
from spag.evaluation.reasoning.answers import ChatModel, cached
from spag.evaluation.reasoning.harness import quiet_harness
from spag.evaluation.reasoning.results import Items, check_same_prompts, figures_of
from spag.evaluation.reasoning.tasks import LoadedTask, ReasoningSettings, load_tasks, mean_metrics
from spag.models.identity import weights_digest
from spag.models.loading import library_versions, load_model, load_tokenizer
from spag.storage.disk import lock_folder
from spag.storage.episodes import raw_rows
from spag.storage.manifest import Manifest
from spag.storage.store import write_json, write_rows


@dataclass(frozen=True, slots=True)
class _Model:
    """A model to evaluate: its folder, and a digest of everything that determines its answers."""

    name: str
    config: ModelConfig
    place: str
    identity: str


def evaluate_reasoning(
    models: Mapping[str, ModelConfig],
    settings: ReasoningSettings,
    folder: Path,
    reporter: Reporter,
    *,
    force: bool = False,
) -> dict[str, Any]:
    """Evaluate ``models`` by name, the reference first, and return the contents of ``folder/results.json``.

    A model's dtype must be resolved (not ``auto``). A task that cannot be loaded is listed with its reason under
    ``left_out``. Raises, before any work, ``ConfigError`` for a task that cannot be evaluated, ``DataError`` if none
    can be loaded, and ``RunError`` if results in ``folder`` come from other settings, unless ``force`` redoes them.
    """
    entries = _entries(models)
    reporter.note(f"loading the data of {counted(len(settings.tasks), 'task')}")
    tasks, left_out = load_tasks(settings, reporter)
    with lock_folder(folder):
        manifest = Manifest.open(folder, force=force)
        stages = {(model.name, task.name): _stage(model, task, settings) for model in entries for task in tasks}
        manifest.give_up({one["stage"]: manifest.decide(**one) for one in stages.values()})  # refuses immediately
        for model in entries:
            todo = [task for task in tasks if manifest.begin(**stages[model.name, task.name]).is_due]
            if done := [task.label for task in tasks if task not in todo]:
                reporter.note(f"{model.name}: done before: {', '.join(done)}")
            if todo:
                _evaluate(model, todo, manifest, settings, reporter)
        results = _results(entries, tasks, manifest, settings) | {"left_out": left_out}
        write_json(folder / "results.json", results)
    return results


def _entries(models: Mapping[str, ModelConfig]) -> list[_Model]:
    places = {name: re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model" for name in models}
    if len(set(places.values())) < len(places):
        raise ConfigError(f"models {', '.join(models)} need names that differ as folder names; give them as NAME=MODEL")
    if remote := [one.name for one in models.values() if kind_of(one.name) is Kind.ENDPOINT]:
        why = "an endpoint gives no log-likelihoods of given answers"
        raise ConfigError(f"{remote[0]}: {why}; name a model that can be loaded here")
    digests = {name: f"{weights_digest(config.name)}-{config.dtype}" for name, config in models.items()}
    return [_Model(name, config, places[name], digests[name]) for name, config in models.items()]


def _stage(model: _Model, task: LoadedTask, settings: ReasoningSettings) -> dict[str, Any]:
    """Return the stage of ``model`` and ``task`` in the manifest; the task's digest counts as a file that it reads."""
    made_of = {"model": model.identity, "lm_eval": version("lm_eval"), "shots": task.shots}
    options = ("limit", "max_new_tokens", "samples", "temperature", "seed", "chat")
    chosen = {option: getattr(settings, option) for option in options}
    files = {f"the definition or data of {task.name}": task.digest}
    return {"stage": f"{model.place}/{task.name}", "settings": {**made_of, **chosen}, "files": files}


def _evaluate(
    model: _Model, tasks: Sequence[LoadedTask], manifest: Manifest, settings: ReasoningSettings, reporter: Reporter
) -> None:
    """Evaluate one model on ``tasks``; the items of each are on disk before the next begins."""
    versions = library_versions() | {name: version(name) for name in ("lm_eval", "datasets")}
    versions["spag"] = version("spag-selfplay")
    config, place = model.config, manifest.folder / model.place
    trust = config.trust_remote_code
    loaded = load_model(config.name, dtype=config.dtype, device=config.device, trust_remote_code=trust)
    tokenizer = load_tokenizer(config.name, trust_remote_code=trust)
    if settings.chat and not tokenizer.chat_template:
        raise ConfigError(f"{config.name}: it has no chat template; omit --chat")
    with quiet_harness():
        hflm = HFLM(pretrained=loaded, tokenizer=tokenizer, batch_size=settings.batch_size)
        with cached(hflm, place / f"answers-{model.identity}.sqlite") as lm:
            for task in tasks:
                title = f"{model.name} {task.label}"
                reporter.note(title)
                stage = f"{model.place}/{task.name}"
                with manifest.running(stage, [f"{stage}.jsonl"]) as results, _one_line_errors(title):
                    items = _ask(ChatModel(lm) if settings.chat else lm, task, settings)
                    write_rows(place / f"{task.name}.jsonl", items)
                    results.update(items=len(items), versions=versions)


@contextmanager
def _one_line_errors(title: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:  # lm-eval's error for a request that does not fit the model's context
        raise RunError(f"{title}: {first_line(error)}; set --max-new-tokens") from error
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fix = "lower --batch-size and rerun: finished answers are kept"
        raise RunError(f"{title}: out of memory; {fix}") from error


def _ask(lm: LM | ChatModel, task: LoadedTask, settings: ReasoningSettings) -> Items:
    """Return a row per item of ``task``, in the order of its parts; scores are means over the samples."""
    samples, seed = [], settings.seed
    options = {"apply_chat_template": settings.chat, "fewshot_as_multiturn": settings.chat}
    for number in range(task.samples):
        for part in task.parts.values():
            part.set_fewshot_seed(seed)  # the same solved examples for every model and sample
        set_torch_seed(seed + number)
        found = lm_eval.evaluate(lm, {"tasks": task.parts}, limit=task.limit, bootstrap_iters=0, **options)["samples"]
        samples.append([row for name, part in task.parts.items() for row in _rows(name, found[name], part)])
    return [_mean_row(rows) for rows in zip(*samples, strict=True)]


def _rows(name: str, samples: Sequence[Mapping[str, Any]], part: Any) -> Items:
    """Keep the answers under the task's first filter, the one reported by its authors."""
    kept = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
    return [
        {
            "task": name,
            "doc": sample["doc_id"],
            "doc_hash": sample["doc_hash"][:16],
            "prompt_hash": sample["prompt_hash"][:16],
            "metrics": {metric: float(sample[metric]) for metric in mean_metrics(part) if metric in sample},
            "target": str(sample["target"]),
            "answers": sample["filtered_resps"],
        }
        for sample in sorted(kept, key=lambda sample: sample["doc_id"])
    ]


def _mean_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of an item with mean scores over its samples, and all their answers."""
    metrics = {name: sum(row["metrics"][name] for row in rows) / len(rows) for name in rows[0]["metrics"]}
    return {**rows[0], "metrics": metrics, "answers": [answer for row in rows for answer in row["answers"]]}


def _results(
    models: Sequence[_Model], tasks: Sequence[LoadedTask], manifest: Manifest, settings: ReasoningSettings
) -> dict[str, Any]:
    """Return the contents of ``results.json``, from the items on disk."""
    items: dict[str, dict[str, Items]] = {}
    for task in tasks:
        files = {model.name: manifest.folder / model.place / f"{task.name}.jsonl" for model in models}
        items[task.name] = {name: [row for _, row in raw_rows(file)] for name, file in files.items()}
        check_same_prompts(task.name, items[task.name], chat=settings.chat)
    figures = figures_of({task.name: task.metric for task in tasks}, items, settings.seed)
    for model in models:
        figures[model.name].update(model=model.config.model_dump(mode="json"), identity=model.identity)
        for task in tasks:
            stage = manifest.stages[f"{model.place}/{task.name}"]
            about = {"seconds": stage["seconds"], "versions": stage["results"]["versions"]}
            figures[model.name]["tasks"][task.name].update(about)
    shown = ("label", "metric", "shots", "samples", "digest")
    return {
        "schema_version": 1,
        "reference": models[0].name,
        "settings": json.loads(json.dumps(asdict(settings), default=str)),
        "errors": "se: standard error over items; low, high: 95 % interval, of differences Agresti and Coull's, of "
        "geometric means by bootstrap; p: exact test of better against worse items",
        "tasks": {task.name: {key: getattr(task, key) for key in shown} for task in tasks},
        "models": figures,
    }
