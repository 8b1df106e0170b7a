"""The limits of healthy play, and a warning for each metric of ``health`` over its limit."""

from collections.abc import Iterator, Mapping
from typing import Any

from spag.games.base import Game

GENERIC_TASKS = 3
"""An opening used for this many different tasks says nothing about any of them."""
FEWEST_GAMES = 20
"""Fewer games give no warnings: their shares are noise."""

MOST_SHARED_OPENINGS = 0.5
MOST_GENERIC_OPENINGS = 0.25
MOST_REPEATED = 0.25
MOST_COPIED = 0.05
MOST_EMPTY = 0.05
MOST_REFUSALS = 0.05
MOST_VIOLATIONS = 0.3
MOST_TIES = 0.8
MOST_WINS_OF_ONE_ROLE = 0.95
LEAST_DISTINCT_2 = 0.1


def health_warnings(found: Mapping[str, Any], game: Game) -> list[str]:
    """Return a line for each metric over its limit; none for fewer than ``FEWEST_GAMES`` games."""
    if found["games"] < FEWEST_GAMES:
        return []
    shares = [(found["figures"][one.name], one.limit, one.warning) for one in game.figures if one.limit is not None]
    if watches_openings(game):
        shared = "of games open with words that open a game on another task too"
        generic = f"of games open with words used for {GENERIC_TASKS} tasks or more"
        shares += [
            (found["shared_openings"], MOST_SHARED_OPENINGS, shared),
            (found["generic_openings"], MOST_GENERIC_OPENINGS, generic),
        ]
    shares += [
        (found["repeated"], MOST_REPEATED, "of utterances were said before in the same game"),
        (found["copied"], MOST_COPIED, "of utterances copy the rules or instructions"),
        (found["empty"], MOST_EMPTY, "of utterances are empty"),
        (found["refusals"], MOST_REFUSALS, "of utterances refuse to play"),
        *_outcome_shares(found, game),
    ]
    lines = [
        f"{100 * share:.0f} % {what} (more than {100 * limit:.0f} %)" for share, limit, what in shares if share > limit
    ]
    return lines + [
        f"{_the(role)} varies little: distinct-2 is {texts['distinct_2']:.2f} (less than {LEAST_DISTINCT_2})"
        for role, texts in found["roles"].items()
        if role not in game.fixed_form
        and texts["mean_words"] > 1
        and texts["distinct_2"] < LEAST_DISTINCT_2  # single words make no pairs
    ]


def free_roles(game: Game) -> list[str]:
    """Return the roles whose texts can repeat, copy or refuse."""
    return [role for role in game.roles if role not in game.fixed_form]


def watches_openings(game: Game) -> bool:
    """Tell whether a shared opening means anything: not if its speaker does not know the task, or has few moves."""
    first = game.roles[0]
    return first in free_roles(game) and not game.hidden.get(first)


def _outcome_shares(found: Mapping[str, Any], game: Game) -> Iterator[tuple[float, float, str]]:
    """Yield (share, limit, what) for broken rules, ties, and games that one role wins alone."""
    for role in game.roles:
        violations = found["roles"][role]["violation"]
        yield violations, MOST_VIOLATIONS, f"of games end with {_the(role)} breaking the rules"
    ties = sum(found["outcomes"][one.name] for one in game.outcomes.values() if one.is_draw)
    yield ties, MOST_TIES, "of games are ties"
    wins = {
        role: sum(found["outcomes"][one.name] for one in game.outcomes.values() if one.winners == (role,))
        for role in game.roles
    }
    for role, won in wins.items():
        share = won / sum(wins.values()) if won else 0.0
        yield share, MOST_WINS_OF_ONE_ROLE, f"of decided games are won by {_the(role)}"


def _the(role: str) -> str:
    return role if "_" in role else f"the {role}"  # a numbered player is a name
