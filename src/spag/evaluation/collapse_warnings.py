"""Warnings, in words, that online training is collapsing, from the rows of ``online/metrics.jsonl``.

Every metric is a mean over the last ``WINDOW`` steps, compared with the mean over the first ``WINDOW`` or with a limit.
The limits are wide, so a warning is a reason to look at the games. docs/online.md lists remedies.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from spag.evaluation.health_warnings import MOST_VIOLATIONS, MOST_WINS_OF_ONE_ROLE

WINDOW = 4
"""Steps over which a metric is averaged: one step has few games, and a single odd step is not a collapse."""
LEAST_STEPS = 2 * WINDOW
"""No warnings before this step: the first and last windows must not overlap."""
LENGTH_FACTOR = 3.0
"""Growth or shrinkage of utterances: models ramble, or answer in one word, to exploit the reward."""
LEAST_ENTROPY = 0.01
"""Nats per token. A reply of 20 tokens is then the same four times out of five: there is nothing left to
explore.
"""
ENTROPY_FALL = 0.1
"""Share of the first steps' entropy; a good policy that still explores keeps more."""
MOST_WITHOUT_ADVANTAGE = 0.9
"""Share of samples. The gradient then comes from a tenth of the batch or less."""
DISTINCT_FALL = 0.5
"""Share of the first steps' distinct utterances."""
FREE_TEXT = 0.25
"""Share of distinct utterances in the first steps below which a game has few moves, so that repetition means
nothing.
"""
LEAST_DECIDED = 0.1
"""The policy's wins per game, in all roles together, below which their distribution over roles means nothing."""
MOST_KL = 0.5
"""Nats per token between policy and reference. A reply of 20 tokens is then e^10 times likelier than it was."""
MOST_MISMATCH_KL = 0.05
"""Nats per token between engine and trainer. Rounding gives up to 1e-3 (bfloat16); more means other weights or
sampling.
"""

Row = Mapping[str, Any]


def collapse_warnings(rows: Sequence[Row]) -> dict[str, str]:
    """Return the warnings after the last of ``rows`` (all steps from the first, in order), by figure; none for few
    steps.

    Metrics are named as in the rows: ``GAME/ROLE/length``, ``kl``. A metric missing from the rows gives none.
    """
    if len(rows) < LEAST_STEPS:
        return {}
    first, last = rows[:WINDOW], rows[-WINDOW:]
    found: dict[str, str] = {}
    for key in _roles(last):
        for name, judge in _JUDGES.items():
            then, now = mean_of_steps(first, f"{key}/{name}"), mean_of_steps(last, f"{key}/{name}")
            if then is not None and now is not None and (says := judge(then, now)) and _is_trained(name, key, last):
                found[f"{key}/{name}"] = f"{_title(key)}: {says}"
    return found | dict(_role_drift(last)) | dict(_distances(last))


def is_trained(row: Row, key: str) -> bool:
    """Tell whether the policy's play as ``key`` (``GAME/ROLE``) gave samples in a step, even without an advantage."""
    return bool(row.get(f"{key}/samples"))


def _length(then: float, now: float) -> str:
    if then <= 0 or (now < then * LENGTH_FACTOR and now > then / LENGTH_FACTOR):
        return ""
    return f"utterances have {'grown' if now > then else 'shrunk'} from {then:.1f} to {now:.1f} tokens"


def _entropy(then: float, now: float) -> str:
    if now >= LEAST_ENTROPY and now >= ENTROPY_FALL * then:
        return ""
    return f"entropy is {now:.3f} nats a token, at first {then:.3f}: the policy says nearly the same always"


def _no_advantage(then: float, now: float) -> str:
    return f"{100 * now:.0f} % of samples have no advantage and teach nothing" if now > MOST_WITHOUT_ADVANTAGE else ""


def _illegal(then: float, now: float) -> str:
    if now <= MOST_VIOLATIONS or now < then:  # still many, but fewer than at first: the policy learns
        return ""
    return f"{100 * now:.0f} % of games end with its breaking the rules, at first {100 * then:.0f} %"


def _distinct(then: float, now: float) -> str:
    if then < FREE_TEXT or now >= DISTINCT_FALL * then:
        return ""
    return f"distinct utterances have fallen from {100 * then:.0f} to {100 * now:.0f} % of a step's"


_JUDGES: Mapping[str, Callable[[float, float], str]] = {
    "length": _length,
    "entropy": _entropy,
    "no_advantage": _no_advantage,
    "illegal": _illegal,
    "distinct": _distinct,
}


def _is_trained(name: str, key: str, rows: Sequence[Row]) -> bool:
    """Tell whether a lack of advantages matters: not in a role that is not trained."""
    return name != "no_advantage" or any(is_trained(row, key) for row in rows)


def _role_drift(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the role in which the policy has nearly all of its wins, unless it takes only one."""
    wins = {key: mean_of_steps(rows, f"{key}/win") or 0.0 for key in _roles(rows)}
    for key, won in wins.items():
        others = [value for other, value in wins.items() if _game(other) == _game(key) and other != key]
        total = won + sum(others)
        if others and total >= LEAST_DECIDED and won > MOST_WINS_OF_ONE_ROLE * total:
            yield f"{key}/win", f"{_title(key)}: has {100 * won / total:.0f} % of the policy's wins"


def _distances(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    kl, mismatch = mean_of_steps(rows, "kl"), mean_of_steps(rows, "mismatch_kl")
    if kl is not None and kl > MOST_KL:
        yield "kl", f"the policy is {kl:.2f} nats a token away from the reference"
    if mismatch is not None and mismatch > MOST_MISMATCH_KL:
        yield "mismatch_kl", f"engine and trainer disagree about the sampled tokens by {mismatch:.2f} nats each"


def _roles(rows: Sequence[Row]) -> list[str]:
    """Return every ``GAME/ROLE`` with metrics in the rows, except those of games against one opponent."""
    found = dict.fromkeys(name.rpartition("/")[0] for row in rows for name in row if name.count("/") == 2)
    return [key for key in found if " against " not in key]


def _game(key: str) -> str:
    return key.partition("/")[0]


def _title(key: str) -> str:
    game, _, role = key.partition("/")
    return f"{role} of {game}"


def mean_of_steps(rows: Sequence[Row], name: str) -> float | None:
    """Return the mean of a metric over the rows that have it as a finite number, ``None`` if there are none."""
    found = [value for row in rows if isinstance(value := row.get(name), int | float) and math.isfinite(value)]
    return fmean(found) if found else None
