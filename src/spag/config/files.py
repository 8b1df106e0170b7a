"""Reading and writing the options of ``schema.py``: shipped presets, YAML files, and dotted overrides.

``--set phases.2.steps=6`` changes one value of a phase, ``--set reinforce.steps=6`` of the phase with that algorithm,
where there is one. Unknown keys are refused with the nearest known name.
"""

import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from spag.algorithms import get as get_algorithm
from spag.algorithms import names as algorithm_names
from spag.algorithms.settings import IterationSettings
from spag.config.presets import PRESETS, preset_text
from spag.config.reading import parse_yaml, read_config_text
from spag.config.schema import GAME_FAULT, PhaseConfig, RunConfig
from spag.core.errors import ConfigError
from spag.core.options import fault_of, shown
from spag.games.base import SettingError
from spag.games.registry import DEFAULT

_KEY = re.compile(r"[^.=\s]{1,100}(\.[^.=\s]{1,100}){0,9}")
_UNION = re.compile(r"[A-Z]\w*$|str$|list\[|literal\[|function-")
"""Parts of pydantic's error locations that name a type instead of an option."""
_MAPPING = re.compile(r"a valid dictionary( or instance of \w+)?")
_MIXED = re.compile(r"(mix\.\d+)\.game\b")
"""The place of a game in a mix: its settings are given next to its weight, not below ``game``."""
_DEFAULT_PHASES = [{"algorithm": phase.algorithm} for phase in RunConfig.model_fields["phases"].default]
_FILLED = {"opponents": IterationSettings.model_fields["opponents"].default}
"""The default of a section that is not empty: an option set in it adds to it."""
_OTHER_NAMES = {
    "lr": "learning_rate", "batch_size": "global_batch_size", "num_epochs": "epochs", "num_train_epochs": "epochs",
    "warmup": "warmup_ratio", "grad_clip": "max_grad_norm", "beta": "kl_coef", "gamma": "discount",
    "clip_eps": "clip_range", "max_tokens": "max_new_tokens",
}  # fmt: skip
"""Option names of other libraries, and our names for them."""
_MOST_LISTED = 12
"""Options of a section that an error lists; a phase has some fifty."""
_FLOAT = re.compile(r"[-+]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})[eE][-+]?[0-9]{1,4}")


def load_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a preset (by name) or a YAML file (by path) and apply ``a.b=value`` overrides. Raises ``ConfigError``."""
    if name in PRESETS:
        text, label = preset_text(name), f"preset {name}"
    elif os.path.isfile(name):  # noqa: PTH113 - unlike a Path, it takes names that no file can have
        text, label = read_config_text(Path(name)), name
    else:
        known = ", ".join(PRESETS)
        what = shown(name)[1:-1] or "''"  # an unset variable in a shell
        raise ConfigError(f"{what}: no such config file, and no preset of that name (presets: {known})")
    return parse_config(text, label, overrides)


def parse_config(text: str, label: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Parse YAML ``text``, called ``label`` in errors."""
    data = parse_yaml(text, label)
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{label}: expected a mapping of options, got {type(data).__name__}")
    applied = {}
    for override in sorted(overrides, key=_turn):
        applied[_apply_override(data, override)] = override
    try:
        return RunConfig.model_validate(data)
    except ConfigError as error:
        raise ConfigError(_with_source(str(error), label, applied)) from error
    except ValidationError as error:
        raise ConfigError(_with_source(_describe(error, data), label, applied)) from error


def _turn(override: str) -> int:
    """Return when an override is applied: phases before options inside them, and a game's name before its settings."""
    option, _, text = override.partition("=")
    if option == "phases":
        return 0
    value = _value(text, option) if f".{option}".endswith(".game") else None
    return 1 if f".{option}".endswith(".game.name") or (isinstance(value, dict) and "name" in value) else 2


def _with_source(fault: str, label: str, applied: Mapping[str, str]) -> str:
    """Return ``fault``, which begins with an option, after the override that set it (``applied``), or ``label``."""
    about = fault.removeprefix("unknown option ")
    given = [text for key, text in applied.items() if about.startswith((f"{key}:", f"{key};", f"{key}."))]
    return f"{f'--set {shown(given[0])[1:-1]}' if given else label}: {fault}"


def dump_config(config: RunConfig) -> str:
    """Return the resolved config as YAML; ``parse_config`` reads it back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def option_names(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted option name of a section with its pydantic field.

    Those of phases come from the algorithms, the settings of games from ``setting_hints``. Sections by name are an
    option with further ones inside: ``rewards``, ``rewards.GAME.tie``; so are optional sections: ``lora``.
    """
    for name, info in section.model_fields.items():
        nested, keys = _nested(info.annotation), _keys(info.annotation)
        if nested is PhaseConfig:
            continue
        if nested is None or info.default_factory is None:  # null, "fixed", or sections by name
            yield f"{prefix}{name}", info
        if nested is not None:
            yield from option_names(nested, f"{prefix}{name}.{keys}")


def _keys(annotation: Any) -> str:
    """Return what the keys of a mapping to sections are, with a dot; empty for other types."""
    is_mapping = get_origin(annotation) is dict and _nested(annotation) is not None
    return f"{getattr(get_args(annotation)[0], '__metadata__', ('NAME',))[0]}." if is_mapping else ""


def _nested(annotation: Any) -> type[BaseModel] | None:
    """Return the section that is or is contained in a field's type, if any."""
    inside = (annotation, *get_args(annotation), *(kind for arg in get_args(annotation) for kind in get_args(arg)))
    kinds = [kind for kind in inside if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return kinds[0] if kinds else None


def _apply_override(data: dict[str, Any], override: str) -> str:
    """Put the value of ``KEY=VALUE`` into ``data``, and return the option's full name."""
    key, equals, text = override.partition("=")
    if not equals or not _KEY.fullmatch(key):
        raise ConfigError(f"--set {shown(override)[1:-1]}: write it as a.b=value")
    value, path = _value(text, key), _phase_path(data, key.split("."))
    section: Any = data
    for part in path[:-1]:  # sections are copied, because a YAML alias makes two of them one object
        place = _place(section, part, key)
        inside = section[place] if isinstance(section, list) else section.get(place, _FILLED.get(part))
        section[place] = list(inside) if isinstance(inside, list) else dict(inside) if isinstance(inside, dict) else {}
        section = section[place]
    if path[-2:] == ["game", "name"] and isinstance(section, dict) and _name_of(section, data) != value:
        section.clear()  # settings of another game
    known = section.get("game") if path[-1] == "game" and isinstance(section, dict) else None
    if isinstance(known, dict) and isinstance(value, dict):
        name = _name_of(known, data)
        value = {**known, **value} if value.get("name", name) == name else value  # as if given one by one
    section[_place(section, path[-1], key)] = value
    return ".".join(path)


def _name_of(game: dict[str, Any], data: dict[str, Any]) -> Any:
    """Return the name of a game of the run or of a phase: without its own, the run's."""
    run = data.get("game")
    return game.get("name") or (run.get("name") if isinstance(run, dict) else None) or DEFAULT


def phase_option(config: RunConfig, at: int) -> str:
    """Return what ``--set`` calls the phase of index ``at``: its algorithm, or its number if others have the same."""
    name = config.phases[at].algorithm
    return name if sum(phase.algorithm == name for phase in config.phases) == 1 else f"phases.{at}"


def _phase_path(data: dict[str, Any], path: list[str]) -> list[str]:
    """Return the path of an option whose phase is named by its algorithm. Raises ``ConfigError`` if several match."""
    name, known = path[0], algorithm_names()
    if name == "phases" or (name in known and len(path) > 1):
        phases = data.get("phases", _DEFAULT_PHASES)
        phases = data["phases"] = list(phases) if isinstance(phases, list) else []
    if name not in known or len(path) < 2:
        return path
    places = [at for at, phase in enumerate(phases) if isinstance(phase, dict) and phase.get("algorithm") == name]
    if not places:
        raise ConfigError(f"--set {'.'.join(path)}: this run has no phase with algorithm {name}")
    if len(places) > 1:
        which = ", ".join(f"phases.{at}" for at in places)
        raise ConfigError(f"--set {'.'.join(path)}: several phases are of {name}; name one of {which}")
    return ["phases", str(places[0]), *path[1:]]


def _place(section: Any, part: str, key: str) -> Any:
    """Return the key or index of ``part`` in a section. Raises ``ConfigError`` for an entry that a list lacks."""
    if not isinstance(section, list):
        return part
    if not part.isdecimal() or int(part) >= len(section):
        raise ConfigError(f"--set {key}: {part} is not one of the {len(section)} entries, which count from 0")
    return int(part)


def _value(text: str, key: str) -> Any:
    """YAML, except that 5e-6 is a number (YAML 1.1 asks for 5.0e-6)."""
    number = float(text) if _FLOAT.fullmatch(text.strip()) else math.nan
    return number if math.isfinite(number) else parse_yaml(text, "--set", key)


def _describe(error: ValidationError, data: dict[str, Any]) -> str:
    """Return one line for the first error; an unknown key comes with its right section or the nearest known name."""
    # if an option takes a word or a mapping, a bad mapping is reported as a mapping
    first = min(error.errors(), key=lambda one: one["type"] == "literal_error" and isinstance(one["input"], dict))
    key = ".".join(str(part) for part in first["loc"] if not _UNION.match(str(part)))
    if first["type"] == GAME_FAULT:
        fault, key = first["ctx"]["error"], _MIXED.sub(r"\1", key)
        if isinstance(fault, SettingError):
            return fault.at(key)
        return str(fault) if key == "game" else f"{key}.name: {fault}"
    if first["type"] == "extra_forbidden":
        return f"unknown option {key}; {_hint(key, data)}"
    return f"{key}: {_MAPPING.sub('a mapping of options', fault_of(first), count=1)}"


def _hint(key: str, data: dict[str, Any]) -> str:
    """Say where a misplaced option belongs, or which known name is nearest."""
    place, dot, last = key.rpartition(".")
    if other := _OTHER_NAMES.get(last):
        key, last = f"{place}{dot}{other}", other
    given = data.get("phases", _DEFAULT_PHASES)
    kinds = [one.get("algorithm") for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    run, options = _known(RunConfig), {kind: _known(get_algorithm(kind).Settings) for kind in algorithm_names()}
    phases = [f"phases.{at}.{name}" for at, kind in enumerate(kinds) for name in options.get(str(kind), ())]
    if key in options:
        return f"write options of an algorithm in its phase: phases: [{{algorithm: {key}, ...}}]"
    if key in (*run, *phases):
        return f"did you mean {key}?"
    places = {
        where: next((name for name in known if name.rpartition(".")[2] == last), key)
        for where, known in (("the run", run), ("a phase", phases))
    }
    if found := [f"of {where}: {name}" for where, name in places.items() if name != key]:
        return f"{last} is an option {', or '.join(found)}"
    if having := [kind for kind, names_ in options.items() if last in names_]:
        return f"{last} is an option of phases with algorithm {', '.join(having)}"
    inside = [name.rpartition(".")[2] for name in (*run, *phases) if place and name.rpartition(".")[0] == place]
    near = difflib.get_close_matches(last if inside else key, inside or [*run, *phases, *options], n=1, cutoff=0.6)
    if near:
        return f"did you mean {f'{place}.' if inside else ''}{near[0]}?"
    return f"{place} has {', '.join(inside)}" if 0 < len(inside) <= _MOST_LISTED else "see docs/configuration.md"


def _known(section: type[BaseModel]) -> list[str]:
    """Return the dotted names of a section's options, and of the sections that these are in."""
    parts = [name.split(".") for name, _ in option_names(section)]
    return list(dict.fromkeys(".".join(one[:end]) for one in parts for end in range(1, len(one) + 1)))
