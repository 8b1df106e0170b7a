"""Reasoning tasks: the paper's under lm-eval's names, and a loader of any lm-eval task, data included, that runs before models load.

The paper names its benchmarks; exact task versions, shots and metrics are not all known, so ``PAPER_TASKS`` fixes them
(docs/reasoning.md gives the reasons). Task files of a user's own folder must be plain: one that names Python code (``!function``), a metric
or a data loader from elsewhere is refused unless the caller trusts it. Templates of all tasks run in jinja's sandbox.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.utils
from datasets.exceptions import DatasetsError
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api.metrics import mean
from lm_eval.tasks import TaskManager

from spag.core.errors import ConfigError, DataError, first_line
from spag.evaluation.reasoning.files import check_task_files

PAPER = "paper"


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

# What lm-eval and datasets raise for a task that cannot be built: no network, no such split or field, a template or file that is wrong.
_TASK_FAILURES = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, AssertionError, DatasetsError, TemplateError)


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """Settings of an evaluation: ``tasks`` are lm-eval's names or ``paper``; ``limit``: the first items of a task; ``shots``: for all."""

    tasks: tuple[str, ...] = (PAPER,)
    task_path: Path | None = None
    trust_task_code: bool = False
    limit: int | None = None
    shots: int | None = None
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

    parts: lm-eval's task objects by name. digest: of the definition and of every item that can appear in a prompt.
    """

    name: str
    label: str
    metric: str
    shots: int
    digest: str
    parts: dict[str, Any] = field(repr=False)


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Run lm-eval without its bars and log lines (ours are shown), and with templates that cannot reach Python."""
    sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    sandbox.filters.update(lm_eval.utils.env.filters)
    no_bar = partial(lm_eval.api.task.tqdm, disable=True)
    log = logging.getLogger("lm_eval")
    with ExitStack() as stack:
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


def load_tasks(settings: ReasoningSettings) -> list[LoadedTask]:
    """Load every task with its data.

    Raises ``ConfigError`` for an unknown or unfit task, and ``DataError`` that names every task whose data cannot be had, before any work
    is done. Relative data files of local tasks are looked for in ``task_path``.
    """
    if settings.task_path is not None and not settings.trust_task_code:
        check_task_files(settings.task_path)
    loaded, failures = [], []
    with quiet_harness(), chdir(settings.task_path or Path.cwd()):
        manager = _open_manager(settings)
        for name in settings.names:
            try:
                parts = manager.load([name])["tasks"]
            except _TASK_FAILURES as error:
                failures.append(f"{name} ({type(error).__name__}: {first_line(error, 160)})")
                continue
            loaded.append(_prepare(name, parts, settings))
    if failures:
        raise DataError(
            f"tasks whose data or definition cannot be loaded: {'; '.join(failures)}; go online once (HF_HUB_OFFLINE=1 then works from the "
            "cache), or give local task files with --task-path"
        )
    return loaded


@cache
def _shipped() -> TaskManager:
    """Return the tasks that lm-eval installs; it takes many seconds to read them."""
    return TaskManager()


def _open_manager(settings: ReasoningSettings) -> TaskManager:
    """Index the current folder's tasks, which come first, and lm-eval's own where those are needed."""
    if settings.task_path is None:
        manager = _shipped()
    else:
        manager = TaskManager(include_path=str(Path.cwd()), include_defaults=False)
        if not set(settings.names) <= set(manager.all_subtasks):  # a group may name tasks from anywhere
            for name, entry in _shipped().task_index.items():
                manager.task_index.setdefault(name, entry)
    for name in settings.names:
        if name not in manager.task_index:
            near = get_close_matches(name, manager.task_index, 3)
            hint = f"do you mean {' or '.join(near)}?" if near else "`lm-eval ls tasks` lists them"
            raise ConfigError(f"{name}: lm-eval has no such task; {hint}")
    return manager


def _prepare(name: str, parts: dict[str, Any], settings: ReasoningSettings) -> LoadedTask:
    label, paper = _BY_TASK.get(name, (name, None))
    digest = hashlib.sha256()
    shots = settings.shots if settings.shots is not None else paper.shots if paper else None
    for part_name, part in parts.items():
        if getattr(part, "UNSAFE_CODE", False) or getattr(part, "MULTIMODAL", False):
            raise ConfigError(f"{part_name}: this task runs code that models write, or needs pictures; spag eval does neither")
        own = part.get_config("num_fewshot")
        # as lm-eval's own command: a task file that says 0 means it
        part.set_config("num_fewshot", 0 if own == 0 else shots if shots is not None else own or 0)
        _add_definition(digest, part_name, part, settings.limit)
    used = {int(part.get_config("num_fewshot")) for part in parts.values()}
    metric = _main_metric(name, list(parts.values()), paper.metric if paper else None)
    return LoadedTask(name, label, metric, max(used), digest.hexdigest()[:16], parts)


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
    definition = dict(task.dump_config())
    definition["metadata"] = {key: value for key, value in (definition.get("metadata") or {}).items() if key != "config_source"}
    rows = [name, definition, *islice(task.eval_docs, limit)]
    rows += list(task.fewshot_docs() or ()) if task.get_config("num_fewshot") else []
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=lambda value: type(value).__name__).encode())
