"""Loading lm-eval's tasks with their data, before any model: a task that cannot be loaded is left out with its reason,
and the others are evaluated.

Data may come from a folder of JSON Lines files, in place of the hub: a split is read from ``TASK_SPLIT.jsonl``, such as
``piqa_validation.jsonl``. A task that is one configuration of a data set, such as a part of MMLU or BBH, may read
``FAMILY/CONFIGURATION_SPLIT.jsonl`` or ``FAMILY/CONFIGURATION.jsonl`` (``mmlu/virology_test.jsonl``,
``bbh/snarks.jsonl``). The parts of any other group share ``GROUP_SPLIT.jsonl``.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import httpx
import httpx2
from aiohttp import ClientError
from datasets.exceptions import DatasetsError
from jinja2 import TemplateError
from lm_eval.api.metrics import mean

from spag.core.errors import ConfigError, DataError, first_line
from spag.core.progress import Reporter
from spag.evaluation.reasoning.harness import members, open_manager, quiet_harness
from spag.evaluation.reasoning.suites import BY_TASK, SUITES, SuiteTask

LOADING_HINT = "go online once, after which HF_HUB_OFFLINE=1 works, or read local files with --data or --task-path"

# Building a task reads its data and renders its first item. OSError: no network, no such file or repository, most
# errors of the hub. DatasetsError, BadZipFile: broken data. RuntimeError: a data set that needs a loading script.
# ValueError, LookupError: no such split or configuration. TypeError, AttributeError, ImportError, AssertionError,
# TemplateError: a task file that does not fit its data, or a package that it needs. The three clients of datasets, the
# hub and fsspec have errors of their own.
LOADING_ERRORS = (
    *(OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, ImportError, AssertionError),
    *(DatasetsError, BadZipFile, TemplateError, httpx.HTTPError, httpx2.HTTPError, ClientError),
)

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """Settings of an evaluation.

    tasks: lm-eval's names. task_path: a folder of task files. data: a folder of JSON Lines files, read in place of the
    hub. limit: items of a task, from its start; a group's parts share it evenly, rounded up. shots: solved examples,
    for all tasks. max_new_tokens: longest generated answer; ``None``: each task's default. samples: answers drawn at
    ``temperature`` for each item of a generative task; their scores are averaged. chat: prompt in the model's chat
    template (``ChatModel``).
    """

    tasks: tuple[str, ...] = tuple(one.task for one in SUITES["paper"].tasks)
    task_path: Path | None = None
    data: Path | None = None
    trust_task_code: bool = False
    limit: int | None = None
    shots: int | None = None
    max_new_tokens: int | None = None
    samples: int = 1
    temperature: float = 0.0
    chat: bool = False
    batch_size: int = 16
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task, or a group of tasks whose items have equal weight, with its data in memory.

    parts: lm-eval's task objects by name. limit: items of each part; ``None`` for all. samples: answers drawn for an
    item. digest: of the definition and of every item that can appear in a prompt, independent of their source.
    """

    name: str
    label: str
    metric: str
    shots: int
    limit: int | None
    samples: int
    digest: str
    parts: dict[str, Any] = field(repr=False)


def load_tasks(settings: ReasoningSettings, reporter: Reporter) -> tuple[list[LoadedTask], dict[str, str]]:
    """Load tasks with their data. Returns the loaded ones, and by name, in one line, why others could not be loaded.

    Raises ``ConfigError`` for an unknown or unsuitable task, and ``DataError`` if no task can be loaded. Relative paths
    of data files in the user's tasks start at ``task_path``.
    """
    task_path, data = settings.task_path and settings.task_path.resolve(), settings.data and settings.data.resolve()
    names = tuple(dict.fromkeys(settings.tasks))
    loaded: list[LoadedTask] = []
    left_out: dict[str, str] = {}
    with quiet_harness(trust_code=settings.trust_task_code), chdir(task_path or Path.cwd()):
        manager = open_manager(names, task_path)
        for name in names:
            known = BY_TASK.get(name, SuiteTask(name, name))
            shots = known.shots if settings.shots is None else settings.shots
            random.seed(settings.seed)  # some tasks shuffle choices when they are loaded
            try:
                spec = _local_spec(name, manager.task_index, data, shots, task_path) if data else name
                parts = manager.load([spec])["tasks"]
            except LOADING_ERRORS as error:
                left_out[name] = f"{type(error).__name__}: {first_line(error, 160)}"
                reporter.note(f"{name} is skipped: {left_out[name]}")
                continue
            loaded.append(_prepare(known, parts, shots, settings))
    if not loaded:
        reasons = "; ".join(f"{name} ({why})" for name, why in left_out.items())
        raise DataError(f"no task can be loaded: {reasons}; {LOADING_HINT}")
    return loaded, left_out


def _shots_of(own: int | None, asked: int | None) -> int:
    """Return how many solved examples are shown, by lm-eval's rule: an explicit 0 in a task file counts."""
    return 0 if own == 0 else asked if asked is not None else own or 0


def _local_spec(name: str, index: Mapping[str, Any], data: Path, shots: int | None, own: Path | None) -> Any:
    """Return what lm-eval loads for ``name``, with its data from the folder ``data``.

    index: lm-eval's entries by name. own: the user's folder of task files, which may name their own data. Raises
    ``FileNotFoundError`` if a task's file is missing.
    """
    parts = [_part(part, name, index[part], data, shots, own) for part in members(name, index) or ()]
    return {"group": f"{name} from {data}", "task": parts} if parts else name


def _part(part: str, group: str, entry: Any, data: Path, shots: int | None, own: Path | None) -> dict[str, Any]:
    config = entry.cfg
    splits = [config.get("test_split") or config.get("validation_split")]
    if _shots_of(config.get("num_fewshot"), shots) and "samples" not in (config.get("fewshot_config") or {}):
        splits.append(config.get("fewshot_split") or config.get("training_split"))
    files = {split: _file(part, group, config.get("dataset_name"), split, data) for split in splits if split}
    if own and entry.yaml_path.is_relative_to(own) and not all(file.is_file() for file in files.values()):
        return {"task": part}
    for file in files.values():
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
    return {
        "task": part,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(file) for split, file in files.items()}},
        **{key: None for key in SPLITS if config.get(key) not in files},
    }


def _file(part: str, group: str, configuration: str | None, split: str, data: Path) -> Path:
    """Return the first existing file, or the one with the task's name."""
    family = f"{part.partition('_')[0]}/{configuration}"
    others = (f"{family}_{split}", family) if configuration else (f"{group}_{split}",)
    files = [data / f"{name}.jsonl" for name in (f"{part}_{split}", *others)]
    return next((file for file in files if file.is_file()), files[0])


def mean_metrics(task: Any) -> list[str]:
    """Return the metrics of an lm-eval task that are means over items and better when higher, in the task's order."""
    higher = task.higher_is_better()
    return [name for name, aggregate in task.aggregation().items() if aggregate is mean and higher.get(name)]


def _prepare(known: SuiteTask, parts: dict[str, Any], shots: int | None, settings: ReasoningSettings) -> LoadedTask:
    limit = None if settings.limit is None else -(-settings.limit // len(parts))
    generation: dict[str, Any] = {"max_gen_toks": settings.max_new_tokens} if settings.max_new_tokens else {}
    if settings.temperature:
        generation |= {"do_sample": True, "temperature": settings.temperature}
    for name, part in parts.items():
        if getattr(part, "UNSAFE_CODE", False) or getattr(part, "MULTIMODAL", False):
            raise ConfigError(f"{name}: runs code written by models, or needs images; spag eval supports neither")
        part.set_config("num_fewshot", _shots_of(part.get_config("num_fewshot"), shots))
    digest = _digest(parts, limit)
    generating = [part for part in parts.values() if part.OUTPUT_TYPE == "generate_until"]
    for part in generating if generation else ():
        part.set_config("generation_kwargs", generation, update=True)
    shown = max(part.get_config("num_fewshot") for part in parts.values())
    samples = settings.samples if generating else 1
    metric = _main_metric(known, list(parts.values()))
    return LoadedTask(known.task, known.label, metric, shown, limit, samples, digest, parts)


def _main_metric(known: SuiteTask, parts: Sequence[Any]) -> str:
    common = [metric for metric in mean_metrics(parts[0]) if all(metric in mean_metrics(part) for part in parts)]
    for metric in (known.metric, "acc_norm", *common):
        if metric in common:
            return str(metric)
    found = ", ".join(parts[0].aggregation())
    raise ConfigError(f"{known.task}: none of its metrics is a mean over items ({found}), so it has no error per item")


def _digest(parts: dict[str, Any], limit: int | None) -> str:
    """Hash what determines prompts and scores: each part's settings, items, and pool of solved examples."""
    source = {"dataset_path", "dataset_name", "dataset_kwargs", "metadata", *SPLITS}
    digest = hashlib.sha256()
    for name, part in parts.items():
        definition = {key: value for key, value in part.dump_config().items() if key not in source}
        solved = list(part.fewshot_docs() or ()) if part.get_config("num_fewshot") else []
        for row in (name, part.VERSION, definition, *islice(part.eval_docs, limit), *solved):
            digest.update(json.dumps(row, sort_keys=True, default=lambda value: type(value).__name__).encode())
    return digest.hexdigest()[:16]
