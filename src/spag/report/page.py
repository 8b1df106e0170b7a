"""The page: data, plots and games put into the template, and written as ``report/index.html`` of the run folder."""

from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spag.core.episodes import read_episodes
from spag.core.store import write_atomically
from spag.display.html import said, visible
from spag.games.taboo.prompts import PromptSet
from spag.games.taboo.types import Role
from spag.report import charts
from spag.report.findings import FEW_WORDS, arena_findings, reasoning_finding, sentence
from spag.report.plots import Plot, plot_style, save_plot
from spag.report.rows import change_table, cost_table, health_table, pair_table, reasoning_table, role_table, versions
from spag.report.showcase import pick_games
from spag.runs.reading import RunData, read_run
from spag.runs.stages import prompts_of

_LONGEST = 1500  # characters of an utterance that the page shows
_BEFORE = 300  # of them, before the deciding words when those come later


def write_report(run_folder: Path) -> Path:
    """Write ``run_folder/report/index.html`` and ``plots/`` beside it; return the page's path.

    What the run does not have yet is left out or named as missing. Raises ``RunError`` when the folder is no run, ``DataError`` or
    ``ConfigError`` for a broken file in it, and ``StorageError`` when the report cannot be written.
    """
    run = read_run(run_folder)
    folder = run_folder / "report"
    with plot_style():
        plots = {plot.name: plot for plot in _plots(run, folder / "plots")}
    page = (
        _environment()
        .get_template("report.html")
        .render(
            run=run,
            plots=plots,
            style=Markup(resources.files("spag.report").joinpath("templates/style.css").read_text(encoding="utf-8")),
            versions=versions(run),
            cost=cost_table(run),
            **_arena(run),
            **_reasoning(run),
            **_selfplay(run),
            **_games(run),
        )
    )
    path = folder / "index.html"
    write_atomically(path, page)
    return path


def _plots(run: RunData, folder: Path) -> Iterator[Plot]:
    if run.arena:
        yield save_plot(charts.ratings(run.arena["ratings"]), "ratings", "Elo points of the players with 95 % intervals", folder)
        yield save_plot(charts.win_matrix(run.arena["matrix"]), "win-matrix", "Share of games that the attacker wins, by pairing", folder)
    if run.reasoning:
        labels = {task: about["label"] for task, about in run.reasoning["tasks"].items()}
        figures = {name: model["tasks"] for name, model in run.reasoning["models"].items()}
        if len(labels) >= 3:
            scores = {name: {task: tasks[task]["value"] for task in labels} for name, tasks in figures.items()}
            radar = charts.reasoning_radar(labels, scores)
            yield save_plot(radar, "reasoning-radar", "Reasoning by task and model, as shares of the best model's score", folder)
        bars = charts.reasoning_bars(labels, figures)
        yield save_plot(bars, "reasoning-bars", "Reasoning scores by task and model with 95 % intervals", folder)
    if run.plays:
        yield save_plot(charts.outcome_shares(run.plays), "outcomes", "How self-play games ended, by iteration", folder)
    for name, rows in run.metrics.items():
        says = f"Training curves of {name}"
        yield save_plot(charts.training_curves(name, rows), f"training-{name}", says, folder)


def _arena(run: RunData) -> dict[str, Any]:
    if not run.arena:
        return {"arena": None}
    player, found = arena_findings(run.arena)
    return {
        "arena": run.arena,
        "player": player,
        "sentence": sentence(player, found),
        "findings": found,
        "few_words": run.arena["words"] < FEW_WORDS,
        "games": sum(cell["games"] for cell in run.arena["matrix"]),
        "role_tables": {role: role_table(run.arena, role) for role in Role},
        "pairs": pair_table(run.arena),
        "changes": change_table(run.arena),
    }


def _reasoning(run: RunData) -> dict[str, Any]:
    if not run.reasoning:
        return {"reasoning_finding": None}
    return {"reasoning_finding": reasoning_finding(run.reasoning), "reasoning": reasoning_table(run.reasoning)}


def _selfplay(run: RunData) -> dict[str, Any]:
    warnings = [(play.name, line) for play in run.plays if play.health for line in play.health["warnings"]]
    return {"health": health_table(run.plays), "warnings": warnings}


def _games(run: RunData) -> dict[str, Any]:
    found = run.games_file()
    if found is None:
        return {"games_from": None}
    name, path = found
    has_prompts = run.config is not None and (run.config.game.prompts is None or run.config.game.prompts.is_file())
    prompts = prompts_of(run.config.game) if run.config and has_prompts else PromptSet.default()
    best, strangest = pick_games(read_episodes(path), prompts)
    return {"games_from": name, "shown_games": {"Best games": best, "Strangest games": strangest}}


def _clipped(text: str, span: tuple[int, int] | None) -> Markup:
    """Return an utterance as HTML with the deciding words marked, cut to the part around them when it is long."""
    start = max(0, span[0] - _BEFORE) if span and span[1] > _LONGEST else 0
    end = max(start + _LONGEST, span[1] if span else 0)
    shown = said(text[start:end], (span[0] - start, span[1] - start) if span else None)
    left = len(text) - end
    after = Markup(' <span class="cut">… {} more characters</span>').format(f"{left:,}") if left > 0 else Markup()
    return (Markup('<span class="cut">…</span> ') if start else Markup()) + shown + after


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("spag.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(visible=visible, clipped=_clipped)
    return made
