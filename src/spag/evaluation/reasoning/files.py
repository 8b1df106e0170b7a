"""The check that task files of a folder are plain data.

An lm-eval task file can name Python code: by a ``!function`` tag, or by a metric that is fetched from the hub's ``evaluate`` library.
Users of somebody else's task folder do not expect that, so such files are refused unless trusted. Included files are checked too, except
those that lm-eval installs and those shipped here. Data cannot bring code: ``datasets`` no longer runs scripts or reads pickles.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lm_eval.api.metrics  # fills the registry
import lm_eval.tasks
import yaml
from lm_eval.api.registry import metric_registry

from spag.core.errors import ConfigError, DataError
from spag.evaluation.reasoning.sources import SHIPPED

_TRUSTED = (Path(lm_eval.tasks.__file__).parent.resolve(), SHIPPED.resolve())


class _CodeTag(yaml.YAMLError):
    """A ``!function`` tag."""


class _PlainLoader(yaml.SafeLoader):
    """YAML without any tag that makes a Python object."""


def _refuse(loader: yaml.SafeLoader, node: yaml.Node) -> None:
    raise _CodeTag(f"line {node.start_mark.line + 1}")


_PlainLoader.add_constructor("!function", _refuse)


def check_task_files(folder: Path) -> None:
    """Check every YAML file in ``folder``. Raises ``DataError`` for a broken one and ``ConfigError`` for one that would run code."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of task files")
    files = sorted(folder.glob("**/*.yaml"))
    if not files:
        raise ConfigError(f"{folder}: no task files (*.yaml) in this folder")
    seen: set[Path] = set()
    for file in files:
        _check(file.resolve(), seen)


def _check(file: Path, seen: set[Path]) -> None:
    if file in seen or any(map(file.is_relative_to, _TRUSTED)):
        return
    seen.add(file)
    try:
        with file.open("rb") as stream:
            content = yaml.load(stream, _PlainLoader)
    except _CodeTag as error:
        raise ConfigError(f"{file}: !function ({error}) would run Python code; review it, then pass --trust-task-code") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{file}: not a task file: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: not a task file: it holds no settings")
    for key, value in _settings(content):
        if why := _code_named_by(key, value):
            raise ConfigError(f"{file}: `{key}: {value}` {why}; review it, then pass --trust-task-code")
    included = content.get("include", [])
    for name in included if isinstance(included, list) else [included]:
        _check((file.parent / str(name)).resolve(), seen)


def _settings(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, at any depth: groups hold tasks inline."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key), inner
            yield from _settings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _settings(inner)


def _code_named_by(key: str, value: Any) -> str | None:
    """Return how a setting names code from elsewhere; ``None`` when it does not."""
    if key == "metric":
        return None if str(value) in metric_registry else "is no metric of lm-eval's own, so code for it would be fetched"
    ways = {
        "class": "names a Python class",
        "hf_evaluate": "fetches a metric's code from the hub",
        "use_prompt": "fetches prompts from elsewhere",
    }
    return ways.get(key) if value or key == "class" else None
