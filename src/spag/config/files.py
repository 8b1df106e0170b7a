"""Reading and writing the options of ``schema.py``: shipped presets, YAML files, dotted overrides (``--set selfplay.tasks=200``).

Unknown keys are refused with the nearest known name. ``configuration_page`` makes ``docs/configuration.md``.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from spag.config.reading import parse_yaml, read_config_text, shown
from spag.config.schema import RunConfig
from spag.core.errors import ConfigError
from spag.games.registry import DEFAULT, names, setting_hints

RENAMED = {
    "words.source": "game.words",
    "words.top": "game.top_words",
    "selfplay.words": "selfplay.tasks",
    "selfplay.attacker": "selfplay.roles.attacker",
    "selfplay.defender": "selfplay.roles.defender",
    "arena.words": "arena.tasks",
}
"""Options of older files and their names of today; both are read."""
_KEY = re.compile(r"[^.=\s]{1,100}(\.[^.=\s]{1,100}){0,9}")
_FLOAT = re.compile(r"[-+]?[0-9.]{1,20}[eE][-+]?[0-9]{1,4}")


def preset_names() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in resources.files("spag.config.presets").iterdir() if entry.name.endswith(".yaml")
    )


def load_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a preset (by name) or a YAML file (by path) and apply ``a.b=value`` overrides. Raises ``ConfigError``."""
    path = Path(name)
    if name in preset_names():
        text, label = (resources.files("spag.config.presets") / f"{name}.yaml").read_text(encoding="utf-8"), f"preset {name}"
    elif _is_file(path):
        text, label = read_config_text(path), name
    else:
        raise ConfigError(f"{shown(name)[1:-1]}: no such config file, and no preset of that name (presets: {', '.join(preset_names())})")
    return parse_config(text, label, overrides)


def parse_config(text: str, label: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Parse YAML ``text``, which errors call ``label``."""
    data = parse_yaml(text, label)
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{label}: expected a mapping of options, got {type(data).__name__}")
    _rename(data)
    for override in sorted(overrides, key=lambda text: not text.startswith("game.name=")):  # another game brings other settings
        _apply_override(data, override)
    try:
        return RunConfig.model_validate(data)
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{label}: {_describe(error)}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def dump_config(config: RunConfig) -> str:
    """Return the resolved config as YAML; ``parse_config`` reads it back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def option_names(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted option name with its pydantic field; the settings of games come from ``setting_hints``."""
    for name, info in section.model_fields.items():
        nested = next((t for t in (info.annotation, *get_args(info.annotation)) if isinstance(t, type) and issubclass(t, BaseModel)), None)
        if nested is not None:
            yield from option_names(nested, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def configuration_page() -> str:
    """Return docs/configuration.md: every option with its default and meaning."""
    lines = [
        "# Configuration",
        "",
        "Every option of a preset or a YAML file, and of `--set A.B=VALUE`. Defaults are the paper's for",
        "LLaMA-2-7B. Made by `make docs`. Options of older files are still read under their old names:",
        "",
        *(f"- `{old}` is now `{new}`" for old, new in RENAMED.items()),
        "",
        "| option | default | meaning |",
        "| --- | --- | --- |",
    ]
    for name, info in option_names():
        value = TypeAdapter(Any).dump_python(info.get_default(call_default_factory=True), mode="json")
        choices = next((get_args(t) for t in (info.annotation, *get_args(info.annotation)) if get_origin(t) is Literal), ())
        lines.append(_row(name, value, (info.description or "") + (f" ({', '.join(map(str, choices))})" if choices else "")))
        if name == "game.name":
            hints = [(game, *hint) for game in names() for hint in setting_hints(game).items()]
            lines += [_row(f"game.{key}", hint.get("default"), f"{game}: {hint.get('description', '')}") for game, key, hint in hints]
    return "\n".join(lines) + "\n"


def _row(name: str, default: Any, meaning: str) -> str:
    return f"| `{name}` | `{json.dumps(default)}` | {meaning} |".replace("<", "&lt;")


def _rename(data: dict[str, Any]) -> None:
    """Move options of older files to their names of today."""
    for old, new in RENAMED.items():
        section, _, option = old.partition(".")
        given = data.get(section)
        if isinstance(given, dict) and option in given:
            _put(data, new, given.pop(option), replace=False)
    if data.get("words") == {}:
        del data["words"]


def _put(data: dict[str, Any], key: str, value: Any, *, replace: bool) -> None:
    *parents, last = key.split(".")
    at = data
    for parent in parents:
        nested = at.get(parent)
        at[parent] = dict(nested) if isinstance(nested, dict) else {}  # a copy: a YAML alias makes two sections one object
        at = at[parent]
    if replace or last not in at:
        at[last] = value


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not _KEY.fullmatch(key):
        raise ConfigError(f"--set {shown(override)[1:-1]}: write it as a.b=value")
    value = _value(text, key)
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            key = new + key.removeprefix(old)
    if key == "game.name":
        before = data.get("game")
        if (before.get("name", DEFAULT) if isinstance(before, dict) else DEFAULT) != value:
            data["game"] = {}  # settings of another game
    _put(data, key, value, replace=True)


def _value(text: str, key: str) -> Any:
    """YAML, except that 5e-6 is a number (YAML 1.1 asks for 5.0e-6)."""
    number = float(text) if _FLOAT.fullmatch(text.strip()) else math.nan
    return number if math.isfinite(number) else parse_yaml(text, "--set", key)


def _describe(error: ValidationError) -> str:
    """One line for the first fault; an unknown key comes with the nearest known name."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = [name for name, _ in option_names()]
        sections = {name.rpartition(".")[0] for name in known if "." in name}
        near = difflib.get_close_matches(key, [*known, *sections], n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "; see docs/configuration.md"
        return f"unknown option {key}{hint}"
    return f"{key}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {shown(first['input'])}"
