"""A run's results as tables: health of play, reasoning, online evaluations, and the use of time and tokens."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spag.core.visible import counted
from spag.evaluation.warnings import GENERIC_TASKS, free_roles, mean_of_steps, watches_openings
from spag.games.base import Figure, Game, is_competitive
from spag.games.registry import get
from spag.report.arena_tables import exact_table
from spag.report.cells import Cell, DetailedCell, Table, interval, p_text, p_value, rate_cell, signed
from spag.report.headline import left_out_of_mean
from spag.report.html import duration, spaced
from spag.runs.reading import RunFolder
from spag.runs.records import Json, OnlinePhase

Rows = Sequence[Mapping[str, Any]]
OF_ROLE = {
    "reward": ("reward", 1, "%+.2f"),
    "win": ("wins, %", 100, "%.0f"),
    "illegal": ("breaks the rules, %", 100, "%.1f"),
    "entropy": ("entropy, nats per token", 1, "%.3f"),
    "length": ("tokens per utterance", 1, "%.1f"),
    "no_advantage": ("without advantage, %", 100, "%.0f"),
    "cut_thoughts": ("thoughts cut, %", 100, "%.1f"),
}
"""A role's metric in online steps: its title, scale and format."""
_PARTS = {
    "play": "play_s",
    "log-probabilities": "logprobs_s",
    "training": "train_s",
    "weight update": "update_weights_s",
}


def training_figures(*, online: bool) -> dict[str, tuple[str, int, str]]:
    """Return title, scale and format of each metric of an update.

    Offline the distance is a mean of log-ratios on games of another policy, which may be negative.
    """
    return {
        "loss": ("loss", 1, "%.3f"),
        "kl": ("KL to the reference" if online else "log-ratio to the reference", 1, "%.2g"),
        "mismatch_kl": ("KL of engine and trainer", 1, "%.2g"),
        "clip_fraction": ("clipped, %", 100, "%.1f"),
        "grad_norm": ("gradient norm", 1, "%.2g"),
        "learning_rate": ("learning rate", 1, "%.1e"),
    }


def health_tables(figures: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """The results of ``health``: one table per game with a column for each name."""
    games = [get(name) for name in dict.fromkeys(one["game"] for one in figures.values())]
    tables = []
    for game in games:
        title = f"Health of play, {game.title}" if len(games) > 1 else "Health of play"
        own = {name: one for name, one in figures.items() if one["game"] == game.name}
        tables.append(_health_table(title, game, own))
    return tables


def _health_table(title: str, game: Game, figures: Mapping[str, Mapping[str, Any]]) -> Table:
    shown = list(figures.values())
    rows: list[tuple[Cell, ...]] = [
        ("games", *(f"{one['games']:,}" for one in shown)),
        ("utterances per game", *(f"{one['mean_length']:.1f}" for one in shown)),
    ]
    shares: list[tuple[str, list[float | None]]] = [
        (outcome.label, [one["outcomes"][name] for one in shown]) for name, outcome in game.outcomes.items()
    ]
    for figure in game.figures:
        if figure.is_count:
            rows.append((figure.label, *(f"{one['figures'][figure.name]:.1f}" for one in shown)))
        else:
            shares.append((figure.label, [_share(one["figures"], figure) for one in shown]))
    shares += [(label, [one[key] for one in shown]) for key, label in _text_figures(game).items()]
    if any("cut_thoughts" in one for one in shown):
        shares.append(("thoughts cut", [one.get("cut_thoughts") for one in shown]))
    for label, values in shares:
        rows.append((f"{label}, %", *(None if value is None else f"{100 * value:.1f}" for value in values)))
    for role in free_roles(game):
        spoken = [one["roles"][role] if one["roles"][role]["utterances"] else None for one in shown]
        rows.append((f"{role}: words per utterance", *(one and f"{one['mean_words']:.1f}" for one in spoken)))
        distinct = (one and f"{one['distinct_1']:.2f}, {one['distinct_2']:.2f}" for one in spoken)
        rows.append((f"{role}: distinct-1, distinct-2", *distinct))
    return Table(title, ("", *figures), tuple(rows))


def _share(values: Mapping[str, float], figure: Figure) -> float | None:
    """Return the value of a figure; ``None`` if what it is a share of never occurred."""
    return values[figure.name] if figure.of is None or values[figure.of] else None


def _text_figures(game: Game) -> dict[str, str]:
    """Return the labels of the text metrics that are meaningful in ``game``."""
    found = {"empty": "utterances empty"}
    if watches_openings(game):
        uses = {"shared_openings": 2, "generic_openings": GENERIC_TASKS}
        found |= {name: f"openings used for {tasks} tasks or more" for name, tasks in uses.items()}
    if free_roles(game):
        found |= {"repeated": "utterances said before in the game", "copied": "  copied from the rules"}
        found |= {"refusals": "  refusing to play"}
    return found


def reasoning_table(reasoning: Mapping[str, Any]) -> Table:
    """One row per task, one column per model: score ± standard error, then the difference from the reference."""
    reference, models = reasoning["reference"], reasoning["models"]
    rows: list[tuple[Cell, ...]] = []
    for task, about in reasoning["tasks"].items():
        figures = [model["tasks"][task] for model in models.values()]
        details = (f"{about['metric']}, {about['shots']}-shot", counted(figures[0]["items"], "item"))
        rows.append((DetailedCell(about["label"], details), *_scores(figures)))
    means = [model["geometric_mean"] for model in models.values()]
    if len(reasoning["tasks"]) > 1 and all(means):
        without = tuple(f"without {label}" for label in left_out_of_mean(means[0], reasoning["tasks"]))
        rows.append((DetailedCell("geometric mean", without) if without else "geometric mean", *_scores(means)))
    return Table("Reasoning", (f"%, below: minus {reference}", *models), tuple(rows))


def _scores(figures: Rows) -> Iterator[Cell]:
    """Yield the scores of one task, the reference's first."""
    for place, figure in enumerate(figures):
        error, difference = figure.get("se"), figure["difference"]
        text = f"{100 * figure['value']:.1f}" + (f" ± {100 * error:.1f}" if error is not None else "")
        p = (p_text(difference["p"]),) if "p" in difference else ()
        yield DetailedCell(text, (interval(difference, 100, "value", 1), *p)) if place else text


def time_table(rows: Rows) -> Table:
    """The time of an online step by part, as means over the steps; the rest is not counted by any part."""
    seconds = {part: mean_of_steps(rows, key) or 0.0 for part, key in _PARTS.items()}
    step = mean_of_steps(rows, "step_s") or 0.0
    seconds["rest"] = max(0.0, step - sum(seconds.values()))
    shown = [(part, f"{one:.2f}", f"{100 * one / step if step else 0.0:.1f}") for part, one in seconds.items()]
    shown.append(("total", f"{step:.2f}", "100.0"))
    return Table("Time of a step", ("a step", "seconds", "share, %"), tuple(shown), last_is_total=True)


def evaluation_tables(phase: OnlinePhase, game: Game, known: Mapping[str, Mapping[str, float]]) -> list[Table]:
    """The nonempty tables of evaluations between online steps and of the steps' opponents.

    ``known``: exact metrics of models by name.
    """
    own, met = ([row for row in rows if row["game"] == game.name] for rows in (phase.evaluations, phase.opponents))
    scores = [score_table(own)] if is_competitive(game) else []
    exact = exact_evaluation_table(own, known, phase)
    return [table for table in (role_evaluation_table(own), *scores, exact, opponents_table(met, game)) if table.rows]


def role_evaluation_table(evaluations: Rows) -> Table:
    """The policy's results against each opponent at the first and the last evaluation, by role."""
    rows: list[tuple[Cell, ...]] = []
    for opponent, ends in _ends(evaluations):
        for step, one in {one["step"]: one for one in ends}.items():
            for own in one["roles"]:
                rates = rate_cell(own["win"]), rate_cell(own["violation"])
                rows.append((f"{opponent}, step {step}", spaced(own["role"]), str(own["games"]), *rates))
    columns = ("against", "as", "games", "wins, %", "breaks the rules, %")
    return Table("Online policy on held-out tasks", columns, tuple(rows), texts=2)


def score_table(evaluations: Rows) -> Table:
    """The policy's score against each opponent in both roles, at the last evaluation."""
    rows = []
    for opponent, (_, last) in _ends(evaluations):
        for pair in last["pair"]:
            if score := pair["score"]:
                rows.append((opponent, f"{pair['games']:,}", interval(score, 100), p_value(score["p_value"])))
    return Table("Online policy in both roles", ("policy against", "games", "score", "p"), tuple(rows))


def opponents_table(opponents: Rows, game: Game) -> Table:
    """The policy's results with each opponent in the steps' games, after the last step."""
    rows: list[tuple[Cell, ...]] = []
    for one in opponents:
        score = (f"{one['score']:.2f}", signed(one["rating"])) if is_competitive(game) else (None, None)
        rows.append((one["opponent"], f"{one['games']:,}", *score, f"{100 * one['share']:.0f}"))
    columns = ("met in training", "games", "score, 0 to 1", "its Elo over the policy", "share of draws, %")
    return Table("Opponents after the last step; recent results count more", columns, tuple(rows))


def exact_evaluation_table(evaluations: Rows, known: Mapping[str, Mapping[str, float]], phase: OnlinePhase) -> Table:
    """The exact metrics of a solved game: of the phase's first model, its policy at the first and the last evaluation,
    and its final model, which may be an average of weights, and thus differ from the last step's.
    """
    scored = [row for row in evaluations if row["exact"]]
    ends = {f"step {row['step']}": row["exact"] for row in (scored[:1] + scored[-1:])}
    first, last = (known.get(name) for name in (phase.model.start, phase.name))
    shown = {phase.model.start: first, **ends, f"{phase.name} (final)": last} if scored else {}
    return exact_table({name: own for name, own in shown.items() if own}, thinking=phase.thinks)


def _ends(evaluations: Rows) -> Iterator[tuple[str, tuple[Mapping[str, Any], Mapping[str, Any]]]]:
    """Yield every opponent with the first and the last evaluation against it."""
    for opponent in dict.fromkeys(row["opponent"] for row in evaluations):
        met = [row for row in evaluations if row["opponent"] == opponent]
        yield opponent, (met[0], met[-1])


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
        tasks = [task for model in run.reasoning["models"].values() for task in model["tasks"].values()]
        spent = sum(task.get("seconds", 0.0) for task in tasks)
        seconds += spent
        rows.append(("reasoning", duration(spent), counted(len(run.reasoning["tasks"]), "task"), "", ""))
    rows.append(("total", duration(seconds), "", "", f"{tokens:,}" if tokens else ""))
    return Table("Stages", ("stage", "time", "work", "games per hour", "tokens said"), tuple(rows), last_is_total=True)


def _work(stage: Json, results: Json) -> tuple[str, str, str]:
    """Return a stage's work, games per hour, and completion tokens."""
    if stage["status"] != "done":
        return "not finished", "", ""
    work, samples = "", results.get("samples", {})  # the number of trained samples, in total or by role
    count = samples if isinstance(samples, int) else sum(samples.values()) + results.get("sft", 0)
    if "steps" in results:
        work = counted(results["steps"], "step") + (f" on {counted(count, 'sample')}" if count else "")
    elif "games" in results:
        work = counted(results["games"], "game")
    elif "samples" in results:
        work = counted(count, "sample")
    rate, tokens = results.get("games_per_hour"), results.get("completion_tokens")
    return work, f"{rate:,}" if rate else "", f"{tokens:,}" if tokens else ""


def arena_note(run: RunFolder) -> str:
    """Return a sentence about the run's games that the arena does not play; empty if it plays all."""
    others = ", ".join(game.title for name, game in run.games.items() if name != run.game.name)
    says = f"The arena plays only {run.game.title}. Phases also play {others}, in which models are not compared."
    return says if others else ""


def versions(run: RunFolder) -> dict[str, str]:
    """Return every library version recorded by stages and reasoning, sorted; several if they differ."""
    places = [stage.get("results") or {} for stage in run.stages.values()]
    if run.reasoning:
        places += [task for model in run.reasoning["models"].values() for task in model["tasks"].values()]
    pairs = sorted({(name, str(number)) for place in places for name, number in place.get("versions", {}).items()})
    return {name: ", ".join(number for other, number in pairs if other == name) for name, _ in pairs}
