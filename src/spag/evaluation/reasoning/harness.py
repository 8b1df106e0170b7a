"""lm-eval configured to be quiet, with sandboxed templates, and without running code that the user has not approved.

A task file can name Python code (``!function``), or a metric whose code is downloaded from the hub. Users of a
third-party task folder do not expect that, so both are refused unless trusted. lm-eval's own files and those shipped
here are trusted. Data cannot contain code: ``datasets`` no longer runs scripts or reads pickles.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any

import datasets
import lm_eval.api.metrics  # fills the registry
import lm_eval.api.model
import lm_eval.api.task
import lm_eval.models.huggingface
import lm_eval.tasks
import lm_eval.utils
import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api.registry import metric_registry
from lm_eval.tasks import TaskManager, _yaml_loader

from spag.core.errors import ConfigError, DataError

SHIPPED = Path(__file__).parent / "benchmarks"
_LM_EVAL = Path(lm_eval.tasks.__file__).parent
# Folders of our suites' tasks: reading all of lm-eval's task files takes twenty seconds.
_FOLDERS = (
    *("agieval", "aime", "arc", "bbh/cot_fewshot", "gpqa/zeroshot", "gsm8k", "minerva_math", "mmlu/default"),
    *("mmlu_pro", "piqa", "winogrande"),
)
_TRUST = "review it, then pass --trust-task-code"


@contextmanager
def quiet_harness(*, trust_code: bool = False) -> Iterator[None]:
    """Run lm-eval and the hub without log lines and minor progress bars, and with the restrictions above."""
    sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    sandbox.filters.update(lm_eval.utils.env.filters)
    replaced: list[tuple[Any, str, Any]] = [(lm_eval.utils, "env", sandbox)]
    replaced += [(module, "tqdm", lambda rows, **_: rows) for module in (lm_eval.api.task, lm_eval.api.model)]
    huggingface = lm_eval.models.huggingface
    replaced.append((huggingface, "tqdm", partial(_bar, huggingface.tqdm)))
    if not trust_code:
        replaced.append((_yaml_loader, "_import_func_in_yml", partial(_trusted, _yaml_loader._import_func_in_yml)))
        replaced.append((lm_eval.api.task, "get_metric", partial(_installed_metric, lm_eval.api.task.get_metric)))
    with ExitStack() as stack:
        for log in map(logging.getLogger, ("lm_eval", "huggingface_hub")):
            stack.callback(log.setLevel, log.level)
            log.setLevel(logging.ERROR)
        if not datasets.are_progress_bars_disabled():
            datasets.disable_progress_bars()
            stack.callback(datasets.enable_progress_bars)
        for module, name, value in replaced:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield


def _bar(bar: Callable[..., Any], *rows: Any, disable: bool = False, **options: Any) -> Any:
    """Return tqdm's ``bar``, silent if ``TQDM_DISABLE`` is set: lm-eval's ``disable=False`` overrides that variable."""
    return bar(*rows, disable=disable or bool(os.environ.get("TQDM_DISABLE")), **options)


def _trusted(load: Callable[[str, Path], Any], function: str, folder: Path) -> Any:
    if not any(folder.is_relative_to(place.resolve()) for place in (_LM_EVAL, SHIPPED)):
        raise ConfigError(f"{folder}: a task file would run Python code (!function {function}); {_TRUST}")
    return load(function, folder)


def _installed_metric(get: Callable[[str, bool], Any], name: str, from_hub: bool = False) -> Any:
    if from_hub or name not in metric_registry:
        raise ConfigError(f"{name}: no metric of lm-eval's own, so its code would be downloaded; {_TRUST}")
    return get(name, from_hub)


def open_manager(names: Sequence[str], task_path: Path | None) -> TaskManager:
    """Index the task files that ``names`` need: the user's, those shipped here, and lm-eval's, in this order.

    Raises ``ConfigError`` for an unknown task, and ``DataError`` for a broken file of the user.
    """
    if task_path:
        _check_folder(task_path)
    folders = [*(_LM_EVAL / folder for folder in _FOLDERS), SHIPPED, *([task_path] if task_path else [])]
    manager = TaskManager(include_path=[str(folder) for folder in folders], include_defaults=False)
    index = manager.task_index  # later folders win
    if any(members(name, index) is None for name in names):
        for name, entry in _all_of_lm_eval().items():
            index.setdefault(name, entry)
    for name in names:
        if name not in index:
            near = get_close_matches(name, index, 3)
            hint = f"did you mean {' or '.join(near)}?" if near else "`lm-eval ls tasks` lists them"
            raise ConfigError(f"{name}: lm-eval has no such task; {hint}")
    return manager


@cache
def _all_of_lm_eval() -> dict[str, Any]:
    return dict(TaskManager().task_index)


def members(name: Any, index: Mapping[str, Any]) -> list[str] | None:
    """Return the tasks of a task, group or tag; ``None`` if ``index`` lacks one, or a group defines some inline."""
    if not isinstance(name, str) or name not in index:
        return None
    entry = index[name]
    if entry.cfg is None:
        return sorted(entry.tags)
    children = entry.cfg.get("task")
    if not isinstance(children, list):
        return [name]
    found = [members(child, index) for child in children]
    return None if None in found else [task for tasks in found for task in tasks or ()]


def _check_folder(folder: Path) -> None:
    files = sorted(folder.glob("**/*.yaml"))
    if not files:
        raise ConfigError(f"{folder}: no task files (*.yaml) in this folder")
    for file in files:  # lm-eval would skip a broken one
        try:
            _yaml_loader.load_yaml(file, resolve_func=False)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise DataError(f"{file}: not a task file: {' '.join(str(error).split())[:200]}") from error
