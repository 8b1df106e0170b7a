"""The page: data, plots and games put into the template, and written as ``report/index.html`` of the run folder."""

from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from spag.core.episodes import read_episodes
from spag.core.store import write_atomically
from spag.display.figures import is_contest
from spag.display.html import environment, game_style, theme
from spag.games.base import Game
from spag.report import charts, online_charts
from spag.report.findings import FEW_TASKS, arena_findings, exact_sentence, reasoning_finding, sentence
from spag.report.online_rows import evaluation_table, exact_table, score_table, time_table
from spag.report.plots import Plot, plot_style, save_plot
from spag.report.readable import ReadableRun
from spag.report.rows import change_table, cost_table, health_table, pair_table, reasoning_table, role_table, versions
from spag.report.showcase import pick_games
from spag.runs.folder import ONLINE, online_start
from spag.runs.reading import RunFolder
from spag.runs.records import STEP_SOURCE

_LONGEST = 1500  # characters of an utterance that the page shows


def write_report(run_folder: Path, note: Callable[[str], None] = lambda line: None) -> Path:
    """Write ``run_folder/report/index.html`` and ``plots/`` beside it; return the page's path.

    What the run does not have yet is left out or named as missing, and so is what cannot be read: ``note`` is told, too. Raises
    ``RunError`` when the folder is no run, and ``StorageError`` when the report cannot be written.
    """
    RunFolder.open(run_folder)
    run = ReadableRun(run_folder)
    folder = run_folder / "report"
    with plot_style():
        plots = {plot.name: plot for plot in _plots(run, folder / "plots")}
    style = resources.files("spag.report") / "templates" / "style.css"
    parts = {**_arena(run), **_reasoning(run), **_online(run), **_games(run)}
    health = health_table(run)
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
            health=health,
            warnings=[(play.name, line) for play in run.plays if play.health for line in play.health["warnings"]],
            settings=(run_folder / "config.yaml").read_text(encoding="utf-8") if run.config else "",
            longest=_LONGEST,
            collapse=run.collapse,
            finished=run.finished,
            damage=run.damage,
            **parts,
        )
    )
    for line in run.damage:
        note(line)
    path = folder / "index.html"
    write_atomically(path, page)
    return path


def _plots(run: ReadableRun, folder: Path) -> Iterator[Plot]:
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
    yield from _online_plots(run, folder)
    for name, rows in run.training.items():
        yield save_plot(charts.training_curves(name, rows, run.game), f"training-{name}", f"Training curves of {name}", folder)


def _online_plots(run: ReadableRun, folder: Path) -> Iterator[Plot]:
    if not run.online:
        return
    start = online_start(run.config) if run.config else ""
    for game in run.online_games:
        name, evaluations = _file_name(game.name), [row for row in run.evaluations if row["game"] == game.name]
        curves = online_charts.role_curves(run.online, game)
        yield save_plot(curves, f"online-{name}", f"Figures of the games of each online step by role, {game.title}", folder)
        if evaluations:
            curves = online_charts.evaluation_curves(evaluations, game)
            yield save_plot(curves, f"online-{name}-evaluations", f"Evaluations between online steps by role, {game.title}", folder)
        if any(row["exact"] for row in evaluations):
            curves = online_charts.exact_curves(evaluations, game, start, run.exact_figures(game), ONLINE)
            yield save_plot(curves, f"online-{name}-exact", f"Exact figures of the policy by online step, {game.title}", folder)
    yield save_plot(online_charts.distances(run.online), "online-training", "Training figures by online step", folder)


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in name)


def _online(run: ReadableRun) -> dict[str, Any]:
    """Return the tables of online training by game, and where its time went."""
    if not run.online:
        return {"online": None}
    tables = {
        game: {
            "evaluations": evaluation_table(run.evaluations, game),
            "scores": score_table(run.evaluations, game),
            "exact": exact_table(run.evaluations, game, run.exact_figures(game)),
        }
        for game in run.online_games
    }
    return {
        "online": run.online,
        "online_plots": {game: [f"online-{_file_name(game.name)}{kind}" for kind in ("", "-evaluations", "-exact")] for game in tables},
        "online_tables": tables,
        "online_time": time_table(run.online),
        "evaluating_s": sum(row["evaluate_s"] for row in run.online if charts.is_number(row.get("evaluate_s"))),
    }


def _arena(run: ReadableRun) -> dict[str, Any]:
    arena, game = run.arena, run.game
    if not arena:
        return {"arena": None}
    player, found = arena_findings(arena, game)
    return {
        "arena": arena,
        "player": player,
        "sentence": sentence(player, found),
        "findings": found,
        "exact": exact_sentence(run.exact_figures(game)),
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


def _reasoning(run: ReadableRun) -> dict[str, Any]:
    if not run.reasoning:
        return {"reasoning_finding": None}
    return {"reasoning_finding": reasoning_finding(run.reasoning), "reasoning": reasoning_table(run.reasoning)}


def _games(run: ReadableRun) -> dict[str, Any]:
    """Return games of the last online step or iteration, or of the arena."""
    kinds = ("iteration-", STEP_SOURCE, "arena")
    found = [source for source in run.sources() if source.name.startswith(kinds) and source.path.stat().st_size]
    if not found:
        return {"games_from": None}
    source = next((one for one in reversed(found) if one.name != "arena"), found[-1])
    episodes = (episode for episode in read_episodes(source.path) if episode.game == run.game.name)  # online steps may mix games
    picked = run.part(lambda: pick_games(episodes, run.game), None)
    if picked is None:
        return {"games_from": None}
    return {"games_from": source.name, "shown_games": dict(zip(("Best games", "Strangest games"), picked, strict=True))}
