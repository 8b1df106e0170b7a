"""The languages in which Adversarial Taboo can be played: one file each in ``data/languages``.

A file holds the ``lexicon`` (``spag.text.lexicon``; English has its own), how a guess is announced (``guesses``), and
``prompts``, as in a prompt file. docs/prompts.md says how to add one.

A field of ``guesses`` is a list of regular expressions, or words separated by spaces; they are alternatives, and match
folded text in which every quotation mark is ``"``. A missing field matches nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, get_type_hints

import yaml

from spag.games.base import PLACE, SettingError
from spag.text.english import ENGLISH
from spag.text.lexicon import Lexicon, lexicon_of

Pattern = re.Pattern[str]
_FIELD = re.compile(r"(?<!P)<(\w+)>")
_FOLDER = resources.files("spag.games.taboo.data") / "languages"


@dataclass(frozen=True)
class Language:
    """What the judge knows about a language: its lexicon, and the parts of a guess.

    ``word``: required in every announcement; ``announcement``: "I know the word"; ``goes_on``: what may follow one;
    ``direct``: "is", between an announcement and the word; ``states``: "it is"; ``asks``: "is it", and verbs that talk
    about other things too; ``short``: "the word is", said after a ``cue`` or a ``hedged_cue``, or ``firm`` in itself;
    ``negation`` and ``contrast``: "not", "not a lake but"; ``filler``: what may stand before the word; ``article``;
    ``end``: where the word ends; ``tags``: what may follow a word that is said alone; ``doubt`` and ``reported``: what
    an announcement may not follow, in its clause or its sentence; ``clause``: where a clause ends. A phrase that begins
    with one of ``no_names``, addresses the other as ``address`` does, or has a word of ``talk`` in it names nothing.

    Each is annotated with an expression in which ``<name>`` stands for the alternatives of a field of the file.
    """

    lexicon: Lexicon
    word: str
    announcement: Annotated[Pattern, r"<announcement>"]
    goes_on: Annotated[Pattern, r'"?[ ]?(?:$|[!?.:;,=\-—–(\n"]|<goes_on>\b)']
    direct: Annotated[Pattern, r'"?[ ]?(?P<mark><direct>\b:?|[:=\-—–]+)']
    states: Annotated[
        Pattern,
        r"(?<![\w'])<states>(?!\w)"
        r'|(?<![\w\'])<labels>"?(?:[ ]?[:=]+>?|[ ][\-—–]+>?(?=[ ]))',
    ]
    asks: Annotated[Pattern, r"(?<![\w'])<asks>(?!\w)"]
    short: Annotated[Pattern, r"<short>\b"]
    cue: Annotated[Pattern, r'(?<!\w)<cue>[\s!.,:;\-—–"]*(?:<joins> )?$']
    hedged_cue: Annotated[Pattern, r"(?<!\w)<hedged_cue>[\s:,]*$"]
    firm: Annotated[Pattern, r"<firm>$"]
    negation: Annotated[Pattern, r"[ ]?<negation>\b"]
    contrast: Annotated[Pattern, r"[ ]?<negation>\b[^.!?\n]{1,60}?\b<contrast> "]
    filler: Annotated[Pattern, r'(?:[\s:,=>\-—–(\[\]{}#]|\.{2,}|<filler>\b(?=[\s:,"]))*']
    article: Annotated[Pattern, r"<article>"]
    end: Annotated[Pattern, r"\s*(?:$|[!?,;:()\[\]{}\n\"/—–]|\.(?=[\s.!\"')]|$)|-+\s|(?<=\s)<stops>(?![\w']))"]
    doubt: Annotated[Pattern, r"(?<!\w)<doubt>\b"]
    reported: Annotated[Pattern, r'(?<!\w)<conditions>\b[^.!?\n]*\b<reports>[\s:,"]*(?:<that> )?$']
    clause: Annotated[Pattern, r'[.!?:;,\n"()—–]|\b<joins>\b']
    no_names: Annotated[Pattern, r"<no_names>(?![\w'])"]
    address: Annotated[Pattern, r"<address>(?![\w'])"]
    calls: Annotated[Pattern, r"<calls>"]
    talk: Annotated[Pattern, r"(?<!\w)<talk>(?![\w'])"]
    tags: Annotated[Pattern, r"(?:[^\w]|(?<!\w)(?:<tags>|<address>|<calls>)(?![\w']))*"]

    @staticmethod
    def compile(lexicon: Lexicon, guesses: Mapping[str, str | list[str]]) -> "Language":
        """Return the language whose guesses the ``guesses`` section of its file describes."""

        def alternatives(name: re.Match[str]) -> str:
            value = guesses.get(name[1], [])
            found = value.split() if isinstance(value, str) else value
            return f"(?:{'|'.join(found)})" if found else "(?!)"

        patterns = {}
        for name, hint in get_type_hints(Language, include_extras=True).items():
            for template in getattr(hint, "__metadata__", ()):
                once = re.sub(_FIELD, alternatives, template)
                patterns[name] = re.compile(re.sub(_FIELD, alternatives, once))  # alternatives may name fields, too
        return Language(lexicon, str(guesses["word"]), **patterns)


@cache
def language_of(code: str) -> Language:
    """Return the language of a file, by its two letters. Raises ``SettingError``."""
    data = language_data(code)
    lexicon = ENGLISH if code == ENGLISH.language else lexicon_of(code, **data["lexicon"])
    return Language.compile(lexicon, data["guesses"])


@cache
def language_data(code: str) -> dict[str, Any]:
    """Return the content of a language file. Raises ``SettingError`` for a language without one."""
    known = sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    if code not in known:
        raise SettingError(
            f"{PLACE}.language: {code!r} is not one of {', '.join(known)}; to add it, write {code}.yaml in "
            "games/taboo/data/languages (docs/prompts.md, Languages)"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load((_FOLDER / f"{code}.yaml").read_text(encoding="utf-8"), loader)
    return data
