"""The languages in which Adversarial Taboo can be played: one file each in ``data/languages``.

A file holds the ``lexicon`` (``spag.text.lexicon``; English has its own), how a guess is announced (``guesses``:
``grammar.py``), and ``prompts``, as in a prompt file. docs/prompts.md says how to add one.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from spag.core.errors import ConfigError
from spag.games.taboo.grammar import Grammar
from spag.text.english import ENGLISH
from spag.text.lexicon import Lexicon, lexicon_of

_FOLDER = resources.files("spag.games.taboo.data") / "languages"


@dataclass(frozen=True, slots=True)
class Language:
    """What the judge needs to know of a language."""

    lexicon: Lexicon
    grammar: Grammar


@cache
def language_of(code: str) -> Language:
    """Return the language of a file, by its two letters. Raises ``ConfigError``."""
    data = language_data(code)
    lexicon = ENGLISH if code == ENGLISH.language else lexicon_of(code, **data["lexicon"])
    return Language(lexicon, Grammar.compile(data["guesses"]))


@cache
def language_data(code: str) -> dict[str, Any]:
    """Return the content of a language file. Raises ``ConfigError`` for a language without one."""
    known = sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    if code not in known:
        raise ConfigError(
            f"game.language: {code!r} is none of {', '.join(known)}; to add it, write {code}.yaml in "
            "games/taboo/data/languages (docs/prompts.md, Languages)"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load((_FOLDER / f"{code}.yaml").read_text(encoding="utf-8"), loader)
    return data
