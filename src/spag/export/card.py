"""The model card: what the model is, where it comes from, what was measured and how sure that is, how to make it again.

Its text is ``card.md``, a Jinja template; its figures come from the run folder through the report's tables. Nothing is claimed that no file
says. Names of models, players and files and every setting come from outside: whatever the template prints comes out as a figure or a code
span, where neither Markdown nor HTML means anything, unless it is ``Markdown``.
"""

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from jinja2 import Environment, StrictUndefined

from spag.config.schema import RunConfig
from spag.display.figures import is_contest
from spag.evaluation.arena.games import NOTE
from spag.evaluation.stats import Rate
from spag.export.metadata import Source, card_data, license_of
from spag.export.training import Training, settings_rows, training_of
from spag.models.finding import BAICHUAN, model_type
from spag.models.loading import library_versions
from spag.report.findings import FEW_TASKS, arena_findings, reasoning_finding, sentence
from spag.report.rows import Cell, Noted, Table, pair_table, reasoning_table, role_table, versions
from spag.runs.folder import BASE
from spag.runs.reading import RunFolder, SelfPlay
from spag.runs.stages import TEACHER

CONFIG = "spag_config.yaml"
_LONGEST = 200


class Markdown(str):
    """Text that means what it says as Markdown: our own words, or foreign text out of ``code``."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The saved weights. merged: whether an adapter was merged into its base."""

    dtype: str
    parameters: int
    merged: bool


def card(title: str, source: Source, weights: Weights) -> str:
    """Return README.md: metadata of the hub's specification, then the text."""
    run, config = source.run, source.run.config if source.run else None
    shared = shareable_config(config) if config else None
    environment = Environment(finalize=figure, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": Markdown, "cell": _cell, "word": _word, "numbered": _numbered, "shared": _shared_name, "known": _known}
    template = (resources.files("spag.export") / "card.md").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        metadata=Markdown(card_data(title, source).to_yaml()),
        title=code(title),
        name=source.name,
        is_base=source.name == BASE,
        base=_shared_name(source.base) if source.base else None,
        run=run,
        config=config,
        config_file=CONFIG,
        weights=weights,
        is_baichuan=model_type(source.model) == BAICHUAN,
        licence=license_of(source.base or source.model),
        teacher=TEACHER,
        **(_trained(training_of(source.name, run, config), config, shared) if run and config and shared and source.name != BASE else {}),
        counts=_counts,
        plays=_plays(source.name, run) if run else [],
        results=_results(run) if run else {},
        few_tasks=FEW_TASKS,
        note=Markdown(NOTE),
        paths_shortened=shared != config,
        versions={"spag": version("spag-selfplay"), **library_versions(), "peft": version("peft")},
        recorded=versions(run) if run else {},
    )
    return str(ModelCard(text))


def shareable_config(config: RunConfig) -> RunConfig:
    """Return the config without the folders of this machine: of every absolute path, ``./`` and its last part."""

    def shared(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {shared(key): shared(one) for key, one in value.items()}
        if isinstance(value, list):
            return [shared(one) for one in value]
        return f"./{Path(value).name}" if isinstance(value, str) and value.startswith(("/", "~")) else value

    return RunConfig.model_validate(shared(config.model_dump(mode="json")))


def code(text: object) -> Markdown:
    """Return foreign text as a code span on one line: invisible characters by their codes, cut after 200 characters."""
    line = " ".join(str(text).split())
    shown = "".join(f"U+{ord(char):04X}" if unicodedata.category(char)[0] == "C" else char for char in line[:_LONGEST])
    shown += "…" if len(line) > _LONGEST else ""
    if not shown:
        return Markdown("(empty)")
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return Markdown(f"{fence}{pad}{shown}{pad}{fence}")


def figure(value: object) -> Markdown:
    """Return Markdown and figures (digits, signs, intervals, p-values) as they are, anything else as a code span."""
    text = str(value)
    is_figure = re.fullmatch(r"[-\d\s.,+\N{MINUS SIGN}±–→\[\]%<=p]*", text)
    return Markdown(text) if isinstance(value, Markdown) or is_figure else code(text)


def table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> Markdown:
    """Return a table: the first column to the left, the others, of figures, to the right."""
    marks = ["---", *["---:"] * (len(columns) - 1)]
    return Markdown("\n".join(f"| {' | '.join(map(_cell, cells))} |" for cells in (columns, map(Markdown, marks), *rows)))


def _cell(value: object) -> Markdown:
    return Markdown(figure(value).replace("|", r"\|"))  # a bar ends a cell even in a code span


def _word(text: str) -> Markdown:
    """Return a word of a command inside a fenced block."""
    return Markdown(shlex.quote(" ".join(text.split())))


def _numbered(names: Mapping[str, Any]) -> Markdown:
    return Markdown(", ".join(f"{code(name)} {code(number)}" for name, number in names.items()))


def _shared_name(name: str) -> str:
    return Path(name).name if name.startswith(("/", "~", ".")) else name


def _known(settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in settings if value is not None}


def _trained(training: Training, config: RunConfig, shared: RunConfig) -> dict[str, Any]:
    """Return what the template says of the training."""
    of_imitation = config.imitation.training.sft_data if training.imitates else None
    of_iterations = config.offline_rl.sft_data if training.iterations else None
    stages, rows = settings_rows(training, shared)
    columns = Markdown("setting"), *map(code, stages)
    return {
        "training": training,
        "game_settings": _known(shared.game),
        "mix": [_known(part) for part in shared.online.mix],
        "opponents": shared.selfplay.opponents,
        "online_opponents": shared.online.opponents,
        "instructions": sorted({path for path in (of_imitation, of_iterations) if path}),
        "settings": table(columns, [[code(name), *map(_setting, values)] for name, *values in rows]),
    }


def _setting(value: object) -> Markdown:
    return Markdown("–") if value is None else figure(value)


def _plays(name: str, run: RunFolder) -> list[SelfPlay]:
    """Return the self-play that made the model."""
    names = [play.name for play in run.plays]
    return run.plays[: names.index(name) + 1] if name in names else []


def _counts(run: RunFolder, name: str, games: int = 0) -> Markdown:
    """Return how many games a stage had, ``games`` where its samples do not tell, and how many training samples."""
    results = run.stages.get(f"{name}/samples", {}).get("results") or {}
    played, samples = (sum(results.get(key, {}).values()) for key in ("outcomes", "samples"))
    count = played or games
    told = f"{count:,} games" if count else "an unknown number of games"
    return Markdown(f"{told}, {samples:,} training samples of them" if samples else told)


def _results(run: RunFolder) -> dict[str, Any]:
    """Return the findings and tables of the arena and of the reasoning tasks; empty where the run has none."""
    found: dict[str, Any] = {}
    if arena := run.arena:
        player, findings = arena_findings(arena, run.game)
        marked = [replace(one, other=code(one.other)) for one in findings]
        ratings = [(code(row["name"]), f"{row['points']:.0f} [{row['low']:.0f}, {row['high']:.0f}]") for row in arena["ratings"]]
        found |= {
            "findings": [(one.other, Markdown(one.figures)) for one in marked],
            "finding": Markdown(sentence(code(player), marked)) if marked else None,
            "tables": {role: _report_table(role_table(arena, run.game, role)) for role in run.game.roles},
            "pairs": _report_table(pair_table(arena)) if is_contest(run.game) else None,
            "ratings": table((Markdown("player"), Markdown("points")), ratings),
        }
    if run.reasoning:
        found["reasoning"] = _report_table(reasoning_table(run.reasoning))
        if first := reasoning_finding(run.reasoning):
            model, finding = first
            told = sentence(code(model), [replace(finding, other=code(finding.other))])
            found["reasoning_finding"] = Markdown(f"{told} {code(finding.figures)}")
    return found


def _report_table(shown: Table) -> Markdown:
    columns = [Markdown(one) if one.isascii() and one.replace(" ", "").isalnum() else code(one) for one in shown.columns]
    return table(columns, [[_figure(cell) for cell in row] for row in shown.rows])


def _figure(cell: Cell) -> Markdown:
    if isinstance(cell, Rate):
        return Markdown(f"{100 * cell.rate:.0f} [{100 * cell.low:.0f}, {100 * cell.high:.0f}]")
    if isinstance(cell, Noted):
        return Markdown("<br>".join(map(figure, (cell.text, *cell.notes))))
    return Markdown("–") if cell is None else figure(cell)
