"""Results as tables on standard output, for any game: labels and order are those of its outcomes and figures."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from spag.algorithms.spag import RewardStats
from spag.cli.console import new_table
from spag.core.episodes import Episode
from spag.core.types import Result
from spag.core.visible import visible_text
from spag.display.figures import health_rows, is_contest, signed
from spag.engines.bot import BOT_PREFIX
from spag.engines.pricing import Price
from spag.evaluation.results import load_results
from spag.evaluation.stats import Rate
from spag.games.base import Game
from spag.games.registry import get, setting_hints
from spag.report.online_rows import evaluation_table, exact_table, score_table
from spag.report.rows import Cell, Noted, Table, change_table, cost_table, pair_table, reasoning_table, role_table
from spag.rollout.writer import PlaySummary
from spag.runs.folder import IMITATION, ONLINE, iterations, online_start
from spag.runs.reading import RunFolder


def _console() -> Console:
    return Console(highlight=False)


def _say(line: str, style: str = "") -> None:
    """Print a line that no text in it can break, mark up or turn around."""
    _console().print(Text(visible_text(line), style=style), soft_wrap=True)


def print_run(folder: Path) -> None:
    """Show what a finished run came to, and where to look next."""
    run = RunFolder.open(folder)
    _print_table("Stages", cost_table(run))
    if health := {play.name: play.health for play in run.plays if play.health}:
        print_health(health)
    if run.online:
        print_online(run)
    print_arena(folder / "arena" / "results.json")
    total = sum(stage["seconds"] for stage in run.stages.values()) / 60
    models = [f"{folder}/imitation/checkpoint"] if IMITATION in run.checkpoints() else []
    models += [f"{folder}/iteration-*/checkpoint"] if iterations(folder) else []
    models += [f"{folder}/{ONLINE}/checkpoint"] if run.online else []
    for line in (
        f"This run is complete: {total:.1f} minutes of work in {folder}/",
        f"  the games    spag judge {folder}/arena/episodes.jsonl --show 5",
        f"  the models   {', '.join(models)} (plain transformers folders)",
        f"  the figures  {folder}/arena/results.json, {folder}/*/metrics.jsonl",
    ):
        _say(line)


def print_online(run: RunFolder) -> None:
    """Show how the policy of the last online steps did against its opponents, its exact figures first and last, and signs of collapse."""
    start = online_start(run.config) if run.config else ""
    for game in run.online_games:
        known = {name: figures for name, figures in run.exact_figures(game).items() if name in (start, ONLINE)}
        named = f"{game.title}: " if len(run.online_games) > 1 else ""
        _print_table(f"{named}Online policy on held-out tasks (% with 95 % interval)", evaluation_table(run.evaluations, game))
        _print_table(f"{named}Online policy in both roles", score_table(run.evaluations, game))
        _print_table(f"{named}Exact figures of the policy", exact_table(run.evaluations, game, known))
    if stopped := run.stopped:
        _say(f"warning: online training stopped at {stopped}", "yellow")
    for sign in run.collapse if not stopped else ():
        _say(f"warning: online, {sign.when}: {sign.says}", "yellow")


def print_arena(path: Path) -> None:
    """Show the arena's rates by role, who beat whom, ratings, and what the last player does otherwise than the others."""
    results = load_results(path)
    game = get(results["game"])
    for role in game.roles:
        _print_table(f"As {role} (tasks of the held-out split, % with 95 % interval over tasks)", role_table(results, game, role))
    _print_matrix(game, results["matrix"])
    if is_contest(game):
        _print_table("Wins in both roles", pair_table(results))
        ratings = [(row["name"], _points(row)) for row in results["ratings"]]
        _print_rows("Elo rating (95 % interval)", ("player", "points over the first"), ratings)
    if results["paired"]:
        title = f"{results['ratings'][-1]['name']} on the same tasks, against the same opponents"
        _print_table(title, change_table(results, game))
    yardsticks = results["yardsticks"]
    names = list(dict.fromkeys(name for figures in yardsticks.values() for name in figures))
    exact = [(player, *(f"{figures[name]:.3f}" if name in figures else "-" for name in names)) for player, figures in yardsticks.items()]
    _print_rows("Exact figures of each model's policy", ("player", *(name.replace("_", " ") for name in names)), exact)


def _points(rating: Mapping[str, Any]) -> str:
    value, low, high = (signed(rating[key]) for key in ("points", "low", "high"))
    return f"{value} ({low} to {high})" if low != high else value


def print_reasoning(results: Mapping[str, Any]) -> None:
    """Show for every task and model: percent with standard error, and the difference to the first model with interval and p-value."""
    _print_table("Reasoning, % ± standard error", reasoning_table(results))
    if comparisons := (len(results["models"]) - 1) * len(results["tasks"]):
        _say("In brackets: 95 % bootstrap interval over the same items.")
        _say(f"p: exact McNemar (sign) test, not corrected for the {comparisons} comparisons.")


def _print_table(title: str, shown: Table) -> None:
    """Print a table of the report."""
    _print_rows(title, shown.columns, [tuple(map(_cell, row)) for row in shown.rows])


def _cell(cell: Cell) -> str | Text:
    if isinstance(cell, Rate):
        return f"{100 * cell.rate:.0f} ({100 * cell.low:.0f}-{100 * cell.high:.0f})"
    return Text("\n".join(map(visible_text, (cell.text, *cell.notes)))) if isinstance(cell, Noted) else cell or "-"


def _print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, texts: bool = False) -> None:
    """Print a table whose first column is text and the others figures, or ``texts`` too; nothing when there are no rows."""
    if not rows:
        return
    table = new_table(title, *columns)
    table.columns[0].no_wrap = True  # a name is cut last, when headers and figures are wrapped
    for column in table.columns if texts else ():
        column.justify, column.no_wrap = "left", column is not table.columns[-1]
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(visible_text(cell)) for cell in row))
    _console().print(table)


def _print_matrix(game: Game, cells: Sequence[Mapping[str, Any]]) -> None:
    shown = {
        tuple(cell["players"]): " / ".join(f"{100 * cell['outcomes'].get(name, 0) / cell['games']:.0f}" for name in game.outcomes)
        for cell in cells
    }
    names = list(dict.fromkeys(name for players in shown for name in players))
    title = "% " + " / ".join(outcome.label for outcome in game.outcomes.values())
    rows = [(name, *(shown.get((name, other), "") for other in names)) for name in names]
    _print_rows(title, (" \\ ".join(game.roles), *names), rows)


def print_health(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Show what ``health`` gave, a column for each name, and the warnings below."""
    _print_rows("Health of play", ("", *figures), health_rows(figures))
    warnings = [f"warning: {name}: {line}" for name, one in figures.items() for line in one["warnings"]]
    for warning in warnings:
        _say(warning, "yellow")
    if warnings:
        _console().print()


def print_games(games: Iterable[Game]) -> None:
    """List games by name."""
    rows = [(game.name, ", ".join(game.roles), game.summary) for game in games]
    _print_rows("Games", ("name", "roles", "summary"), rows, texts=True)


def print_game_details(game: Game) -> None:
    """Show what a game brings: roles, outcomes, settings and bots."""
    _say(f"{game.title}: {game.summary}")
    outcomes = [(name, one.label, one.rule) for name, one in game.outcomes.items()]
    hints = setting_hints(game.name).items()
    settings = [(f"game.{name}", json.dumps(hint.get("default")), hint.get("description", "")) for name, hint in hints]
    _print_rows("Roles", ("role", "task"), [(role, game.role_help[role]) for role in game.roles], texts=True)
    _print_rows("Outcomes", ("outcome", "label", "rule"), outcomes, texts=True)
    _print_rows("Settings", ("option", "default", "meaning"), settings, texts=True)
    _print_rows("Bots", ("player",), [(f"{BOT_PREFIX}{name}",) for name in game.bots], texts=True)


def print_play(summary: PlaySummary, game: Game, price: Price | None) -> None:
    """Show what was played, its tokens, and their cost when the price is known."""
    stats = summary.stats
    _say(f"{summary.games} games in the file, {summary.played_now} played now: {summary.describe(game)}")
    _say(
        f"{stats.utterances} utterances, {stats.empty} empty, {stats.retries} drawn again, "
        f"{stats.prompt_tokens:,} prompt and {stats.completion_tokens:,} completion tokens"
    )
    if price:
        _say(f"cost: {price.cost_usd(stats.prompt_tokens, stats.completion_tokens):.4f} USD")


def print_outcomes(game: Game, stats: RewardStats) -> None:
    """Show games by outcome, and the samples that they hold: what the published code prints when it assigns rewards."""
    total = stats.outcomes.total()
    table = new_table(f"{total:,} games, {stats.utterances / max(total, 1):.1f} utterances on average", "outcome", "games", "share")
    for name, outcome in game.outcomes.items():
        table.add_row(outcome.label, f"{stats.outcomes[name]:,}", f"{100 * stats.outcomes[name] / max(total, 1):.1f} %")
    _console().print(table)
    decided = sum(stats.outcomes[name] for name, outcome in game.outcomes.items() if outcome.winners)
    samples, empty = stats.samples.total(), stats.empty_completions
    _print_samples(game, stats, f"{samples:,} samples of {decided:,} games")
    _say(f"with the {empty:,} empty utterances that training leaves out: {samples + empty:,} samples")


def print_rewards(game: Game, stats: RewardStats, sft_rows: int) -> None:
    """Show games won, samples and weights by role, and the games that nobody won."""
    _print_samples(game, stats, f"{stats.outcomes.total():,} games, {stats.samples.total():,} samples, {sft_rows:,} SFT rows")
    undecided = [f"{one.label} {stats.outcomes[one.name]:,}" for one in game.outcomes.values() if not one.winners]
    _say(", ".join((*undecided, f"empty utterances left out {stats.empty_completions:,}")))


def _print_samples(game: Game, stats: RewardStats, title: str) -> None:
    table = new_table(title, "role", "games won", "samples", "weight")
    for role in game.roles:
        table.add_row(role, f"{stats.wins[role]:,}", f"{stats.samples[role]:,}", f"{stats.role_weights.get(role, 0):.3f}")
    _console().print(table)


def print_game(game: Game, episode: Episode, result: Result) -> None:
    """Show one game as a dialogue with the judge's reason.

    What was said stays in a column of its own, so that no line break in it passes for another player's line or for the verdict.
    """
    talk = Grid.grid(padding=(0, 2, 0, 0))
    talk.add_column(justify="right", no_wrap=True)
    talk.add_column(overflow="fold")
    for said in episode.history[: result.length]:
        style = "cyan" if said.role == game.roles[0] else "magenta"
        talk.add_row(Text(visible_text(said.role), style=style), Text(visible_text(said.content, lines=True)))
    verdict = f"{game.outcomes[result.outcome].label}: {result.reason}"
    talk.add_row(Text("verdict", style="italic"), Text(visible_text(verdict), style="italic"))
    _say(f"{game.title}: {game.describe_task(episode.task)}", "bold")
    _console().print(talk)
    _console().print()
