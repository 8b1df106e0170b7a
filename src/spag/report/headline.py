"""Did the model improve? Sentences from paired comparisons; they say if a difference may be noise, or if play is
degenerate.

A difference is claimed if p < 0.05, without correction for the number of players that the last model is compared with,
and the interval excludes 0: intervals are cautious, so with few tasks one may contain 0 although p is small.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spag.core.visible import counted
from spag.engines.players import CONSTANT
from spag.evaluation.warnings import arena_warnings
from spag.games.base import Game, is_competitive
from spag.report.arena_tables import last_model, scored_how
from spag.report.cells import interval, oriented, p_text

LEVEL = 0.05
"""The p-value below which a difference is reported as one, if its interval excludes 0."""
MOSTLY_LEGAL = 0.9
"""Below this share of legal moves among a policy's replies, exact metrics say little about its play."""
FEW_TASKS = 50
"""Below this many held-out tasks, only large differences are detectable."""

_MOST_NAMED = 3
"""Tasks that a headline names; more would push its figures off the line."""


class Tone(StrEnum):
    """The result of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "unclear"


_NO_DIFFERENCE = "is not significantly different from {}"
_SAYS = {Tone.BETTER: "is better than {}", Tone.WORSE: "is worse than {}", Tone.UNCLEAR: _NO_DIFFERENCE}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one player compares with ``other``, with the numbers behind it. ``wins``: own and the other's, as 58:1."""

    tone: Tone
    other: str
    figures: str
    wins: str = ""


def arena_findings(arena: Mapping[str, Any], game: Game) -> tuple[str, list[Comparison]]:
    """Return the last model's name and its comparison with each of the others on the tasks both played.

    If players compete, by score in both roles; if they win together, by reward in the same role, with the same
    partners: two players alone are not compared, since each role's reward depends on the other player too.
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
            yield _finding(row["name"], score, score["p_value"], figures, f"{won}:{lost}")


def _rewards(arena: Mapping[str, Any], last: str) -> Iterator[Comparison]:
    for row in arena["paired"]:
        if len(arena["ratings"]) > 2 and last in row["players"] and row["outcome"] is None:
            is_first = row["players"][0] == last
            difference = oriented(row["difference"], is_first)
            other = row["players"][is_first]
            figures = f"reward {interval(difference, digits=2)} per game, {p_text(difference['p_value'])}"
            yield _finding(f"{other} as {row['role']}", difference, difference["p_value"], figures)


def caveats(
    arena: Mapping[str, Any], game: Game, findings: Sequence[Comparison], online: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the caveats that belong in the same sentence as the findings: degenerate play, and a baseline not played.

    ``online``: rows of the metrics of online steps.
    """
    last = last_model(arena)
    found = arena_warnings([row for row in arena["roles"] if row["name"] == last], online, game)
    if any(row["name"] == CONSTANT for row in arena["ratings"]) and not any(CONSTANT in one.other for one in findings):
        found.append(f"it was not compared with {CONSTANT}")
    return found


def sentence(player: str, findings: Sequence[Comparison], caveats: Sequence[str] = ()) -> str:
    """Return the findings in one sentence, grouped by tone, with the caveats."""
    others = {tone: [_named(one) for one in findings if one.tone is tone] for tone in Tone}
    claims = ", but ".join(_SAYS[tone].format(_listed(names)) for tone, names in others.items() if names)
    return "; ".join((f"{player} {claims}", *caveats)) + "."


def _named(finding: Comparison) -> str:
    said = [finding.wins] if finding.wins else []
    if CONSTANT in finding.other:
        said.append("a bot that always says the most harmless thing")
    return f"{finding.other} ({'; '.join(said)})" if said else finding.other


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def exact_sentence(arena: Mapping[str, Any]) -> str:
    """Return the first exact metric of every player that has it, as a sentence; empty without any."""
    exact_metrics = arena["exact_metrics"]
    name = next((name for figures in exact_metrics.values() for name in figures), "")
    found = []
    for player, figures in exact_metrics.items():
        if name in figures:
            legal = figures.get("legal_mass", 1.0)
            about = f" (over legal moves, {100 * legal:.0f} % of its replies)" if legal < MOSTLY_LEGAL else ""
            found.append(f"{figures[name]:.3f} for {player}{about}")
    how = f"computed exactly{scored_how(thinking=arena.get('thinking', False))}"
    return f"{name.replace('_', ' ').capitalize()}, {how}: {', '.join(found)}." if found else ""


def reasoning_finding(reasoning: Mapping[str, Any], name: str = "") -> tuple[str, Comparison] | None:
    """Return a model's name, by default the last one's, and its reasoning compared with the reference's: over all tasks
    that have a geometric mean, or on the only one; ``None`` if there is neither.
    """
    models, reference, tasks = reasoning["models"], reasoning["reference"], reasoning["tasks"]
    last = name or list(models)[-1]
    if last == reference:
        return None
    if len(tasks) > 1:
        if not (mean := models[last]["geometric_mean"]):
            return None
        difference, what, said = mean["difference"], f"geometric mean of {_tasks_of_mean(mean, tasks)}", ""
        p = 0.0  # there is no test: the interval decides
    else:
        [(task, about)] = tasks.items()
        difference, what = models[last]["tasks"][task]["difference"], about["label"]
        more = difference["better"] - difference["worse"]  # what p tests; the mean may have the other sign
        p, said = difference["p"] if more * difference["value"] > 0 else 1.0, f", {p_text(difference['p'])}"
    figures = f"{what} {interval(difference, 100, 'value', 1)} points{said}"
    return last, _finding(reference, difference, p, figures)


def _tasks_of_mean(mean: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> str:
    if not (without := left_out_of_mean(mean, tasks)):
        return counted(len(tasks), "task")
    named = _listed(without) if len(without) <= _MOST_NAMED else "the others"
    return f"{len(tasks) - len(without)} of {len(tasks)} tasks (without {named}, where a model scores 0)"


def left_out_of_mean(mean: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the labels of the tasks that a geometric mean does not cover."""
    return [about["label"] for task, about in tasks.items() if task not in mean["tasks"]]


def _finding(other: str, difference: Mapping[str, float], p: float, figures: str, wins: str = "") -> Comparison:
    """Return a comparison that claims a difference only if p and the interval agree on one."""
    is_sure = p < LEVEL and not difference["low"] <= 0 <= difference["high"]
    tone = Tone.UNCLEAR if not is_sure else Tone.BETTER if difference["low"] > 0 else Tone.WORSE
    return Comparison(tone, other, figures, wins)
