"""Results as tables on standard output."""

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
from spag.display.figures import p_value
from spag.engines.pricing import Price
from spag.games.taboo.types import Outcome, Role, Verdict
from spag.rollout.writer import PlaySummary
from spag.runs.manifest import Manifest

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
    table = new_table("Stages", "stage", "time")
    table.add_column("result")
    for name, stage in stages.items():
        table.add_row(name, f"{stage['seconds'] / 60:.1f} min", Text(_stage_line(stage["results"])))
    _console().print(table)
    health = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/health.json"))}
    if health:
        print_health(health)
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
        weights = {role: f" (weight {weight})" for role, weight in results["role_weights"].items()}  # ties have none
        counts = "  ".join(f"{role} {count}{weights.get(role, '')}" for role, count in results["samples"].items())
        return f"samples: {counts}" + (f"  sft {results['sft']}" if results.get("sft") else "")
    if "steps" in results:
        return f"{results['steps']} steps on {results['samples']} samples, loss {results['metrics'].get('loss', float('nan')):.3f}"
    return ", ".join(f"{value} {key}" for key, value in results.items())


def print_arena(path: Path) -> None:
    """Show the arena's rates by role, who beat whom, ratings, and what differs by more than chance."""
    results = json.loads(path.read_text(encoding="utf-8"))
    columns = {
        Role.ATTACKER: {"win": "wins", "tie": "ties", "violation": "breaks the rules", "loss": "loses", "empty": "empty"},
        Role.DEFENDER: {"win": "wins", "tie": "ties", "loss": "loses", "guess": "announces a guess", "guessed_right": "of these right"},
    }
    for role, shown in columns.items():
        rows = [(row["name"], str(row["games"]), *(_percent(row[key]) for key in shown)) for row in results["roles"] if row["role"] == role]
        _print_rows(f"As {role} (held-out words, % with 95 % interval over words)", ("player", "games", *shown.values()), rows)
    _print_matrix(results.get("matrix", []))
    _print_rows(
        "Wins in both roles, difference in points of 100 games (undecided: ½)",
        ("players", "games", "first", "second", "undecided", "difference", "p"),
        [_head_to_head(row) for row in results["pairs"] if "wins" in row],
    )
    ratings = [(row["name"], _interval(row["points"], row["low"], row["high"])) for row in results.get("ratings", [])]
    _print_rows("Elo rating (95 % interval)", ("player", "points over the first"), ratings)
    _print_paired(results.get("paired", []))


def _print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text and the others figures; nothing when there are no rows."""
    if not rows:
        return
    table = new_table(title, *columns)
    table.columns[0].no_wrap = all(" " not in row[0] for row in rows)  # a name is cut last, when headers and figures are wrapped
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def _print_matrix(cells: Sequence[Mapping[str, Any]]) -> None:
    counts = {(cell["attacker"], cell["defender"]): cell for cell in cells}
    names = list(dict.fromkeys(cell[side] for cell in cells for side in ("attacker", "defender")))

    def shown(attacker: str, defender: str) -> str:
        cell = counts.get((attacker, defender))
        if not cell:
            return ""
        parts = (cell["attacker_wins"], cell["defender_wins"], cell["ties"], cell["violations"])
        return " / ".join(f"{100 * part / cell['games']:.0f}" for part in parts)

    title = "% attacker wins / defender wins / ties / violations"
    _print_rows(title, ("attacker \\ defender", *names), [(name, *(shown(name, other) for other in names)) for name in names])


def _print_paired(rows: Sequence[Mapping[str, Any]]) -> None:
    pairs: dict[str, dict[str, str]] = {}
    for row in rows:
        first, second = (f"{100 * row[side]['rate']:.0f}" for side in ("one", "other"))
        pairs.setdefault(" - ".join(row["players"]), {})[row["outcome"]] = f"{first} - {second}  p {p_value(row['difference']['p_value'])}"
    labels = {"attacker_wins": "wins as attacker", "attacker_violation": "breaks the rules", "defender_wins": "wins as defender"}
    shown = [(players, *(cells.get(outcome, "-") for outcome in labels)) for players, cells in pairs.items()]
    _print_rows("On the same words, against the same opponents (%)", ("players", *labels.values()), shown)


def _head_to_head(row: Mapping[str, Any]) -> tuple[str, ...]:
    score = row["score"]
    shown = (_interval(100 * score["mean"], 100 * score["low"], 100 * score["high"]), p_value(score["p_value"])) if score else ("-", "-")
    return (" - ".join(row["players"]), *(str(count) for count in (row["games"], *row["wins"], row["undecided"])), *shown)


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:+.0f} ({low:+.0f} to {high:+.0f})" if low < high else f"{value:.0f}"


def print_health(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Show what ``iteration_health`` gave, a column for each name, and the warnings below."""
    shares = {
        "attacker_wins": "attacker wins", "induced": "  by luring the defender", "wrong_guess": "  by a wrong guess",
        "first_wrong_guess": "    in its first utterance", "defender_wins": "defender wins", "ties": "ties",
        "violations": "attacker breaks the rules", "hidden_leaks": "leaks that only strict judging sees",
        "shared_openings": "openings used for 2 words or more", "generic_openings": "openings used for 3 words or more",
        "empty": "utterances empty", "repeated": "  said before in the game",
        "copied": "  copied from the rules", "refusals": "  refusing to play",
    }  # fmt: skip
    columns = list(figures.values())
    rows = [("games", *(f"{one['games']:,}" for one in columns)), ("utterances a game", *(f"{one['mean_length']:.1f}" for one in columns))]
    rows += [(f"{label}, %", *(f"{100 * one[key]:.1f}" for one in columns)) for key, label in shares.items()]
    for role in Role:
        rows += [
            (f"{role}: words an utterance", *(f"{one[role]['mean_words']:.1f}" for one in columns)),
            (f"{role}: distinct-1, distinct-2", *(f"{one[role]['distinct_1']:.2f}, {one[role]['distinct_2']:.2f}" for one in columns)),
        ]
    _print_rows("Health of play", ("", *figures), rows)
    warnings = [f"warning: {name}: {line}" for name, one in figures.items() for line in one["warnings"]]
    for warning in warnings:
        _console().print(Text(warning, style="yellow"), soft_wrap=True)
    if warnings:
        _console().print()


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
    table = new_table(f"{total:,} games, {length / max(total, 1):.1f} utterances on average", "outcome", "games", "share")
    for outcome in Outcome:
        table.add_row(_LABELS[outcome], f"{counts[outcome]:,}", f"{100 * counts[outcome] / max(total, 1):.1f} %")
    _console().print(table)


def print_rewards(stats: RewardStats, sft_rows: int) -> None:
    """Show games by outcome, samples and weights by role."""
    title = f"{sum(stats.outcomes.values()):,} games, {stats.samples.total():,} samples, {sft_rows:,} SFT rows"
    table = new_table(title, "role", "games won", "samples", "weight")
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
