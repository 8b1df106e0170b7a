"""Did the model improve? Sentences from paired comparisons; they say if a difference may be noise, or if play is
degenerate.

A difference counts if p < 0.05, without correction for the number of players that the last model is compared with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from spag.engines.players import CONSTANT
from spag.evaluation.collapse_warnings import MOST_WITHOUT_ADVANTAGE, WINDOW, is_trained, mean_of_steps
from spag.games.base import Game
from spag.report.arena_tables import is_competitive, last_model
from spag.report.cells import interval, oriented, p_text

LEVEL = 0.05
"""The p-value below which a difference is reported as one."""
FEW_TASKS = 50
"""Below this many held-out tasks, only large differences are detectable."""
MOST_TIES = 0.5
"""Share of ties among the last player's games above which they are named with its wins."""
MOST_REPEATED = 0.5
"""Share of repetitions among the last player's utterances above which they are named with its wins."""


class Tone(StrEnum):
    """The result of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "unclear"


_SAYS = {
    Tone.BETTER: "is better than {}",
    Tone.WORSE: "is worse than {}",
    Tone.UNCLEAR: "shows no difference from {} beyond noise",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one player compares with ``other``, with the numbers behind it. ``wins``: own and the other's, as 58:1."""

    tone: Tone
    other: str
    figures: str
    wins: str = ""


def arena_findings(arena: Mapping[str, Any], game: Game) -> tuple[str, list[Comparison]]:
    """Return the last model's name and its comparison with each of the others on the tasks both played.

    If players compete, by score in both roles; if they win together, by reward in the same role.
    """
    last = last_model(arena)
    return last, list(_scores(arena, last) if is_competitive(game) else _rewards(arena, last))


def _scores(arena: Mapping[str, Any], last: str) -> Iterator[Comparison]:
    first, elo = arena["ratings"][0], next(row for row in arena["ratings"] if row["name"] == last)
    for row in arena["ratings"]:
        pair = next((pair for pair in arena["pairs"] if {*pair["players"]} == {last, row["name"]}), None)
        if pair and pair["score"]:
            is_first = pair["players"][0] == last
            score = oriented(pair["score"], is_first)
            figures = f"score {interval(score, 100)} of 100, {p_text(score['p_value'])}"
            if row is first:  # the ratings' intervals are for the difference from the first player
                figures += f"; Elo {interval(elo, value='points')}"
            won, lost = pair["wins"] if is_first else pair["wins"][::-1]
            yield _finding(row["name"], score["mean"], score["p_value"] < LEVEL, figures, f"{won}:{lost}")


def _rewards(arena: Mapping[str, Any], last: str) -> Iterator[Comparison]:
    for row in arena["paired"]:
        if last in row["players"] and row["outcome"] is None:
            is_first = row["players"][0] == last
            difference = oriented(row["difference"], is_first)
            other = row["players"][is_first]
            figures = f"reward {interval(difference, digits=2)} a game, {p_text(difference['p_value'])}"
            yield _finding(f"{other} as {row['role']}", difference["mean"], difference["p_value"] < LEVEL, figures)


def caveats(arena: Mapping[str, Any], findings: Sequence[Comparison], online: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the caveats that belong in the same sentence as the findings: degenerate play, and a baseline not played.

    ``online``: rows of the metrics of online steps.
    """
    own = [row for row in arena["roles"] if row["name"] == last_model(arena)]
    ties, repeated, idle = _share(own, "tie"), _share(own, "repeated"), _without_advantage(online)
    shares = [
        (ties, MOST_TIES, "{:.0f} % of its games are ties"),
        (repeated, MOST_REPEATED, "{:.0f} % of its utterances repeat what was said before"),
        (idle, MOST_WITHOUT_ADVANTAGE, "{:.0f} % of its last training samples had no advantage"),
    ]
    found = [says.format(100 * share) for share, limit, says in shares if share > limit]
    if any(row["name"] == CONSTANT for row in arena["ratings"]) and not any(CONSTANT in one.other for one in findings):
        found.append(f"it was not compared with {CONSTANT}")
    return found


def _share(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    count, total = (sum(row[name][key] for row in rows) for key in ("count", "total"))
    return float(count / max(1, total))


def _without_advantage(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean share over the last steps and the trained roles."""
    found = [
        share
        for row in rows[-WINDOW:]
        for key in row
        if key.endswith("/no_advantage") and is_trained(row, key.removesuffix("/no_advantage"))
        if (share := mean_of_steps([row], key)) is not None
    ]
    return fmean(found) if found else 0.0


def sentence(player: str, findings: Sequence[Comparison], caveats: Sequence[str] = ()) -> str:
    """Return the findings in one sentence, grouped by tone, with the caveats."""
    others = {tone: [_named(one) for one in findings if one.tone is tone] for tone in Tone}
    claims = ", but ".join(_SAYS[tone].format(_listed(names)) for tone, names in others.items() if names)
    return "; ".join((f"{player} {claims}", *caveats)) + "."


def _named(finding: Comparison) -> str:
    said = [finding.wins] if finding.wins else []
    if CONSTANT in finding.other:
        said.append("a bot that repeats one sentence")
    return f"{finding.other} ({'; '.join(said)})" if said else finding.other


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def exact_sentence(exact_metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Return the first exact metric of every player that has it, as a sentence; empty without any."""
    name = next((name for figures in exact_metrics.values() for name in figures), "")
    described = ", ".join(
        f"{figures[name]:.3f} for {player}" for player, figures in exact_metrics.items() if name in figures
    )
    return f"{name.replace('_', ' ').capitalize()}, computed exactly: {described}." if described else ""


def reasoning_finding(reasoning: Mapping[str, Any]) -> tuple[str, Comparison] | None:
    """Return the last model's name and its reasoning compared with the reference: over all tasks, or on the only
    one.
    """
    models, reference, tasks = reasoning["models"], reasoning["reference"], reasoning["tasks"]
    last = list(models)[-1]
    if last == reference:
        return None
    if len(tasks) > 1:
        difference, what, p = models[last]["geometric_mean"]["difference"], f"geometric mean of {len(tasks)} tasks", ""
        sure = not difference["low"] <= 0 <= difference["high"]
    else:
        [(task, about)] = tasks.items()
        difference, what = models[last]["tasks"][task]["difference"], about["label"]
        more = difference["better"] - difference["worse"]  # what p tests; the mean may have the other sign
        sure, p = difference["p"] < LEVEL and more * difference["value"] > 0, f", {p_text(difference['p'])}"
    figures = f"{what} {interval(difference, 100, 'value', 1)} points{p}"
    return last, _finding(reference, difference["value"], sure, figures)


def _finding(other: str, difference: float, sure: bool, figures: str, wins: str = "") -> Comparison:
    tone = Tone.UNCLEAR if not sure else Tone.BETTER if difference > 0 else Tone.WORSE
    return Comparison(tone, other, figures, wins)
