"""Figures as rows of tables: what stands in the page, already in words and in the order of the columns."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spag.display.figures import health_rows, p_text, p_value, paired_labels, role_columns, signed, turned
from spag.display.html import duration
from spag.evaluation.stats import Rate
from spag.games.base import Game
from spag.runs.reading import RunFolder
from spag.runs.records import Json


@dataclass(frozen=True, slots=True)
class Noted:
    """A cell with a figure, and lines that belong to it in small print."""

    text: str
    notes: tuple[str, ...]


Cell = str | Rate | Noted | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns, and rows of as many cells, the first of which names the row. ``None`` is a figure that there is not."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    last_is_total: bool = False


def role_table(arena: Mapping[str, Any], game: Game, role: str) -> Table:
    """How each player did in ``role``: every share with its interval, and mean counts."""
    columns = role_columns(game, role)
    rows = [
        (row["name"], *(_rate(row.get(key), scale) for key, (_, scale) in columns.items())) for row in arena["roles"] if row["role"] == role
    ]
    return Table(("player", *(label for label, _ in columns.values())), tuple(rows))


def _rate(rate: Mapping[str, Any] | None, scale: int) -> Cell:
    if not rate or not rate["total"]:
        return None
    return rate_cell(rate) if scale == 100 else f"{rate['rate']:.1f}"


def rate_cell(rate: Mapping[str, Any]) -> Rate:
    """Return a rate as a cell, whatever else its file says of it."""
    return Rate(**{field.name: rate[field.name] for field in fields(Rate)})


def pair_table(arena: Mapping[str, Any]) -> Table:
    """Every two players, the later one first, in both roles."""
    rows = []
    for pair in arena["pairs"]:
        (one, other), (won, lost) = pair["players"], pair["wins"]
        score = turned(pair["score"], as_is=False) if pair["score"] else None
        points, p = (interval(score, 100), p_value(score["p_value"])) if score else ("–", "–")
        rows.append((f"{other} – {one}", f"{pair['games']:,}", f"{lost} – {won}", str(pair["undecided"]), points, p))
    return Table(("players", "games", "wins", "undecided", "points in 100 games", "p"), tuple(rows))


def change_table(arena: Mapping[str, Any], game: Game) -> Table:
    """What the last player does otherwise than each of the others, in the same role on the same tasks."""
    last, labels = arena["ratings"][-1]["name"], paired_labels(game)
    rows = []
    for row in arena["paired"]:
        if last in row["players"]:
            is_one = row["players"][0] == last
            ours, theirs = (row["one"], row["other"]) if is_one else (row["other"], row["one"])
            difference = turned(row["difference"], is_one)
            change = f"{100 * theirs['rate']:.0f} → {100 * ours['rate']:.0f}"
            label = labels.get((row["role"], row["outcome"]), row["outcome"])
            rows.append((label, row["players"][is_one], change, interval(difference, 100), p_value(difference["p_value"])))
    return Table(("", "against", "% then → now", "difference", "p"), tuple(rows))


def interval(difference: Mapping[str, float], scale: float = 1, value: str = "mean", digits: int = 0) -> str:
    mean, low, high = (signed(scale * difference[key], digits) for key in (value, "low", "high"))
    return f"{mean} [{low}, {high}]"


def health_table(run: RunFolder) -> Table | None:
    """The figures of health, a column for each iteration; ``None`` when no iteration has them."""
    found = {play.name: play.health for play in run.plays if play.health}
    return Table(("", *found), tuple(health_rows(found))) if found else None


def reasoning_table(reasoning: Mapping[str, Any]) -> Table:
    """A row for each task, a column for each model: score ± standard error, and below it the difference to the reference."""
    reference, models = reasoning["reference"], reasoning["models"]
    rows: list[tuple[Cell, ...]] = []
    for task, about in reasoning["tasks"].items():
        figures = [model["tasks"][task] for model in models.values()]
        details = (f"{about['metric']}, {about['shots']}-shot", f"{figures[0]['items']:,} items")
        rows.append((Noted(about["label"], details), *(_score(figure, is_reference=not place) for place, figure in enumerate(figures))))
    if len(reasoning["tasks"]) > 1:
        means = [model["geometric_mean"] for model in models.values()]
        rows.append(("geometric mean", *(_score(mean, is_reference=not place) for place, mean in enumerate(means))))
    return Table((f"%, below: minus {reference}", *models), tuple(rows))


def _score(figure: Mapping[str, Any], *, is_reference: bool) -> Cell:
    error, difference = figure.get("se"), figure["difference"]
    text = f"{100 * figure['value']:.1f}" + (f" ± {100 * error:.1f}" if error is not None else "")
    if is_reference:
        return text
    p = (p_text(difference["p"]),) if "p" in difference else ()
    return Noted(text, (interval(difference, 100, "value", 1), *p))


def cost_table(run: RunFolder) -> Table:
    """Time and tokens of every stage, with their total."""
    rows: list[tuple[str, ...]] = []
    seconds = tokens = 0
    for name, stage in run.stages.items():
        results = stage.get("results") or {}
        seconds += stage["seconds"]
        tokens += results.get("completion_tokens", 0)
        rows.append((name, duration(stage["seconds"]), *_work(stage, results)))
    if run.reasoning:
        spent = sum(task.get("seconds", 0.0) for model in run.reasoning["models"].values() for task in model["tasks"].values())
        seconds += spent
        rows.append(("reasoning", duration(spent), f"{len(run.reasoning['tasks'])} tasks", "", ""))
    rows.append(("total", duration(seconds), "", "", f"{tokens:,}" if tokens else ""))
    return Table(("stage", "time", "work", "games an hour", "tokens said"), tuple(rows), last_is_total=True)


def _work(stage: Json, results: Json) -> tuple[str, str, str]:
    """Return what a stage did, games an hour, and completion tokens."""
    if stage["status"] != "done":
        return "not finished", "", ""
    work, samples = "", results.get("samples", {})  # one number of those trained, or by role
    count = samples if isinstance(samples, int) else sum(samples.values()) + results.get("sft", 0)
    if "steps" in results:
        work = f"{results['steps']:,} steps{f' on {count:,} samples' if count else ''}"
    elif "games" in results:
        work = f"{results['games']:,} games"
    elif "samples" in results:
        work = f"{count:,} samples"
    rate, tokens = results.get("games_per_hour"), results.get("completion_tokens")
    return work, f"{rate:,}" if rate else "", f"{tokens:,}" if tokens else ""


def versions(run: RunFolder) -> dict[str, str]:
    """Return every library version that the run's stages and the reasoning evaluation recorded, sorted; several where they differ."""
    places = [stage.get("results") or {} for stage in run.stages.values()]
    if run.reasoning:
        places += [task for model in run.reasoning["models"].values() for task in model["tasks"].values()]
    found: dict[str, list[str]] = {}
    for name, version in sorted({(name, str(number)) for place in places for name, number in place.get("versions", {}).items()}):
        found.setdefault(name, []).append(version)
    return {name: ", ".join(numbers) for name, numbers in found.items()}
