"""Games by name: built-in ones, and those that other packages register under the entry-point group ``spag.games``.

An entry point names a subclass of ``Game``; its dataclass fields are the game's settings. A setting of type
``FileName`` or ``Path`` names a file, whose contents are part of a game's record.

A name ``FAMILY:REST`` is one of many games that a package creates on demand: the entry point ``FAMILY`` of the group
``spag.game_families`` names a function that takes REST and returns the class.
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from spag.core.episodes import TABOO, Episode
from spag.core.errors import ConfigError, DataError
from spag.core.options import NO_NUMBER, fault_of, holds_bool, is_no_number
from spag.core.plugins import load_plugin, plugin_names
from spag.games.base import PLACE, Game, SettingError
from spag.storage.episodes import read_episodes

GROUP = "spag.games"
FAMILIES = "spag.game_families"
_PATHS = ("path", "file-path")  # of ``FileName`` and ``Path``, and of pydantic's ``FilePath``
DEFAULT = TABOO
SHIPPED = {
    DEFAULT: "spag.games.taboo.taboo:AdversarialTaboo",
    "twenty_questions": "spag.games.twenty_questions.questions:TwentyQuestions",
    "guess_my_city": "spag.games.guess_my_city.cities:GuessMyCity",
    "kuhn_poker": "spag.games.kuhn_poker.kuhn:KuhnPoker",
    "leduc_poker": "spag.games.leduc_poker.leduc:LeducPoker",
    "tic_tac_toe": "spag.games.tic_tac_toe.board:TicTacToe",
    "nim": "spag.games.nim.nim:Nim",
}


def names() -> list[str]:
    """Return the names of all installed games, built-in ones first."""
    return plugin_names(GROUP, SHIPPED)


def get(name: str, **settings: Any) -> Game:
    """Return the game called ``name`` with ``settings``. Raises ``ConfigError`` if the game is unknown or not of two
    roles, as ``SettingError`` if a setting is unknown or wrong.
    """
    kind = _game_class(name)
    unknown = sorted(set(settings) - set(setting_names(name)))
    if unknown:
        near = difflib.get_close_matches(unknown[0], setting_names(name), n=1, cutoff=0.5)
        known = ", ".join(setting_names(name)) or "none"
        hint = f"did you mean {PLACE}.{near[0]}?" if near else f"{name} has the settings: {known}"
        raise SettingError(f"unknown option {PLACE}.{unknown[0]}; {hint}")
    for option, value in settings.items():
        if holds_bool(value) and is_no_number(value, get_type_hints(kind)[option]):
            raise SettingError(f"{PLACE}.{option}: {NO_NUMBER}, got {value!r}")
    try:
        game: Game = _adapter(kind).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        # only the option: what follows may name one of several types; a check of the whole game names none
        place = ".".join((PLACE, *map(str, first["loc"][:1])))
        raise SettingError(f"{place}: {fault_of(first)}") from error
    if len(game.roles) != 2:
        raise ConfigError(f"{name}: has the roles {', '.join(game.roles)}; spag plays games of two roles")
    return game


def game_of_file(path: Path, **settings: Any) -> Game:
    """Return the game of the first episode in ``path`` (``game_of``). Raises ``DataError`` for a file without games."""
    first = next(iter(read_episodes(path)), None)
    if first is None:
        raise DataError(f"{path}: holds no games")
    return game_of(first, **settings)


def game_of(episode: Episode, **settings: Any) -> Game:
    """Return the game of ``episode`` under the recorded rules, with ``settings`` for the rest."""
    return get(episode.game, **{**rules_of(episode), **settings})


def game_by_rules(episode: Episode, known: Game, **settings: Any) -> Game:
    """Return ``known`` if it has the recorded rules of ``episode``, with ``settings`` in their place; else the game
    that has. For another kind of game it returns ``known``, which refuses it.
    """
    if episode.game != known.name:
        return known
    rules = {**rules_of(episode), **settings}
    return known if rules.items() <= settings_of(known).items() else game_of(episode, **settings)


def rules_of(episode: Episode) -> dict[str, Any]:
    """Return the recorded rules of ``episode``: the settings in ``Game.judged_by``."""
    recorded = episode.settings or {}
    return {name: recorded[name] for name in _game_class(episode.game).judged_by if name in recorded}


def setting_names(name: str) -> list[str]:
    """Return the names of a game's settings."""
    return [field.name for field in fields(_game_class(name))]


def settings_of(game: Game) -> Mapping[str, Any]:
    """Return a game's settings as plain JSON."""
    kind: Any = type(game)  # for mypy, a class of hashable objects is not hashable
    values: Mapping[str, Any] = _adapter(kind).dump_python(game, mode="json")
    return values


def files_of(game: Game) -> Mapping[str, Path]:
    """Return the files that a game's settings name, by option, whether they exist or not."""
    kind: Any = type(game)
    settings = settings_of(game)
    return {name: Path(settings[name]) for name, hint in _schema(kind).items() if _names_file(settings[name], hint)}


def _names_file(value: object, hint: Mapping[str, Any]) -> bool:
    kinds = hint.get("anyOf", [hint])
    words = [word for kind in kinds for word in (*kind.get("enum", ()), kind.get("const"))]  # instead of a file
    return isinstance(value, str) and value not in words and takes_file(hint)


def takes_file(hint: Mapping[str, Any]) -> bool:
    """Whether a setting of this JSON schema may name a file."""
    return any(kind.get("format") in _PATHS for kind in hint.get("anyOf", [hint]))


def setting_hints(name: str) -> Mapping[str, Any]:
    """Return the JSON schema of each setting: default, description, choices."""
    return _schema(_game_class(name))


@cache
def _schema(kind: type) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = _adapter(kind).json_schema().get("properties", {})
    return properties


@cache
def _adapter(kind: type) -> "TypeAdapter[Any]":
    return TypeAdapter(kind)


@cache
def _game_class(name: str) -> Any:
    family, _, rest = name.partition(":")
    if rest and family in plugin_names(FAMILIES, {}):
        return load_plugin("family", family, FAMILIES, {})(rest)
    return load_plugin("game called", name, GROUP, SHIPPED)
