"""Did it get better? Sentences drawn from paired comparisons, which say so when a difference may be noise.

A difference counts from p < 0.05 on, without correction: a run compares its last model with two others at most.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spag.display.figures import is_contest, p_text, signed, turned
from spag.games.base import Game

LEVEL = 0.05
"""The p-value below which a difference is called one."""
FEW_TASKS = 50
"""Held-out tasks below which only large differences can show."""


class Tone(StrEnum):
    """What a comparison came to."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "unclear"


_SAYS = {Tone.BETTER: "is better than {}", Tone.WORSE: "is worse than {}", Tone.UNCLEAR: "shows no difference from {} beyond noise"}


@dataclass(frozen=True, slots=True)
class Finding:
    """How one player compares with ``other``, with the figures that say so."""

    tone: Tone
    other: str
    figures: str


def arena_findings(arena: Mapping[str, Any], game: Game) -> tuple[str, list[Finding]]:
    """Return the last player's name and how it compares with each of the others on the tasks both played.

    In a contest by score in both roles; where players win together, by how often it came to a win with each of them in the same role.
    """
    last = str(arena["ratings"][-1]["name"])
    found = _scores(arena, last) if is_contest(game) else _wins(arena, last, game)
    return last, list(found)


def _scores(arena: Mapping[str, Any], last: str) -> Iterator[Finding]:
    first, elo = arena["ratings"][0], arena["ratings"][-1]
    for row in arena["ratings"][:-1]:
        pair = next((pair for pair in arena["pairs"] if set(pair["players"]) == {last, row["name"]}), None)
        if pair and pair["score"]:
            score = turned(pair["score"], pair["players"][0] == last)
            figures = f"{_points(score, 'points in 100 games')}, {p_text(score['p_value'])}"
            if row is first:  # the ratings' intervals are those of the distance from the first player
                figures += f"; Elo {signed(elo['points'])} [{signed(elo['low'])}, {signed(elo['high'])}]"
            yield _finding(row["name"], score["mean"], score["p_value"] < LEVEL, figures)


def _wins(arena: Mapping[str, Any], last: str, game: Game) -> Iterator[Finding]:
    for row in arena["paired"]:
        if last in row["players"] and row["role"] in game.outcomes[row["outcome"]].winners:
            difference = turned(row["difference"], row["players"][0] == last)
            [other] = {*row["players"]} - {last}
            figures = f"{_points(difference, 'points of 100 games won')}, {p_text(difference['p_value'])}"
            yield _finding(f"{other} as {row['role']}", difference["mean"], difference["p_value"] < LEVEL, figures)


def _points(difference: Mapping[str, float], what: str) -> str:
    mean, low, high = (signed(100 * difference[key]) for key in ("mean", "low", "high"))
    return f"{mean} {what} [{low}, {high}]"


def exact_sentence(yardsticks: Mapping[str, Mapping[str, float]]) -> str:
    """Return the first exact figure of a solved game by player, which no number of games makes surer; empty where there is none."""
    name = next((name for figures in yardsticks.values() for name in figures), "")
    told = ", ".join(f"{figures[name]:.3f} for {player}" for player, figures in yardsticks.items() if name in figures)
    return f"{name.replace('_', ' ').capitalize()}, computed exactly: {told}." if told else ""


def sentence(player: str, findings: Sequence[Finding]) -> str:
    """Return the findings in one sentence, those of the same tone together."""
    others = {tone: " and ".join(", ".join(one.other for one in findings if one.tone is tone).rsplit(", ", 1)) for tone in Tone}
    return f"{player} {', but '.join(_SAYS[tone].format(names) for tone, names in others.items() if names)}."


def reasoning_finding(reasoning: Mapping[str, Any]) -> tuple[str, Finding] | None:
    """Return the last model's name and how it reasons against the reference: over all tasks, or on the only one."""
    models, reference = reasoning["models"], reasoning["reference"]
    last = list(models)[-1]
    if last == reference:
        return None
    if len(reasoning["tasks"]) > 1:
        difference, what = models[last]["geometric_mean"]["difference"], f"geometric mean of {len(reasoning['tasks'])} tasks"
        sure, p = not difference["low"] <= 0 <= difference["high"], ""
    else:
        task, about = next(iter(reasoning["tasks"].items()))
        difference, what = models[last]["tasks"][task]["difference"], about["label"]
        sure, p = difference["p"] < LEVEL, f", {p_text(difference['p'])}"
    value, low, high = (signed(100 * difference[key], 1) for key in ("value", "low", "high"))
    return last, _finding(reference, difference["value"], sure, f"{what} {value} points [{low}, {high}]{p}")


def _finding(other: str, difference: float, sure: bool, figures: str) -> Finding:
    tone = Tone.UNCLEAR if not sure else Tone.BETTER if difference > 0 else Tone.WORSE
    return Finding(tone, other, figures)
