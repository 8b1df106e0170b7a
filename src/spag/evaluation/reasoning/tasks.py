"""Reasoning tasks: the paper's under lm-eval's names, and a loader of any lm-eval task, data included, that runs before models load.

The paper names its benchmarks; exact task versions, shots and metrics are not all known, so ``PAPER_TASKS`` fixes them
(docs/reasoning.md gives the reasons). A task that cannot be loaded is left out with its reason, and the others are evaluated. Task files
of a user's own folder must be plain: one that names Python code (``!function``), a metric or a data loader from elsewhere is refused unless
the caller trusts it. Templates of all tasks run in jinja's sandbox.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import datasets
import httpx
import httpx2
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.utils
from aiohttp import ClientError
from datasets.exceptions import DatasetsError
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api.metrics import mean

from spag.core.errors import ConfigError, DataError, first_line
from spag.core.progress import Reporter
from spag.evaluation.reasoning.files import check_task_files
from spag.evaluation.reasoning.sources import local_spec, open_manager

PAPER = "paper"
REMEDY = "go online once (HF_HUB_OFFLINE=1 then works from the cache), or read local files with --data or --task-path"


@dataclass(frozen=True, slots=True)
class PaperTask:
    """A benchmark of the paper: lm-eval's task or group, the metric shown, and the number of solved examples before a question."""

    task: str
    metric: str
    shots: int


PAPER_TASKS = {
    "BBH": PaperTask("bbh", "exact_match", 3),
    "MMLU": PaperTask("mmlu", "acc", 5),
    "ARC-e": PaperTask("arc_easy", "acc_norm", 0),
    "ARC-c": PaperTask("arc_challenge", "acc_norm", 0),
    "LogiQA2": PaperTask("logiqa2", "acc_norm", 0),
    "PIQA": PaperTask("piqa", "acc_norm", 0),
    "MuTual": PaperTask("mutual", "r@1", 0),
    "WinoGrande": PaperTask("winogrande", "acc", 0),
}
_BY_TASK = {paper.task: (label, paper) for label, paper in PAPER_TASKS.items()}

# Building a task reads its data and renders its first item. OSError: no network, no such file or repository, most errors of the hub.
# DatasetsError, BadZipFile: broken data. RuntimeError: a data set that needs a loading script. ValueError, KeyError: no such split or
# configuration. TypeError, AttributeError, ImportError, AssertionError, TemplateError: a task file that does not fit its data.
# The three clients of datasets, the hub and fsspec have errors of their own.
LOADING_FAILURES = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, ImportError, AssertionError),
    *(DatasetsError, BadZipFile, TemplateError, httpx.HTTPError, httpx2.HTTPError, ClientError),
)
_PLACES = {"dataset_path", "dataset_name", "dataset_kwargs", "training_split"}


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """Settings of an evaluation.

    tasks: lm-eval's names, or ``paper``. task_path: a folder of task files. data: a folder of JSON Lines files that take the hub's place.
    limit: items of a task, from its start; a group's parts share it evenly, rounded up. shots: solved examples, for all tasks.
    max_new_tokens: longest generated answer, in tokens; ``None``: as each task says.
    """

    tasks: tuple[str, ...] = (PAPER,)
    task_path: Path | None = None
    data: Path | None = None
    trust_task_code: bool = False
    limit: int | None = None
    shots: int | None = None
    max_new_tokens: int | None = None
    batch_size: int = 16
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks by lm-eval's names, ``paper`` spelled out, each once."""
        names = [name for asked in self.tasks for name in (list(_BY_TASK) if asked == PAPER else [asked])]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task, or a group of tasks whose items have equal weight, with its data in memory.

    parts: lm-eval's task objects by name. limit: items of each part; ``None`` for all. digest: of the definition and of every item that can
    appear in a prompt, wherever they were read from.
    """

    name: str
    label: str
    metric: str
    shots: int
    limit: int | None
    digest: str
    parts: dict[str, Any] = field(repr=False)


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Run lm-eval and the hub without their bars and log lines (ours are shown), and with templates that cannot reach Python."""
    sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    sandbox.filters.update(lm_eval.utils.env.filters)
    no_bar = partial(lm_eval.api.task.tqdm, disable=True)
    with ExitStack() as stack:
        for log in map(logging.getLogger, ("lm_eval", "huggingface_hub")):  # the hub's says five times that it tries again
            stack.callback(log.setLevel, log.level)
            log.setLevel(logging.ERROR)
        if not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            stack.callback(datasets.enable_progress_bars)
        for module, name, value in (
            (lm_eval.utils, "env", sandbox),
            (lm_eval.api.task, "tqdm", no_bar),
            (lm_eval.api.model, "tqdm", no_bar),
        ):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield


def load_tasks(settings: ReasoningSettings, reporter: Reporter) -> tuple[list[LoadedTask], dict[str, str]]:
    """Load tasks with their data. Returns those that could be loaded, and by name the reason, on one line, why another could not.

    Raises ``ConfigError`` for an unknown or unfit task, and ``DataError`` when no task can be loaded. Relative data files of local tasks
    are looked for in ``task_path``.
    """
    if settings.task_path is not None and not settings.trust_task_code:
        check_task_files(settings.task_path)
    task_path, data = settings.task_path and settings.task_path.resolve(), settings.data and settings.data.resolve()
    loaded: list[LoadedTask] = []
    left_out: dict[str, str] = {}
    with quiet_harness(), chdir(task_path or Path.cwd()):
        manager = open_manager(settings.names, task_path)
        for name in settings.names:
            try:
                spec = local_spec(name, manager.task_index, data, settings.shots) if data else name
                parts = manager.load([spec])["tasks"]
            except LOADING_FAILURES as error:
                left_out[name] = f"{type(error).__name__}: {first_line(error, 160)}"
                reporter.note(f"{name} is left out: {left_out[name]}")
                continue
            loaded.append(_prepare(name, parts, settings))
    if not loaded:
        reasons = "; ".join(f"{name} ({why})" for name, why in left_out.items())
        raise DataError(f"no task can be loaded: {reasons}; {REMEDY}")
    return loaded, left_out


def _prepare(name: str, parts: dict[str, Any], settings: ReasoningSettings) -> LoadedTask:
    label, paper = _BY_TASK.get(name, (name, None))
    digest = hashlib.sha256()
    limit = None if settings.limit is None else -(-settings.limit // len(parts))
    shots = settings.shots if settings.shots is not None else paper.shots if paper else None
    for part_name, part in parts.items():
        if getattr(part, "UNSAFE_CODE", False) or getattr(part, "MULTIMODAL", False):
            raise ConfigError(f"{part_name}: this task runs code that models write, or needs pictures; spag eval does neither")
        own = part.get_config("num_fewshot")
        # as lm-eval's own command: a task file that says 0 means it
        part.set_config("num_fewshot", 0 if own == 0 else shots if shots is not None else own or 0)
        if settings.max_new_tokens is not None and part.OUTPUT_TYPE == "generate_until":
            part.set_config("generation_kwargs", {"max_gen_toks": settings.max_new_tokens}, update=True)
        _add_definition(digest, part_name, part, limit)
    used = {int(part.get_config("num_fewshot")) for part in parts.values()}
    metric = _main_metric(name, list(parts.values()), paper.metric if paper else None)
    return LoadedTask(name, label, metric, max(used), limit, digest.hexdigest()[:16], parts)


def mean_metrics(task: Any) -> list[str]:
    """Return the metrics of an lm-eval task that are means over items and better when higher, in its own order."""
    higher = task.higher_is_better()
    return [name for name, aggregate in task.aggregation().items() if aggregate is mean and higher.get(name)]


def _main_metric(name: str, parts: Sequence[Any], wanted: str | None) -> str:
    common = [metric for metric in mean_metrics(parts[0]) if all(metric in mean_metrics(part) for part in parts)]
    for metric in (wanted, "acc_norm", *common):
        if metric in common:
            return metric
    raise ConfigError(
        f"{name}: none of its metrics is a mean over items ({', '.join(parts[0].aggregation())}), so it has no error per item"
    )


def _add_definition(digest: Any, name: str, task: Any, limit: int | None) -> None:
    """Hash what decides the prompts and answers of a task: its settings, its items, and the pool of solved examples."""
    definition = {key: value for key, value in task.dump_config().items() if key not in _PLACES}
    definition["metadata"] = {key: value for key, value in (definition.get("metadata") or {}).items() if key == "version"}
    rows = [name, definition, *islice(task.eval_docs, limit)]
    rows += list(task.fewshot_docs() or ()) if task.get_config("num_fewshot") else []
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=lambda value: type(value).__name__).encode())
