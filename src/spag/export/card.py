"""The model card: what the model is, where it comes from, what was measured and how sure that is, how to make it again.

Its text is ``card.md``, a Jinja template; its figures come from the run folder through the report's tables. Nothing is claimed that no file
says. Names of models, players and files and every setting come from outside: whatever the template prints comes out as a figure or a code
span, where neither Markdown nor HTML means anything, unless it is ``Markdown``.
"""

import json
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from spag.games.base import Game
from spag.models.loading import library_versions
from spag.report.findings import FEW_TASKS, arena_findings, reasoning_finding, sentence
from spag.report.rows import Cell, Noted, Table, pair_table, reasoning_table, role_table, versions
from spag.runs.folder import BASE, IMITATION
from spag.runs.reading import RunFolder
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
    environment.filters |= {"plain": Markdown, "cell": _cell, "word": _word, "numbered": _numbered}
    template = (resources.files("spag.export") / "card.md").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        metadata=Markdown(card_data(title, source).to_yaml()),
        title=code(title),
        name=source.name,
        is_base=source.name == BASE,
        base=_shared_name(source.base) if source.base else None,
        run=run,
        game=run.game if run else None,
        config=config,
        config_file=CONFIG,
        weights=weights,
        licence=license_of(source.base or source.model),
        data=list(_data(source.name, run, config)) if run and config else [],
        results=Markdown("\n\n".join(_results(run))) if run else "",
        settings=_settings(shared) if shared else "",
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


def _data(name: str, run: RunFolder, config: RunConfig) -> Iterator[Markdown]:
    teacher = ", ".join("games shipped with spag" if one == TEACHER else code(_shared_name(one)) for one in config.imitation.episodes)
    yield Markdown(f"Teacher games: {teacher}; {_counts(run, IMITATION)}.")
    given = (shareable_config(config).game.model_extra or {}).items()
    yield Markdown(f"Game: {_numbered({'name': config.game.name} | {key: value for key, value in given if value is not None})}.")
    repeats = config.selfplay.repeats
    tasks = f"{config.selfplay.tasks:,} drawn" if config.selfplay.tasks else "all"
    yield Markdown(f"Tasks: {tasks} an iteration, {repeats} game{'s' * (repeats > 1)} a task; the arena's are held out.")
    names = [play.name for play in run.plays]
    until = names.index(name) + 1 if name in names else 0
    for play in run.plays[:until]:
        yield Markdown(f"Self-play of {code(play.name)}: {_counts(run, play.name, play.games)}.")
    mixed = config.offline_rl.sft_data or config.imitation.training.sft_data
    yield Markdown(f"Instruction data mixed in: {code(mixed.name)}." if mixed else "No instruction data was mixed in.")


def _counts(run: RunFolder, name: str, games: int = 0) -> str:
    """Return how many games a stage had, ``games`` where its samples do not tell, and how many training samples."""
    results = run.stages.get(f"{name}/samples", {}).get("results") or {}
    played, samples = (sum(results.get(key, {}).values()) for key in ("outcomes", "samples"))
    count = played or games
    return (f"{count:,} games" if count else "an unknown number of games") + (f", {samples:,} training samples of them" if samples else "")


def _settings(config: RunConfig) -> Markdown:
    def leaves(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[Markdown, Markdown]]:
        for name, value in section.items():
            if isinstance(value, Mapping):
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield code(prefix + name), code(json.dumps(value))

    return table((Markdown("setting"), Markdown("value")), leaves(config.model_dump(mode="json"), ""))


def _results(run: RunFolder) -> Iterator[str]:
    if run.arena:
        yield from _arena(run.arena, run.game)
    if run.reasoning:
        yield from _reasoning(run.reasoning)
    if not run.arena and not run.reasoning:
        yield "The run holds no results."


def _arena(arena: Mapping[str, Any], game: Game) -> Iterator[str]:
    player, found = arena_findings(arena, game)
    marked = [replace(one, other=code(one.other)) for one in found]
    if marked:
        yield sentence(code(player), marked)
        yield "\n".join(f"- against {one.other}: {one.figures}" for one in marked)
    few = " With so few tasks only large differences can show." if arena["tasks"] < FEW_TASKS else ""
    yield f"Games on {arena['tasks']:,} held-out tasks.{few}"
    for role in game.roles:
        yield f"As {role}, % of games:"
        yield _report_table(role_table(arena, game, role))
    if is_contest(game):
        yield "Every two players, in both roles:"
        yield _report_table(pair_table(arena))
        yield "Elo points over the first player:"
        ratings = [(code(row["name"]), f"{row['points']:.0f} [{row['low']:.0f}, {row['high']:.0f}]") for row in arena["ratings"]]
        yield table((Markdown("player"), Markdown("points")), ratings)
    yield NOTE


def _reasoning(reasoning: Mapping[str, Any]) -> Iterator[str]:
    yield "Reasoning, measured with lm-evaluation-harness; below each score, the difference to the first model with its 95 % interval:"
    found = reasoning_finding(reasoning)
    if found:
        model, finding = found
        yield f"{sentence(code(model), [replace(finding, other=code(finding.other))])} {code(finding.figures)}"
    yield _report_table(reasoning_table(reasoning))


def _report_table(shown: Table) -> Markdown:
    columns = [Markdown(one) if one.isascii() and one.replace(" ", "").isalnum() else code(one) for one in shown.columns]
    return table(columns, [[_figure(cell) for cell in row] for row in shown.rows])


def _figure(cell: Cell) -> Markdown:
    if isinstance(cell, Rate):
        return Markdown(f"{100 * cell.rate:.0f} [{100 * cell.low:.0f}, {100 * cell.high:.0f}]")
    if isinstance(cell, Noted):
        return Markdown("<br>".join(map(figure, (cell.text, *cell.notes))))
    return Markdown("–") if cell is None else figure(cell)
