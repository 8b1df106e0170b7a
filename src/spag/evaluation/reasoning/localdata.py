"""Data from a folder of JSON Lines files, in place of the hub.

A split is read from ``TASK_SPLIT.jsonl``, such as ``piqa_validation.jsonl``. A task that is one configuration of a data
set, such as a part of MMLU or BBH, may read ``FAMILY/CONFIGURATION_SPLIT.jsonl`` or ``FAMILY/CONFIGURATION.jsonl``
(``mmlu/virology_test.jsonl``, ``bbh/snarks.jsonl``). The parts of any other group share ``GROUP_SPLIT.jsonl``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spag.evaluation.reasoning.harness import members

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def shots_of(own: int | None, asked: int | None) -> int:
    """Return how many solved examples are shown, by lm-eval's rule: an explicit 0 in a task file counts."""
    return 0 if own == 0 else asked if asked is not None else own or 0


def local_spec(name: str, index: Mapping[str, Any], data: Path, shots: int | None, own: Path | None) -> Any:
    """Return what lm-eval loads for ``name``, with its data from the folder ``data``.

    index: lm-eval's entries by name. own: the user's folder of task files, which may name their own data. Raises
    ``FileNotFoundError`` if a task's file is missing.
    """
    parts = [_part(part, name, index[part], data, shots, own) for part in members(name, index) or ()]
    return {"group": f"{name} from {data}", "task": parts} if parts else name


def _part(part: str, group: str, entry: Any, data: Path, shots: int | None, own: Path | None) -> dict[str, Any]:
    config = entry.cfg
    splits = [config.get("test_split") or config.get("validation_split")]
    if shots_of(config.get("num_fewshot"), shots) and "samples" not in (config.get("fewshot_config") or {}):
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
    family = part.partition("_")[0]
    others = (
        [f"{family}/{configuration}_{split}", f"{family}/{configuration}"] if configuration else [f"{group}_{split}"]
    )
    files = [data / f"{name}.jsonl" for name in (f"{part}_{split}", *others)]
    return next((file for file in files if file.is_file()), files[0])
