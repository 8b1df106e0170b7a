"""Games by name: built-in ones, and those that other packages register under the entry-point group ``spag.games``.

An entry point names a ``TextGame`` subclass (or any class that satisfies ``Game``); its dataclass fields are the game's
settings.

A name ``FAMILY:REST`` is one of many games that a package creates on demand: the entry point ``FAMILY`` of the group
``spag.game_families`` names a function that takes REST and returns the class.
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from spag.core.errors import ConfigError, DataError
from spag.games.base import Game
from spag.storage.episodes import read_episodes

GROUP = "spag.games"
FAMILIES = "spag.game_families"
DEFAULT = "adversarial_taboo"
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
    return [*SHIPPED, *sorted({entry.name for entry in entry_points(group=GROUP)} - SHIPPED.keys())]


def get(name: str, **settings: Any) -> Game:
    """Return the game called ``name`` with ``settings``. Raises ``ConfigError`` naming the option if either is
    unknown.
    """
    kind = _game_class(name)
    unknown = sorted(set(settings) - set(setting_names(name)))
    if unknown:
        near = difflib.get_close_matches(unknown[0], setting_names(name), n=1, cutoff=0.5)
        known = ", ".join(setting_names(name)) or "none"
        hint = f"did you mean game.{near[0]}?" if near else f"{name} has the settings: {known}"
        raise ConfigError(f"unknown option game.{unknown[0]}; {hint}")
    try:
        game: Game = _adapter(kind).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"game.{option}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"
        ) from error
    return game


def game_of_file(path: Path, **settings: Any) -> Game:
    """Return the game of the episodes in ``path``, by its first row, in the language of play. Other settings are the
    defaults, or ``settings``. Raises ``DataError`` for a file without games.
    """
    first = next(iter(read_episodes(path)), None)
    if first is None:
        raise DataError(f"{path}: holds no games")
    recorded = first.settings or {}
    kept = {name: recorded[name] for name in setting_names(first.game) if name == "language" and name in recorded}
    return get(first.game, **{**kept, **settings})


def setting_names(name: str) -> list[str]:
    """Return the names of a game's settings."""
    return [field.name for field in fields(_game_class(name))]


def settings_of(game: Game) -> Mapping[str, Any]:
    """Return a game's settings as plain JSON."""
    values: Mapping[str, Any] = _adapter(type(game)).dump_python(game, mode="json")
    return values


def setting_hints(name: str) -> Mapping[str, Any]:
    """Return the JSON schema of each setting: default, description, choices."""
    schema = _adapter(_game_class(name)).json_schema()
    hints: Mapping[str, Any] = schema.get("properties", {})
    return hints


@cache
def _adapter(kind: type) -> "TypeAdapter[Any]":
    return TypeAdapter(kind)


@cache
def _game_class(name: str) -> Any:
    if name in SHIPPED:
        module, _, attribute = SHIPPED[name].partition(":")
        return getattr(import_module(module), attribute)
    family, colon, rest = name.partition(":")
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    families = [entry for entry in entry_points(group=FAMILIES) if colon and entry.name == family]
    if families:
        return families[0].load()(rest)
    if not found:
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"installed games: {', '.join(names())}"
        raise ConfigError(f"there is no game called {name!r}; {hint}")
    return found[0].load()
