"""Lists of names in which no name may be said by another."""

from collections.abc import Iterable, Mapping
from itertools import chain

from spag.games.guessing import find_name

TOGETHER = 20
"""Entries whose names are one text: preparing a text takes longer than searching it for all others."""


def names_said_by_others(names: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the keys whose names, openly or not, are said by the names of other keys."""

    def text(keys: Iterable[str]) -> str:
        return " / ".join(chain.from_iterable(names[key] for key in keys))

    keys, found = list(names), []
    for start in range(0, len(keys), TOGETHER):
        some = keys[start : start + TOGETHER]
        said = text(some)
        found += [key for key in names if key not in some and find_name(said, names[key])]
        found += [key for key in some if find_name(text(one for one in some if one != key), names[key])]
    return found
