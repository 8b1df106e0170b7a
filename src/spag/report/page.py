"""The page: fills data, plots and games into the template, and writes ``report/index.html`` of the run folder."""

from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from spag.games.base import Game, is_competitive
from spag.report import charts, curves, run_tables
from spag.report.arena_tables import change_table, exact_table, pair_table, role_table
from spag.report.cells import is_number
from spag.report.headline import FEW_TASKS, arena_findings, caveats, exact_sentence, reasoning_finding, sentence
from spag.report.html import environment, game_style, plain_name
from spag.report.plot_files import plot_style, remove_others, save_plot
from spag.report.readable import ReadableRun
from spag.report.showcase import pick_games
from spag.runs.reading import RunFolder
from spag.runs.records import GameFile, OnlinePhase
from spag.storage.episodes import read_episodes
from spag.storage.store import write_atomically

_LONGEST = 1500  # characters shown of an utterance
Drawn = Iterator[tuple[str, str, str, Figure]]
"""Plots with their places in the template, file names and captions."""


def write_report(run_folder: Path, note: Callable[[str], None] = lambda line: None) -> Path:
    """Write ``run_folder/report/index.html`` and ``report/plots/``; return the page's path.

    Missing parts of the run are left out or named as missing; so are unreadable ones, which are also passed to
    ``note``. Raises ``RunError`` if the folder is not a run, and ``StorageError`` if the report cannot be written.
    """
    run = ReadableRun(RunFolder.open(run_folder))
    folder = run_folder / "report"
    with plot_style():
        plots = [(at, name, save_plot(figure, name, says, folder / "plots")) for at, name, says, figure in _plots(run)]
    remove_others(folder / "plots", [name for _, name, _ in plots])
    sheets = (resources.files("spag.report") / name for name in ("static/theme.css", "templates/style.css"))
    styles = [*(sheet.read_text(encoding="utf-8") for sheet in sheets), game_style(*run.games.values())]
    shown = {
        "run": run,
        "plots": [(at, plot) for at, _, plot in plots],
        "style": Markup("\n".join(styles)),
        "versions": run_tables.versions(run),
        "cost": run_tables.cost_table(run),
        "settings": (run_folder / "config.yaml").read_text(encoding="utf-8") if run.config else "",
        "longest": _LONGEST,
        "reasoning_finding": reasoning_finding(run.reasoning) if run.reasoning else None,
        "reasoning": run_tables.reasoning_table(run.reasoning) if run.reasoning else None,
        "online": [_online_phase(run, phase) for phase in _shown_online(run)],
    }
    parts = _arena(run) | _selfplay(run) | _games(run)
    path = folder / "index.html"
    write_atomically(path, environment("spag.report").get_template("report.html").render(shown | parts))
    for line in run.damage:
        note(line)
    return path


def _plots(run: ReadableRun) -> Drawn:
    if run.arena:
        if is_competitive(run.game):
            rated = charts.ratings(run.arena["ratings"])
            yield "ratings", "ratings", "Elo points of the players with 95 % intervals", rated
        says = f"Share of games that the {run.game.roles[0]} wins, by pairing"
        yield "win-matrix", "win-matrix", says, charts.win_matrix(run.arena["matrix"], run.game)
    if run.reasoning:
        labels = {task: about["label"] for task, about in run.reasoning["tasks"].items()}
        figures = {name: model["tasks"] for name, model in run.reasoning["models"].items()}
        says = "Reasoning scores by task and model with 95 % intervals"
        yield "reasoning-bars", "reasoning-bars", says, charts.reasoning_bars(labels, figures)
    played_by = run.plays_by_game()
    for game, plays in played_by:
        name = f"outcomes-{plain_name(game)}" if len(played_by) > 1 else "outcomes"
        says = f"How self-play games of {game.title} ended, by iteration"
        yield f"outcomes {game.name}", name, says, charts.outcome_shares(plays, game)
    phases = _shown_online(run)
    for phase in phases:
        yield from _online_plots(run, phase, f"online-{phase.name}" if len(phases) > 1 else "online")
    played = {model.name: model.games[0] for model in run.models}
    for name, rows in run.training.items():
        figure = curves.training_curves(name, rows, played[name])
        yield "training", f"training-{name}", f"Training curves of {name}", figure


def _shown_online(run: ReadableRun) -> list[OnlinePhase]:
    """Return the online phases that have finished a step."""
    return [phase for phase in run.online_phases if phase.rows]


def _online_plots(run: ReadableRun, phase: OnlinePhase, stem: str) -> Drawn:
    """Yield the plots of a phase; their file names begin with ``stem``."""
    for game in phase.games:
        place, name = f"{phase.name} {game.name}", f"{stem}-{plain_name(game)}"
        evaluations = [row for row in phase.evaluations if row["game"] == game.name]
        if any(key.startswith(f"{game.name}/{role}/") for row in phase.rows for key in row for role in game.roles):
            says = f"Metrics of each online step's games by role, {game.title}"
            yield place, name, says, curves.role_curves(phase.rows, game)
        if evaluations:
            says = f"Evaluations between online steps by role, {game.title}"
            yield place, f"{name}-evaluations", says, curves.evaluation_curves(evaluations, game)
        if any(row["exact"] for row in evaluations):
            figure = curves.exact_curves(evaluations, game, run.exact_figures(game), phase)
            yield place, f"{name}-exact", f"Exact metrics of the policy by online step, {game.title}", figure
    figure = curves.training_curves("Training", phase.rows, phase.games[0], online=True)
    yield place, f"{stem}-training", "Training metrics by online step", figure


def _arena(run: ReadableRun) -> dict[str, Any]:
    arena, game = run.arena, run.game
    if not arena:
        return {"arena": None}
    player, found = arena_findings(arena, game)
    compared = [*([pair_table(arena)] if is_competitive(game) else []), change_table(arena, game)]
    exact = exact_table(arena["exact_metrics"], thinking=arena.get("thinking", False))
    return {
        "arena": arena,
        "sentence": sentence(player, found, caveats(arena, game, found, run.steps_of(player))) if found else "",
        "findings": found,
        "exact": exact_sentence(arena),
        "few_tasks": arena["tasks"] < FEW_TASKS,
        "arena_games": sum(cell["games"] for cell in arena["matrix"]),
        "arena_note": run_tables.arena_note(run),
        "wins_of_first": [one.label for one in game.outcomes.values() if game.roles[0] in one.winners],
        "role_tables": [role_table(arena, game, role) for role in game.roles],
        "comparisons": [*compared, *([exact] if exact.rows else [])],
    }


def _selfplay(run: ReadableRun) -> dict[str, Any]:
    health = {play.name: play.health for play in run.plays if play.health}
    return {
        "health": run_tables.health_tables(health),
        "warnings": [(name, line) for name, found in health.items() for line in found["warnings"]],
    }


def _online_phase(run: ReadableRun, phase: OnlinePhase) -> dict[str, Any]:
    """Return the tables of a phase's games, and where its time went."""
    return {
        "phase": phase,
        "tables": {game: run_tables.evaluation_tables(phase, game, run.exact_figures(game)) for game in phase.games},
        "time": run_tables.time_table(phase.rows),
        "evaluating_s": sum(row["evaluate_s"] for row in phase.rows if is_number(row.get("evaluate_s"))),
    }


def _games(run: ReadableRun) -> dict[str, Any]:
    """Return games of the last online step or iteration, or of the arena."""
    names = {"arena", *(play.name for play in run.plays)}
    last = run.online_phases[-1].name if run.online_phases else ""
    played = (one for one in run.sources() if one.name in names or (one.step is not None and one.phase == last))
    found = [source for source in played if source.path.stat().st_size]
    if not found:
        return {"games_from": None}
    source = next((one for one in reversed(found) if one.name != "arena"), found[-1])
    game = _game_of(run, source)
    episodes = read_episodes(source.path, torn_ok=True)
    own = (one for one in episodes if one.game == game.name)  # online steps may mix games
    if source.name == "arena" and run.arena:
        names = {row["name"] for row in run.arena["ratings"]}  # the file may have games of former entrants
        own = (one for one in own if names.issuperset(info.model for info in one.players.values()))
    picked = run.part(lambda: pick_games(own, game), None)
    if not picked:
        return {"games_from": None}
    return {"games_from": source.name, "shown_game": game, "best": picked}


def _game_of(run: ReadableRun, source: GameFile) -> Game:
    """Return the game of a file from which the page shows games: the run's, unless the file's phase plays others."""
    models = [model for model in run.models if model.name in (source.name, source.phase)]
    played = {game.name: game for model in models for game in model.games}
    return played.get(run.game.name) or next(iter(played.values()), run.game)
