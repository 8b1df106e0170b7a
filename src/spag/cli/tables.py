"""Results as tables on standard output, for any game: labels and order are those of its outcomes and figures."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from spag.algorithms.spag import RewardStats
from spag.cli.console import new_table
from spag.core.episodes import Episode
from spag.core.types import Result
from spag.display.figures import health_rows, is_contest, p_value, paired_labels, role_columns
from spag.engines.bot import BOT_PREFIX
from spag.engines.pricing import Price
from spag.evaluation.results import load_results
from spag.games.base import Game
from spag.games.registry import get, setting_hints
from spag.rollout.writer import PlaySummary
from spag.runs.reading import RunFolder

_RATES = 5
"""Rates with intervals that fit beside a name in 80 columns."""
_PAIR_WIDTH = 20
"""Longer pairs of names take two lines."""


def _console() -> Console:
    return Console(highlight=False)


def print_run(folder: Path) -> None:
    """Show what a finished run came to, and where to look next."""
    run = RunFolder.open(folder)
    table = new_table("Stages", "stage", "time")
    table.add_column("result")
    for name, stage in run.stages.items():
        table.add_row(name, f"{stage['seconds'] / 60:.1f} min", Text(_stage_line(run.game, stage["results"])))
    _console().print(table)
    if health := {play.name: play.health for play in run.plays if play.health}:
        print_health(health)
    print_arena(folder / "arena" / "results.json")
    total = sum(stage["seconds"] for stage in run.stages.values()) / 60
    for line in (
        f"This run is complete: {total:.1f} minutes of work in {folder}/",
        f"  the games    spag judge {folder}/arena/episodes.jsonl --show 5",
        f"  the models   {folder}/imitation/checkpoint, {folder}/iteration-*/checkpoint (plain transformers folders)",
        f"  the figures  {folder}/arena/results.json, {folder}/*/metrics.jsonl",
    ):
        _console().print(line, soft_wrap=True, markup=False)


def _stage_line(game: Game, results: Mapping[str, Any]) -> str:
    if "outcomes" in results and "games" in results:
        counts = results["outcomes"]
        shown = "  ".join(f"{outcome.label} {counts[name]}" for name, outcome in game.outcomes.items() if name in counts)
        return f"{results['games']} games: {shown}"
    if "role_weights" in results:
        weights = {role: f" (weight {weight})" for role, weight in results["role_weights"].items()}  # ties have none
        counts = "  ".join(f"{role} {count}{weights.get(role, '')}" for role, count in results["samples"].items())
        return f"samples: {counts}" + (f"  sft {results['sft']}" if results.get("sft") else "")
    if "steps" in results:
        return f"{results['steps']} steps on {results['samples']} samples, loss {results['metrics'].get('loss', float('nan')):.3f}"
    return ", ".join(f"{value} {key}" for key, value in results.items())


def print_arena(path: Path) -> None:
    """Show the arena's rates by role, who beat whom, ratings, and what differs by more than chance."""
    results = load_results(path)
    game = get(results["game"])
    for role in game.roles:
        shown = role_columns(game, role)
        shown |= {"empty": ("empty", 100)} if len(shown) < _RATES else {}
        rows = [
            (row["name"], str(row["games"]), *(_rate(row.get(key), scale) for key, (_, scale) in shown.items()))
            for row in results["roles"]
            if row["role"] == role
        ]
        columns = ("player", "games", *(label for label, _ in shown.values()))
        _print_rows(f"As {role} (held-out tasks, % with 95 % interval over tasks)", columns, rows)
    _print_matrix(game, results["matrix"])
    if is_contest(game):
        _print_rows(
            "Wins in both roles, difference in points of 100 games (undecided: ½)",
            ("players", "games", "first", "second", "undecided", "difference", "p"),
            [_head_to_head(row) for row in results["pairs"]],
        )
        ratings = [(row["name"], _interval(row["points"], row["low"], row["high"])) for row in results["ratings"]]
        _print_rows("Elo rating (95 % interval)", ("player", "points over the first"), ratings)
    _print_paired(game, results["paired"])
    yardsticks = results["yardsticks"]
    names = list(dict.fromkeys(name for figures in yardsticks.values() for name in figures))
    exact = [(player, *(f"{figures[name]:.3f}" if name in figures else "-" for name in names)) for player, figures in yardsticks.items()]
    _print_rows("Exact figures of each model's policy", ("player", *(name.replace("_", " ") for name in names)), exact)


def _print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text and the others figures; nothing when there are no rows."""
    if not rows:
        return
    table = new_table(title, *columns)
    table.columns[0].no_wrap = True  # a name is cut last, when headers and figures are wrapped
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
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


def _print_paired(game: Game, rows: Sequence[Mapping[str, Any]]) -> None:
    pairs: dict[str, dict[tuple[str, str], str]] = {}
    for row in rows:
        first, second = (f"{100 * row[side]['rate']:.0f}" for side in ("one", "other"))
        cell = f"{first} - {second}  p {p_value(row['difference']['p_value'])}"
        pairs.setdefault(_pair(row), {})[row["role"], row["outcome"]] = cell
    labels = paired_labels(game)
    shown = [(players, *(cells.get(key, "-") for key in labels)) for players, cells in pairs.items()]
    _print_rows("On the same tasks, against the same opponents (%)", ("players", *labels.values()), shown)


def _head_to_head(row: Mapping[str, Any]) -> tuple[str, ...]:
    score = row["score"]
    shown = (_interval(100 * score["mean"], 100 * score["low"], 100 * score["high"]), p_value(score["p_value"])) if score else ("-", "-")
    return (_pair(row), *(str(count) for count in (row["games"], *row["wins"], row["undecided"])), *shown)


def _pair(row: Mapping[str, Any]) -> str:
    text = " - ".join(row["players"])
    return text if len(text) <= _PAIR_WIDTH else " -\n".join(row["players"])


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:+.0f} ({low:+.0f} to {high:+.0f})" if low < high else f"{value:.0f}"


def print_health(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Show what ``health`` gave, a column for each name, and the warnings below."""
    _print_rows("Health of play", ("", *figures), health_rows(figures))
    warnings = [f"warning: {name}: {line}" for name, one in figures.items() for line in one["warnings"]]
    for warning in warnings:
        _console().print(Text(warning, style="yellow"), soft_wrap=True)
    if warnings:
        _console().print()


def _rate(rate: Mapping[str, float] | None, scale: int) -> str:
    """Show a share in per cent with its interval (``scale`` 100), or a mean count (``scale`` 1)."""
    if not rate or not rate["total"]:
        return "-"
    return f"{100 * rate['rate']:.0f} ({100 * rate['low']:.0f}-{100 * rate['high']:.0f})" if scale == 100 else f"{rate['rate']:.1f}"


def print_games(games: Iterable[Game]) -> None:
    """List games by name."""
    _print_texts("Games", ("name", "roles", "summary"), [(game.name, ", ".join(game.roles), game.summary) for game in games])


def print_game_details(game: Game) -> None:
    """Show what a game brings: roles, outcomes, settings and bots."""
    _console().print(f"{game.title}: {game.summary}", soft_wrap=True, markup=False)
    _print_texts("Roles", ("role", "task"), [(role, game.role_help[role]) for role in game.roles])
    _print_texts("Outcomes", ("outcome", "label", "rule"), [(name, one.label, one.rule) for name, one in game.outcomes.items()])
    hints = setting_hints(game.name).items()
    settings = [(f"game.{name}", json.dumps(hint.get("default")), hint.get("description", "")) for name, hint in hints]
    _print_texts("Settings", ("option", "default", "meaning"), settings)
    _print_texts("Bots", ("player",), [(f"{BOT_PREFIX}{name}",) for name in game.bots])


def _print_texts(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of texts; nothing when there are no rows."""
    if not rows:
        return
    table = new_table(title, *columns)
    for column in table.columns:
        column.justify, column.no_wrap = "left", column is not table.columns[-1]
    for row in rows:
        table.add_row(*map(Text, row))
    _console().print(table)


def print_play(summary: PlaySummary, game: Game, price: Price | None) -> None:
    """Show what was played, its tokens, and their cost when the price is known."""
    console, stats = _console(), summary.stats
    console.print(f"{summary.games} games in the file, {summary.played_now} played now: {summary.describe(game)}", soft_wrap=True)
    console.print(
        f"{stats.utterances} utterances, {stats.empty} empty, {stats.retries} drawn again, "
        f"{stats.prompt_tokens:,} prompt and {stats.completion_tokens:,} completion tokens",
        soft_wrap=True,
    )
    if price:
        console.print(f"cost: {price.cost_usd(stats.prompt_tokens, stats.completion_tokens):.4f} USD")


def print_outcomes(game: Game, results: Iterable[Result]) -> None:
    """Count results by outcome."""
    counts, length = Counter[str](), 0
    for result in results:
        counts[result.outcome] += 1
        length += result.length
    total = counts.total()
    table = new_table(f"{total:,} games, {length / max(total, 1):.1f} utterances on average", "outcome", "games", "share")
    for name, outcome in game.outcomes.items():
        table.add_row(outcome.label, f"{counts[name]:,}", f"{100 * counts[name] / max(total, 1):.1f} %")
    _console().print(table)


def print_rewards(game: Game, stats: RewardStats, sft_rows: int) -> None:
    """Show games won, samples and weights by role, and the games that nobody won."""
    title = f"{stats.outcomes.total():,} games, {stats.samples.total():,} samples, {sft_rows:,} SFT rows"
    table = new_table(title, "role", "games won", "samples", "weight")
    for role in game.roles:
        table.add_row(role, f"{stats.wins[role]:,}", f"{stats.samples[role]:,}", f"{stats.role_weights.get(role, 0):.3f}")
    _console().print(table)
    undecided = [f"{one.label} {stats.outcomes[one.name]:,}" for one in game.outcomes.values() if not one.winners]
    _console().print(", ".join((*undecided, f"empty utterances left out {stats.empty_completions:,}")), soft_wrap=True)


def print_game(game: Game, episode: Episode, result: Result) -> None:
    """Show one game as a dialogue with the judge's reason. Texts are printed as they are, never as markup."""
    console, width = _console(), max(map(len, game.roles))
    console.print(Text(f"{game.title}: {_printable(game.describe_task(episode.task))}", style="bold"))
    for said in episode.history[: result.length]:
        style = "cyan" if said.role == game.roles[0] else "magenta"
        console.print(Text.assemble((f"{said.role:>{width}}  ", style), _printable(said.content)))
    console.print(Text(f"  verdict  {game.outcomes[result.outcome].label}: {_printable(result.reason)}\n", style="italic"))


def _printable(text: str) -> str:
    """Replace control characters, so that a model's output cannot drive the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)
