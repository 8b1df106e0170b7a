"""Results on standard output, for any game; ``spag.report`` builds the tables, and this module prints them."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from spag.algorithms.winners import RewardStats
from spag.core.episodes import Episode
from spag.core.types import Split
from spag.core.visible import counted, visible_text
from spag.engines.players import bot_names
from spag.evaluation.intervals import Rate
from spag.evaluation.result_files import load_results
from spag.games.base import Game
from spag.games.registry import get, setting_hints
from spag.report.arena_tables import arena_tables
from spag.report.cells import Cell, DetailedCell, Table
from spag.report.run_tables import arena_note, cost_table, evaluation_tables, health_tables, reasoning_table
from spag.rollout.writer import PlaySummary
from spag.runs.layout import BASE
from spag.runs.reading import RunFolder

_LEAST_NAME = 12
"""Columns to which a name is folded, at least, where a table is too wide."""
_GAP = 2
"""Columns between two columns of a table, and at its edges together."""
SHOWN_THOUGHT = 300
"""Characters shown of a thought in the terminal; report and web pages show all of it."""


def print_table(shown: Table) -> None:
    """Print a table, for 80 columns; nothing when it has no rows."""
    if not shown.rows:
        return
    title = Text(visible_text(shown.title)) if shown.title else None
    table = Grid(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, label in enumerate(shown.columns, start=1):
        is_text = number <= shown.texts
        is_name = number == 1 or (is_text and number < len(shown.columns))
        table.add_column(Text(visible_text(label)), justify="left" if is_text else "right", no_wrap=is_name)
    for row in shown.rows:
        if shown.last_is_total and row is shown.rows[-1]:
            table.add_section()
        table.add_row(*map(_cell, row))
    console = _console()
    console.width = _fit(table, console.width)
    console.print(table)


def _fit(table: Grid, width: int) -> int:
    """Fit a table into ``width`` columns, and return how wide it is.

    Columns are narrowed from the widest on, down to their longest word; names (``no_wrap``) stay whole while others can
    give, and are then folded. No number is ever cut: what is wider than the terminal stays so.
    """
    texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    full = [max(cell_len(line) for text in own for line in text.splitlines() or [""]) for own in texts]
    room = width - _GAP * len(full)
    if sum(full) <= room:
        return width
    words = [max(_longest_word(*own), min(_LEAST_NAME, _longest_word(head))) for head, *own in texts]
    columns = [*zip(table.columns, full, words, strict=True)]
    least = [size if column.no_wrap else word for column, size, word in columns]
    if sum(least) > room:
        least = [min(size, _LEAST_NAME) if column.no_wrap else word for column, size, word in columns]
    narrowed = [*full]
    while sum(narrowed) > room and narrowed != least:
        wide = [place for place, size in enumerate(narrowed) if size > least[place]]
        narrowed[max(wide, key=narrowed.__getitem__)] -= 1
    for (column, size, _), given in zip(columns, narrowed, strict=True):
        column.width, column.overflow, column.no_wrap = given, "fold", column.no_wrap and given == size
    return max(width, sum(narrowed) + _GAP * len(full))


def _longest_word(*texts: str) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _cell(cell: Cell) -> Text:
    if isinstance(cell, Rate):
        return Text(f"{100 * cell.rate:.0f} ({100 * cell.low:.0f}-{100 * cell.high:.0f})")
    lines = (cell.text, *cell.details) if isinstance(cell, DetailedCell) else ("-" if cell is None else cell,)
    return Text("\n".join(map(visible_text, lines)))


def _console() -> Console:
    return Console(highlight=False)


def _say(line: str, style: str = "") -> None:
    """Print a line; text in it cannot break, mark up or reverse the line."""
    _console().print(Text(visible_text(line), style=style), soft_wrap=True)


def print_run(folder: Path) -> None:
    """Show the results of a finished run, and where to look next."""
    run = RunFolder.open(folder)
    print_table(cost_table(run))
    if health := {play.name: play.health for play in run.plays if play.health}:
        print_health(health)
    print_online(run)
    if note := arena_note(run):
        _say(note)
    if run.arena:
        print_arena(folder / "arena" / "results.json")
    else:
        _say(f"{folder}/arena: the results are gone; spag run --force replays the arena")
    total = sum(stage["seconds"] for stage in run.stages.values()) / 60
    models = [path for name, path in run.checkpoints().items() if name != BASE]
    phases = run.config.phases if run.config else []
    formats = {"adapters for peft" if one.settings.lora else "plain transformers folders" for one in phases}
    for line in (
        f"This run is complete: {total:.1f} minutes of work in {folder}/",
        f"  the games    spag judge {shlex.quote(f'{folder}/arena/episodes.jsonl')} --show 5",
        f"  the models   {', '.join(models)} ({', '.join(sorted(formats))})",
        f"  the metrics  {folder}/arena/results.json, {folder}/*/metrics.jsonl",
    ):
        _say(line)


def print_online(run: RunFolder) -> None:
    """Show of each online phase the policy's first and last evaluation, and the collapse warnings."""
    for phase in run.online_phases:
        if len(run.online_phases) > 1:
            _say(phase.name, "bold")
        for game in phase.games:
            if len(phase.games) > 1:
                _say(game.title, "bold")
            for table in evaluation_tables(phase, game, run.exact_figures(game)):
                print_table(table)
        if phase.stopped:
            _say(f"warning: online training stopped at {phase.stopped}", "yellow")
        for warning in phase.collapse if not phase.stopped else ():
            _say(f"warning: online, {warning.when}: {warning.says}", "yellow")


def print_arena(path: Path) -> None:
    """Show the arena's results."""
    results = load_results(path)
    for table in arena_tables(results, get(results["game"])):
        print_table(table)


def print_reasoning(results: Mapping[str, Any]) -> None:
    """Show percent and standard error by task and model, and the difference from the first model."""
    print_table(reasoning_table(results))
    if comparisons := (len(results["models"]) - 1) * len(results["tasks"]):
        _say("In brackets: 95 % Agresti-Coull interval over the same items.")
        uncorrected = f", not corrected for the {comparisons} comparisons" if comparisons > 1 else ""
        _say(f"p: exact McNemar (sign) test{uncorrected}.")


def print_health(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Show the results of ``health``: one table per game with a column for each name, followed by warnings."""
    for table in health_tables(figures):
        print_table(table)
    warnings = [f"warning: {name}: {line}" for name, one in figures.items() for line in one["warnings"]]
    for warning in warnings:
        _say(warning, "yellow")
    if warnings:
        _console().print()


def print_game_details(game: Game) -> None:
    """Show a game's roles, outcomes, settings and bots, and the prompt that opens a game."""
    _say(f"{game.title}: {game.summary}")
    roles = tuple((role, game.role_help[role]) for role in game.roles)
    outcomes = tuple((name, one.label, one.rule) for name, one in game.outcomes.items())
    hints = setting_hints(game.name).items()
    settings = tuple(
        (f"game.{name}", json.dumps(one.get("default")), one.get("description", "")) for name, one in hints
    )
    print_table(Table("Roles", ("role", "task"), roles, texts=2))
    print_table(Table("Outcomes", ("outcome", "label", "rule"), outcomes, texts=3))
    print_table(Table("Settings", ("option", "default", "meaning"), settings, texts=3))
    print_table(Table("Bots", ("player",), tuple((name,) for name in bot_names(game))))
    role, prompt = opening_prompt(game)
    _say(f"First prompt, to {role}, of one game", "bold")
    _console().print(Text(visible_text(prompt, lines=True)))


def opening_prompt(game: Game) -> tuple[str, str]:
    """Return who moves first in a game on one of the training tasks, and its prompt."""
    [task] = game.tasks(Split.TRAIN, 1, 0)
    state = game.start(task, 0)
    role = game.to_move(state) or game.roles[0]
    return role, game.prompt(game.observe(state, role))


def print_play(summary: PlaySummary, game: Game) -> None:
    """Show the games played, and their tokens."""
    stats = summary.stats
    _say(f"{counted(summary.games, 'game')} in the file, {summary.played_now} played now: {summary.describe(game)}")
    _say(
        f"{counted(stats.utterances, 'utterance')}, {stats.empty} empty, {stats.retries} resampled, "
        f"{stats.prompt_tokens:,} prompt and {stats.completion_tokens:,} completion tokens"
    )
    if stats.unknown_tokens:
        _say(f"{counted(stats.unknown_tokens, 'utterance')} cut before a token that the tokenizer lacks")
    if stats.cut_thoughts:
        cut = f"{counted(stats.cut_thoughts, 'utterance')} left empty because the thought reached its token limit"
        _say(f"{cut}; raise thinking.max_tokens of the sampling, with thinking.enabled=true")


def print_outcomes(game: Game, stats: RewardStats) -> None:
    """Show games by outcome, and their samples: the output of the published code when it assigns rewards."""
    total = stats.outcomes.total()
    counts = [(outcome.label, stats.outcomes[name]) for name, outcome in game.outcomes.items()]
    rows = tuple((label, f"{count:,}", f"{100 * count / max(total, 1):.1f} %") for label, count in counts)
    title = f"{counted(total, 'game')}, {stats.utterances / max(total, 1):.1f} utterances on average"
    print_table(Table(title, ("outcome", "games", "share"), rows))
    decided = sum(stats.outcomes[name] for name, outcome in game.outcomes.items() if outcome.winners)
    samples, empty = stats.samples.total(), stats.empty_completions
    print_table(_sample_table(game, stats, f"{counted(samples, 'sample')} of {counted(decided, 'game')}"))
    left_out, all_samples = counted(empty, "empty utterance"), counted(samples + empty, "sample")
    _say(f"including {left_out}, which training skips: {all_samples}")


def print_rewards(game: Game, stats: RewardStats, sft_rows: int) -> None:
    """Show wins, samples and weights by role, and games without a winner."""
    counts = {"game": stats.outcomes.total(), "sample": stats.samples.total(), "SFT row": sft_rows}
    print_table(_sample_table(game, stats, ", ".join(counted(count, what) for what, count in counts.items())))
    undecided = [f"{one.label} {stats.outcomes[one.name]:,}" for one in game.outcomes.values() if not one.winners]
    _say(", ".join((*undecided, f"empty utterances skipped {stats.empty_completions:,}")))


def _sample_table(game: Game, stats: RewardStats, title: str) -> Table:
    rows = tuple(
        (role, f"{stats.wins[role]:,}", f"{stats.samples[role]:,}", f"{stats.role_weights.get(role, 0):.3f}")
        for role in game.roles
    )
    return Table(title, ("role", "games won", "samples", "weight"), rows)


def print_game(game: Game, episode: Episode) -> None:
    """Show a judged game, up to its end, as a dialogue with the judge's reason.

    Utterances stay in their own column, so that a line break in one cannot pass for another player's line or for the
    verdict.
    """
    talk = Grid.grid(padding=(0, 2, 0, 0))
    talk.add_column(justify="right", no_wrap=True)
    talk.add_column(overflow="fold")
    for said in episode.history[: episode.length]:
        style = "cyan" if said.role == game.roles[0] else "magenta"
        if said.thought:
            thought = " ".join(said.thought.split())
            thought = thought[:SHOWN_THOUGHT] + " ..." * (len(thought) > SHOWN_THOUGHT)
            talk.add_row(Text("thinks", style="dim"), Text(visible_text(thought), style="dim italic"))
        talk.add_row(Text(visible_text(said.role), style=style), Text(visible_text(said.content, lines=True)))
    verdict = f"{game.outcomes[str(episode.outcome)].label}: {episode.reason}"
    talk.add_row(Text("verdict", style="italic"), Text(visible_text(verdict), style="italic"))
    _say(f"{game.title}: {game.describe_task(episode.task)}", "bold")
    _console().print(talk)
    _console().print()
