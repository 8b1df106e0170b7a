"""Results as tables on standard output."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spag.collect import PlaySummary
from spag.engines.pricing import Price
from spag.episodes import Episode
from spag.game.base import Outcome, Role, Verdict
from spag.manifest import Manifest
from spag.rewards import RewardStats

_LABELS = {
    Outcome.ATTACKER_WINS: "attacker wins",
    Outcome.DEFENDER_WINS: "defender wins",
    Outcome.ATTACKER_VIOLATION: "attacker breaks the rules",
    Outcome.TIE: "tie",
}


def _console() -> Console:
    return Console(highlight=False)


def print_run(folder: Path) -> None:
    """Show what a finished run came to, and where to look next."""
    stages = Manifest.open(folder).stages
    table = Table(title="Stages", title_justify="left")
    table.add_column("stage")
    table.add_column("time", justify="right")
    table.add_column("result")
    for name, stage in stages.items():
        table.add_row(name, f"{stage['seconds'] / 60:.1f} min", Text(_stage_line(stage["results"])))
    _console().print(table)
    print_arena(folder / "arena" / "results.json")
    total = sum(stage["seconds"] for stage in stages.values()) / 60
    _console().print(f"This run is complete: {total:.1f} minutes of work in {folder}/", soft_wrap=True)
    _console().print(f"  the games    spag judge {folder}/arena/episodes.jsonl --show 5", soft_wrap=True)
    _console().print(
        f"  the models   {folder}/imitation/checkpoint, {folder}/iteration-*/checkpoint (plain transformers folders)", soft_wrap=True
    )
    _console().print(f"  the figures  {folder}/arena/results.json, {folder}/*/metrics.jsonl", soft_wrap=True)


def _stage_line(results: Mapping[str, Any]) -> str:
    if "outcomes" in results and "games" in results:
        shares = "  ".join(f"{_LABELS[Outcome(name)]} {count}" for name, count in sorted(results["outcomes"].items()))
        return f"{results['games']} games: {shares}"
    if "role_weights" in results:
        counts = "  ".join(f"{role} {count} (weight {results['role_weights'][role]})" for role, count in results["samples"].items())
        return f"samples: {counts}" + (f"  sft {results['sft']}" if results.get("sft") else "")
    if "steps" in results:
        return f"{results['steps']} steps on {results['samples']} samples, loss {results['metrics'].get('loss', float('nan')):.3f}"
    return ", ".join(f"{value} {key}" for key, value in results.items())


def print_arena(path: Path) -> None:
    """Show the arena's rates with their intervals, by role, and who beat whom."""
    results = json.loads(path.read_text(encoding="utf-8"))
    columns = {
        Role.ATTACKER: {"win": "wins", "tie": "ties", "violation": "breaks the rules", "loss": "loses", "empty": "empty"},
        Role.DEFENDER: {"win": "wins", "tie": "ties", "loss": "loses", "guess": "announces a guess", "guessed_right": "of these right"},
    }
    for role, shown in columns.items():
        table = Table(title=f"As {role} (held-out words, % with 95 % Wilson interval)", title_justify="left")
        table.add_column("player")
        table.add_column("games", justify="right")
        for label in shown.values():
            table.add_column(label, justify="right")
        for row in results["roles"]:
            if row["role"] == role:
                table.add_row(row["name"], str(row["games"]), *(_percent(row[key]) for key in shown))
        _console().print(table)
    table = Table(title="Head to head, both role assignments", title_justify="left")
    for label in ("players", "games", "first wins", "second wins", "undecided"):
        table.add_column(label, justify="left" if label == "players" else "right")
    for row in results["pairs"]:
        one, other = row["players"]
        table.add_row(f"{one} - {other}", *(str(row[key]) for key in ("games", one, other, "undecided")))
    _console().print(table)


def _percent(rate: Mapping[str, float]) -> str:
    if not rate["total"]:
        return "-"
    return f"{100 * rate['rate']:.0f} ({100 * rate['low']:.0f}-{100 * rate['high']:.0f})"


def print_play(summary: PlaySummary, price: Price | None) -> None:
    """Show what was played, its tokens, and their cost when the price is known."""
    console, stats = _console(), summary.stats
    console.print(f"{summary.games} games in the file, {summary.played_now} played now: {summary.describe()}", soft_wrap=True)
    console.print(
        f"{stats.utterances} utterances, {stats.empty} empty, {stats.retries} drawn again, "
        f"{stats.prompt_tokens:,} prompt and {stats.completion_tokens:,} completion tokens",
        soft_wrap=True,
    )
    if price:
        console.print(f"cost: {price.cost_usd(stats.prompt_tokens, stats.completion_tokens):.4f} USD")


def print_outcomes(verdicts: Iterable[Verdict]) -> None:
    """Count verdicts by outcome."""
    counts, length = Counter[Outcome](), 0
    for verdict in verdicts:
        counts[verdict.outcome] += 1
        length += verdict.length
    total = counts.total()
    table = Table(title=f"{total:,} games, {length / max(total, 1):.1f} utterances on average", title_justify="left")
    table.add_column("outcome")
    table.add_column("games", justify="right")
    table.add_column("share", justify="right")
    for outcome in Outcome:
        table.add_row(_LABELS[outcome], f"{counts[outcome]:,}", f"{100 * counts[outcome] / max(total, 1):.1f} %")
    _console().print(table)


def print_rewards(stats: RewardStats, sft_rows: int) -> None:
    """Show games by outcome, samples and weights by role."""
    table = Table(
        title=f"{sum(stats.outcomes.values()):,} games, {stats.samples.total():,} samples, {sft_rows:,} SFT rows", title_justify="left"
    )
    for label in ("role", "games won", "samples", "weight"):
        table.add_column(label, justify="left" if label == "role" else "right")
    won = {Role.ATTACKER: stats.outcomes[Outcome.ATTACKER_WINS], Role.DEFENDER: stats.outcomes[Outcome.DEFENDER_WINS]}
    for role in Role:
        table.add_row(str(role), f"{won[role]:,}", f"{stats.samples[role]:,}", f"{stats.role_weights.get(role, 0):.3f}")
    _console().print(table)
    ties, violations = stats.outcomes[Outcome.TIE], stats.outcomes[Outcome.ATTACKER_VIOLATION]
    _console().print(f"ties {ties:,}, attacker violations {violations:,}, empty utterances left out {stats.empty_targets:,}")


def print_game(episode: Episode, verdict: Verdict) -> None:
    """Show one game as a dialogue with the judge's reason. Texts are printed as they are, never as markup."""
    console = _console()
    console.print(Text(f"target word: {episode.target_word}", style="bold"))
    for said in episode.history[: verdict.length]:
        style = "cyan" if said.role is Role.ATTACKER else "magenta"
        console.print(Text.assemble((f"{said.role:>9}  ", style), _printable(said.content)))
    console.print(Text(f"  verdict  {_LABELS[verdict.outcome]}: {_printable(verdict.reason)}\n", style="italic"))


def _printable(text: str) -> str:
    """Replace control characters, so that a model's output cannot drive the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)
