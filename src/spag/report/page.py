"""The page: data, plots and games put into the template, and written as ``report/index.html`` of the run folder."""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from spag.core.episodes import read_episodes
from spag.core.store import write_atomically
from spag.display.figures import is_contest
from spag.display.html import environment, game_style, theme
from spag.games.base import Game
from spag.report import charts
from spag.report.findings import FEW_TASKS, arena_findings, reasoning_finding, sentence
from spag.report.plots import Plot, plot_style, save_plot
from spag.report.rows import change_table, cost_table, health_table, pair_table, reasoning_table, role_table, versions
from spag.report.showcase import pick_games
from spag.runs.reading import RunFolder

_LONGEST = 1500  # characters of an utterance that the page shows


def write_report(run_folder: Path) -> Path:
    """Write ``run_folder/report/index.html`` and ``plots/`` beside it; return the page's path.

    What the run does not have yet is left out or named as missing. Raises ``RunError`` when the folder is no run, ``DataError`` or
    ``ConfigError`` for a broken file in it, and ``StorageError`` when the report cannot be written.
    """
    run = RunFolder.open(run_folder)
    folder = run_folder / "report"
    with plot_style():
        plots = {plot.name: plot for plot in _plots(run, folder / "plots")}
    style = resources.files("spag.report") / "templates" / "style.css"
    page = (
        environment("spag.report")
        .get_template("report.html")
        .render(
            run=run,
            game=run.game,
            plots=plots,
            style=Markup("\n".join((theme(), style.read_text(encoding="utf-8"), game_style(run.game)))),
            versions=versions(run),
            cost=cost_table(run),
            health=health_table(run),
            warnings=[(play.name, line) for play in run.plays if play.health for line in play.health["warnings"]],
            settings=(run_folder / "config.yaml").read_text(encoding="utf-8") if run.config else "",
            longest=_LONGEST,
            **_arena(run),
            **_reasoning(run),
            **_games(run),
        )
    )
    path = folder / "index.html"
    write_atomically(path, page)
    return path


def _plots(run: RunFolder, folder: Path) -> Iterator[Plot]:
    if run.arena:
        first = run.game.roles[0]
        if is_contest(run.game):
            yield save_plot(charts.ratings(run.arena["ratings"]), "ratings", "Elo points of the players with 95 % intervals", folder)
        matrix = charts.win_matrix(run.arena["matrix"], run.game)
        yield save_plot(matrix, "win-matrix", f"Share of games that the {first} wins, by pairing", folder)
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
        yield save_plot(charts.outcome_shares(run.plays, run.game), "outcomes", "How self-play games ended, by iteration", folder)
    for name, rows in run.training.items():
        yield save_plot(charts.training_curves(name, rows, run.game), f"training-{name}", f"Training curves of {name}", folder)


def _arena(run: RunFolder) -> dict[str, Any]:
    arena, game = run.arena, run.game
    if not arena:
        return {"arena": None}
    player, found = arena_findings(arena, game)
    return {
        "arena": arena,
        "player": player,
        "sentence": sentence(player, found),
        "findings": found,
        "few_tasks": arena["tasks"] < FEW_TASKS,
        "games": sum(cell["games"] for cell in arena["matrix"]),
        "matrix_caption": _matrix_caption(game),
        "role_tables": {role: role_table(arena, game, role) for role in game.roles},
        "pairs": pair_table(arena) if is_contest(game) else None,
        "changes": change_table(arena, game),
    }


def _matrix_caption(game: Game) -> str:
    won = [outcome.label for outcome in game.outcomes.values() if game.roles[0] in outcome.winners]
    other = [outcome.label for outcome in game.outcomes.values() if outcome.label not in won]
    return f"Large: {', '.join(won)}. Small: {' · '.join(other)}. All in % of games."


def _reasoning(run: RunFolder) -> dict[str, Any]:
    if not run.reasoning:
        return {"reasoning_finding": None}
    return {"reasoning_finding": reasoning_finding(run.reasoning), "reasoning": reasoning_table(run.reasoning)}


def _games(run: RunFolder) -> dict[str, Any]:
    """Return games of the last iteration, or of the arena."""
    found = [source for source in run.sources() if source.name.startswith(("iteration-", "arena")) and source.path.stat().st_size]
    if not found:
        return {"games_from": None}
    source = next((one for one in reversed(found) if one.name != "arena"), found[-1])
    best, strangest = pick_games(read_episodes(source.path), run.game)
    return {"games_from": source.name, "shown_games": {"Best games": best, "Strangest games": strangest}}
