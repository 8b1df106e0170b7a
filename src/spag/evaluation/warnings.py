"""Every warning of degenerate play, in words, with its limit: of a file of games (``health``), of online training that
collapses (the ``metrics.jsonl`` of its phase), and of an arena's last player.

The limits are wide, so a warning is a reason to look at the games. docs/online.md lists remedies for a collapse.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from spag.games.base import Game, is_competitive

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
MOST_IN_ARENA = 0.5
"""Above this share of ties among a player's games, or of repetitions among its utterances, they qualify its wins."""

WINDOW = 4
"""Steps over which a metric is averaged: one step has few games, and a single odd step is not a collapse."""
LEAST_STEPS = 2 * WINDOW
"""No warnings before this step: the first and last windows must not overlap."""
LENGTH_FACTOR = 3.0
"""Growth or shrinkage of utterances: models ramble, or answer in one word, to exploit the reward."""
LEAST_ENTROPY = 0.01
"""Nats per token. A reply of 20 tokens is then the same four times out of five: nothing is left to explore."""
ENTROPY_FALL = 0.1
"""Share of the first steps' entropy; a good policy that still explores keeps more."""
MOST_WITHOUT_ADVANTAGE = 0.9
"""Share of samples. The gradient then comes from a tenth of the batch or less."""
DISTINCT_FALL = 0.5
"""Share of the first steps' distinct utterances."""
FREE_TEXT = 0.25
"""Below this share of distinct utterances in the first steps, a game has few moves: repetition means nothing."""
LEAST_DECIDED = 0.1
"""The policy's wins per game, in all roles together, below which their distribution over roles means nothing."""
MOST_KL = 0.5
"""Nats per token between policy and reference. A reply of 20 tokens is then e^10 times likelier than it was."""
MOST_MISMATCH_KL = 0.05
"""Nats per token between engine and trainer. bfloat16 gives up to 1e-3; more means other weights or sampling."""

_BARE_MOVE = re.compile(r"\[[^\[\]]+\]")
_TRENDS = ("length", "entropy", "no_advantage", "illegal", "distinct")
Row = Mapping[str, Any]


def health_warnings(found: Row, game: Game) -> list[str]:
    """Return a line for each metric of ``health`` over its limit; none for fewer than ``FEWEST_GAMES`` games."""
    if found["games"] < FEWEST_GAMES:
        return []
    shares = [(found["figures"][one.name], one.limit, one.warning) for one in game.figures if one.limit is not None]
    if watches_openings(game):
        shared = "of games open with words that open a game on another task too"
        generic = f"of games open with words used for {GENERIC_TASKS} tasks or more"
        shares.append((found["shared_openings"], MOST_SHARED_OPENINGS, shared))
        shares.append((found["generic_openings"], MOST_GENERIC_OPENINGS, generic))
    shares += [
        (found["repeated"], MOST_REPEATED, "of utterances were said before in the same game"),
        (found["copied"], MOST_COPIED, "of utterances copy the rules or instructions"),
        (found["empty"], MOST_EMPTY, "of utterances are empty"),
        (found["refusals"], MOST_REFUSALS, "of utterances refuse to play"),
        *_outcome_shares(found, game),
    ]
    return [
        f"{100 * share:.0f} % {what} (more than {100 * limit:.0f} %)" for share, limit, what in shares if share > limit
    ] + [
        f"{_the(role)} varies little: distinct-2 is {texts['distinct_2']:.2f} (less than {LEAST_DISTINCT_2})"
        for role, texts in found["roles"].items()
        if role not in game.fixed_form
        and texts["mean_words"] > 1  # single words make no pairs
        and texts["distinct_2"] < LEAST_DISTINCT_2
    ]


def free_roles(game: Game) -> list[str]:
    """Return the roles whose texts can repeat, copy or refuse."""
    return [role for role in game.roles if role not in game.fixed_form]


def is_bare_move(text: str, game: Game) -> bool:
    """Tell whether an utterance is nothing but one move, such as ``[check]``: moves repeat in any game of few."""
    return game.moves_in_brackets and _BARE_MOVE.fullmatch(text.strip()) is not None


def watches_openings(game: Game) -> bool:
    """Tell whether a shared opening means anything: not if its speaker does not know the task, or has few moves."""
    first = game.roles[0]
    return first in free_roles(game) and not game.hidden.get(first)


def _outcome_shares(found: Row, game: Game) -> Iterator[tuple[float, float, str]]:
    """Yield (share, limit, what) for broken rules, ties, and games that one role wins alone."""
    for role in game.roles:
        violations = found["roles"][role]["violation"]
        yield violations, MOST_VIOLATIONS, f"of games end with {_the(role)} breaking the rules"
    outcomes = [(one, found["outcomes"][name]) for name, one in game.outcomes.items()]
    yield sum(share for one, share in outcomes if one.is_draw), MOST_TIES, f"of games are {_drawn(game)}"
    wins = {role: sum(share for one, share in outcomes if one.winners == (role,)) for role in game.roles}
    for role, won in wins.items():
        share = won / sum(wins.values()) if won else 0.0
        yield share, MOST_WINS_OF_ONE_ROLE, f"of decided games are won by {_the(role)}"


def _the(role: str) -> str:
    return role if "_" in role else f"the {role}"  # a numbered player is a name


def _drawn(game: Game) -> str:
    return "ties" if is_competitive(game) else "lost by both"


def arena_warnings(roles: Sequence[Row], steps: Sequence[Row], game: Game) -> list[str]:
    """Return what devalues a player's wins. ``roles``: its rows of an arena; ``steps``: its online steps, if any."""
    shares = [
        (_share(roles, "tie"), MOST_IN_ARENA, f"{{:.0f}} % of its games are {_drawn(game)}"),
        (_share(roles, "repeated"), MOST_IN_ARENA, "{:.0f} % of its utterances repeat what was said before"),
        (_idle_share(steps), MOST_WITHOUT_ADVANTAGE, "{:.0f} % of its last training samples had no advantage"),
    ]
    return [says.format(100 * share) for share, limit, says in shares if share > limit]


def _share(rows: Sequence[Row], name: str) -> float:
    count, total = (sum(row[name][key] for row in rows) for key in ("count", "total"))
    return float(count / max(1, total))


def _idle_share(steps: Sequence[Row]) -> float:
    """Return the mean share of samples without advantage over the last steps and the roles that have samples."""
    found = [mean_of_steps([row], f"{key}/no_advantage") for row in steps[-WINDOW:] for key in _roles([row])]
    known = [share for share in found if share is not None]
    return fmean(known) if known else 0.0


def collapse_warnings(rows: Sequence[Row]) -> dict[str, str]:
    """Return the warnings after the last of ``rows`` (all steps, in order), by figure; none for few steps.

    Every metric is a mean over the last ``WINDOW`` steps, compared with the mean over the first ``WINDOW`` or with a
    limit. Metrics are named as in the rows: ``GAME/ROLE/length``, ``kl``. One missing from the rows gives no warning.
    """
    if len(rows) < LEAST_STEPS:
        return {}
    first, last = rows[:WINDOW], rows[-WINDOW:]
    found: dict[str, str] = {}
    for key in _roles(last):
        for name in _TRENDS:
            then, now = (mean_of_steps(steps, f"{key}/{name}") for steps in (first, last))
            if then is not None and now is not None and (says := _trend(name, then, now)):
                found[f"{key}/{name}"] = f"{_title(key)}: {says}"
    return found | dict(_role_drift(last)) | dict(_distances(last))


def _trend(name: str, then: float, now: float) -> str:
    """Return what is wrong with a metric that was ``then`` in the first steps and is ``now``; empty if nothing is."""
    match name:
        case "length" if then > 0 and not then / LENGTH_FACTOR < now < then * LENGTH_FACTOR:
            return f"utterances have {'grown' if now > then else 'shrunk'} from {then:.1f} to {now:.1f} tokens"
        case "entropy" if now < max(LEAST_ENTROPY, ENTROPY_FALL * then):
            return f"entropy is {now:.3f} nats per token, at first {then:.3f}: the policy nearly always says the same"
        case "no_advantage" if now > MOST_WITHOUT_ADVANTAGE:
            return f"{100 * now:.0f} % of samples have no advantage and teach nothing"
        case "illegal" if now > MOST_VIOLATIONS and now >= then:  # fewer than at first: the policy learns
            return f"{100 * now:.0f} % of games end with it breaking the rules, at first {100 * then:.0f} %"
        case "distinct" if then >= FREE_TEXT and now < DISTINCT_FALL * then:
            return f"distinct utterances have fallen from {100 * then:.0f} to {100 * now:.0f} % of a step's"
    return ""


def _role_drift(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the role in which the policy has nearly all of its wins, unless it takes only one."""
    found = {key: mean_of_steps(rows, f"{key}/win") for key in _roles(rows)}
    wins = {key: won for key, won in found.items() if won is not None}
    for key, won in wins.items():
        game = key.partition("/")[0]
        of_game = [value for other, value in wins.items() if other.partition("/")[0] == game]
        if len(of_game) > 1 and sum(of_game) >= LEAST_DECIDED and won > MOST_WINS_OF_ONE_ROLE * sum(of_game):
            yield f"{key}/win", f"{_title(key)}: has {100 * won / sum(of_game):.0f} % of the policy's wins"


def _distances(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    kl, mismatch = mean_of_steps(rows, "kl"), mean_of_steps(rows, "mismatch_kl")
    if kl is not None and kl > MOST_KL:
        yield "kl", f"the policy is {kl:.2f} nats per token away from the reference"
    if mismatch is not None and mismatch > MOST_MISMATCH_KL:
        yield "mismatch_kl", f"engine and trainer disagree about sampled tokens by {mismatch:.2f} nats each"


def _roles(rows: Sequence[Row]) -> list[str]:
    """Return every ``GAME/ROLE`` with metrics in the rows, except those of games against one opponent."""
    found = dict.fromkeys(name.rpartition("/")[0] for row in rows for name in row if name.count("/") == 2)
    return [key for key in found if " against " not in key]


def _title(key: str) -> str:
    game, _, role = key.partition("/")
    return f"{role} of {game}"


def mean_of_steps(rows: Sequence[Row], name: str) -> float | None:
    """Return the mean of a metric over the rows that have it as a finite number, ``None`` if there are none."""
    found = [value for row in rows if isinstance(value := row.get(name), int | float) and math.isfinite(value)]
    return fmean(found) if found else None
