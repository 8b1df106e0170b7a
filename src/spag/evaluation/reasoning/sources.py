"""Where task files and their data come from: the user's folder, the paper's benchmarks shipped here, and all that lm-eval installs.

A name in an earlier place hides the same name in a later one. The files in ``benchmarks`` have lm-eval 0.4.13's prompts and metrics and
read plain data from the hub. Their ``metadata.files`` names, for each split, the JSON Lines file that takes the hub's place in a folder of
local data; ``{name}`` is the part of a group, such as ``virology``. Any task file may have such an entry.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval.tasks
from lm_eval.tasks import TaskManager

from spag.core.errors import ConfigError

SHIPPED = Path(__file__).parent / "benchmarks"
_LM_EVAL = Path(lm_eval.tasks.__file__).parent
_PARTS = (_LM_EVAL / "bbh" / "cot_fewshot", _LM_EVAL / "mmlu" / "default")  # the members of our two groups


def open_manager(names: Sequence[str], task_path: Path | None) -> TaskManager:
    """Index the task files that ``names`` need. Raises ``ConfigError`` for a name that no task has."""
    folders = [*_PARTS, SHIPPED, *([task_path] if task_path else [])]  # later ones win
    manager = TaskManager(include_path=[str(folder) for folder in folders], include_defaults=False)
    index = manager.task_index
    if not all(_is_complete(name, index) for name in names):
        for name, entry in _installed().task_index.items():
            index.setdefault(name, entry)
    for name in names:
        if name not in index:
            near = get_close_matches(name, index, 3)
            hint = f"do you mean {' or '.join(near)}?" if near else "`lm-eval ls tasks` lists them"
            raise ConfigError(f"{name}: lm-eval has no such task; {hint}")
    return manager


def local_spec(name: str, index: Mapping[str, Any], data: Path, shots: int | None) -> str | dict[str, Any]:
    """Return what lm-eval loads for ``name`` so that its data come from the folder ``data``: ``name`` itself when its file names none.

    index: lm-eval's entries by name. shots: those asked for; only then the training items, from which they are drawn, are read.
    """
    config = index[name].cfg or {}
    metadata = config.get("metadata")
    files = metadata.get("files") if isinstance(metadata, dict) else None
    if not files:
        return name
    wanted = {split: file for split, file in files.items() if split != "train" or shots}
    return {"group": f"{name} from {data}", "task": [_part(part, index, data, wanted) for part in _members(name, index)]}


def _part(part: str, index: Mapping[str, Any], data: Path, files: Mapping[str, str]) -> dict[str, Any]:
    name = index[part].cfg.get("dataset_name")
    return {
        "task": part,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(data / file.format(name=name)) for split, file in files.items()}},
        "training_split": "train" if "train" in files else None,
    }


def _members(name: str, index: Mapping[str, Any]) -> list[str]:
    """Return the tasks of a group of tasks and tags; a task is its only member."""
    members = (index[name].cfg or {}).get("task")
    if not isinstance(members, list):
        return [name]
    return [task for member in members for task in (sorted(index[member].tags) if index[member].cfg is None else [member])]


def _is_complete(name: Any, index: Mapping[str, Any]) -> bool:
    """Tell whether ``index`` has the task, or the group and all its members; one with settings of its own may need any other task."""
    if not isinstance(name, str) or name not in index:
        return False
    members = (index[name].cfg or {}).get("task")
    return not isinstance(members, list) or all(_is_complete(member, index) for member in members)


@cache
def _installed() -> TaskManager:
    """Return the tasks that lm-eval installs; it takes many seconds to read them."""
    return TaskManager()
