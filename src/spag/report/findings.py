"""Did it get better? Sentences drawn from paired comparisons, which say so when a difference may be noise.

A difference counts from p < 0.05 on, without correction: a run compares its last model with two others at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spag.display.figures import p_text, signed, turned

LEVEL = 0.05
"""The p-value below which a difference is called one."""
FEW_WORDS = 50
"""Held-out words below which only large differences can show."""


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


def arena_findings(arena: Mapping[str, Any]) -> tuple[str, list[Finding]]:
    """Return the last player's name and how it compares with each of the others, by score in both roles on the words both played."""
    names = [row["name"] for row in arena["ratings"]]
    ratings = {row["name"]: row for row in arena["ratings"]}
    last = names[-1]
    found = []
    for other in names[:-1]:
        pair = next((pair for pair in arena["pairs"] if set(pair["players"]) == {last, other}), None)
        if pair and pair["score"]:
            score = turned(pair["score"], pair["players"][0] == last)
            mean, low, high = (100 * score[key] for key in ("mean", "low", "high"))
            figures = f"{signed(mean)} points in 100 games [{signed(low)}, {signed(high)}], {p_text(score['p_value'])}"
            if other == names[0]:  # the ratings' intervals are those of the distance from the first player
                elo = ratings[last]
                figures += f"; Elo {signed(elo['points'])} [{signed(elo['low'])}, {signed(elo['high'])}]"
            found.append(_finding(other, score["mean"], score["p_value"] < LEVEL, figures))
    return last, found


def sentence(player: str, findings: Sequence[Finding]) -> str:
    """Return the findings in one sentence, those of the same tone together."""
    others = {tone: " and ".join(one.other for one in findings if one.tone is tone) for tone in Tone}
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
