"""The model card: the model, its origin, its measured results with their uncertainty, and how to reproduce it.

Its text is ``card.md``, a Jinja template; its numbers come from the run folder through the report's tables. Every claim
comes from a file. Everything the template prints becomes a number or a code span, unless it is ``Markdown``.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from jinja2 import Environment, StrictUndefined

from spag.algorithms.settings import TeacherSettings
from spag.config.schema import RunConfig
from spag.core.visible import counted
from spag.engines.players import Kind
from spag.evaluation.arena.standings import NOTE
from spag.export.markdown import Markdown, cell, code, figure, table
from spag.export.metadata import ExportSource, card_data
from spag.export.training import ancestry, phases_of, trained_games
from spag.games.base import is_competitive
from spag.models.finding import BAICHUAN, described_model, model_type
from spag.models.loading import library_versions
from spag.report.arena_tables import pair_table, rating_table, role_table
from spag.report.headline import FEW_TASKS, arena_findings, caveats, reasoning_finding, sentence
from spag.report.run_tables import reasoning_table, versions
from spag.runs.layout import BASE, planned_models
from spag.runs.reading import RunFolder

CONFIG = "spag_config.yaml"


@dataclass(frozen=True, slots=True)
class Weights:
    """The saved weights. merged: whether an adapter was merged into its base."""

    dtype: str
    parameters: int
    merged: bool


def card(title: str, source: ExportSource, weights: Weights) -> str:
    """Return README.md: metadata by the hub's specification, then the text."""
    run, config = source.run, source.config
    shared = shareable_config(config) if config else None
    environment = Environment(finalize=figure, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": Markdown, "cell": cell, "word": _word, "numbered": _numbered, "counted": counted}
    template = (resources.files("spag.export") / "card.md").read_text(encoding="utf-8")
    metadata = card_data(source)
    text = environment.from_string(template).render(
        metadata=Markdown(metadata.to_yaml()),
        title=code(title),
        name=source.name,
        is_base=source.name == BASE,
        base=described_model(_shared_name(source.base)) if source.base else None,
        run=run,
        config=config,
        config_file=CONFIG,
        weights=weights,
        is_baichuan=model_type(source.model) == BAICHUAN,
        licence=metadata.license,
        **(_trained(source.name, run, shared) if run and shared and source.name != BASE else {}),
        results=_results(source.name, run) if run else {},
        few_tasks=FEW_TASKS,
        note=Markdown(NOTE),
        paths_shortened=shared != config,
        versions={"spag": version("spag-selfplay"), **library_versions(), "peft": version("peft")},
        recorded=versions(run) if run else {},
    )
    return str(ModelCard(text))


def shareable_config(config: RunConfig) -> RunConfig:
    """Return the config without this machine's folders: an absolute path becomes ``./`` and its last part, or as many
    parts as tell all such paths apart.
    """
    return RunConfig.model_validate(_without_folders(config.model_dump(mode="json")))


def _without_folders(data: Any) -> Any:
    """Return plain ``data`` with each text that is an absolute path, or names a mixture by one, shortened."""
    paths: set[tuple[str, ...]] = set()

    def shared(value: Any, kept: int) -> Any:
        if isinstance(value, Mapping):
            return {shared(key, kept): shared(one, kept) for key, one in value.items()}
        if isinstance(value, list):
            return [shared(one, kept) for one in value]
        if isinstance(value, str) and (found := re.fullmatch(rf"({Kind.MIXTURE}|file://)?([/~].*)", value, re.DOTALL)):
            parts = tuple(part for part in Path(found[2]).parts if part != "/")
            paths.add(parts)
            return f"{found[1] or ''}./{'/'.join(parts[-kept:])}"
        return value

    kept = 1
    shared(data, kept)
    while len({parts[-kept:] for parts in paths}) < len(paths):
        kept += 1
    return shared(data, kept)


def _word(text: str) -> Markdown:
    """Return a word of a command inside a fenced block."""
    return Markdown(shlex.quote(" ".join(text.split())))


def _numbered(names: Mapping[str, Any]) -> Markdown:
    return Markdown(", ".join(f"{code(name)} {code(number)}" for name, number in names.items()))


def _shared_name(name: str) -> str:
    return Path(name).name if name.startswith(("/", "~", ".")) else name


def _trained(name: str, run: RunFolder, shared: RunConfig) -> dict[str, Any]:
    """Return the template's variables about training."""
    models = ancestry(name, run)
    names = {model.name for model in models}
    instructions = {path for model in models if (path := getattr(model.phase.settings, "sft_data", None))}
    return {
        "phases": phases_of([model for model in planned_models(shared) if model.name in names], run),
        "trained_games": trained_games(models),
        "plays": any(not isinstance(model.phase.settings, TeacherSettings) for model in models),
        "instructions": sorted(instructions),
    }


def _results(name: str, run: RunFolder) -> dict[str, Any]:
    """Return the findings about a model, and the tables of the arena and of the reasoning tasks; empty if the run has
    none.
    """
    found: dict[str, Any] = {}
    arena, reasoning = _without_folders([run.arena, run.reasoning])
    if arena:
        arena["subjects"] = [name]
        played = name in {row["name"] for row in arena["ratings"]}
        findings = arena_findings(arena, run.game)[1] if played else []
        marked = [replace(one, other=code(one.other)) for one in findings]
        said = sentence(code(name), marked, caveats(arena, run.game, findings, run.steps_of(name)))
        tables = [role_table(arena, run.game, role) for role in run.game.roles]
        tables += [pair_table(arena), rating_table(arena)] if is_competitive(run.game) else []
        found |= {
            "findings": [(one.other, Markdown(one.figures)) for one in marked],
            "finding": Markdown(said) if marked else None,
            "tables": [(shown.title, table(shown)) for shown in tables],
        }
    if reasoning:
        found |= {"reasoning": table(reasoning_table(reasoning)), "reasoning_finding": None}
        if name in reasoning["models"] and (about := reasoning_finding(reasoning, name)):
            _, finding = about
            described = sentence(code(name), [replace(finding, other=code(finding.other))])
            found["reasoning_finding"] = Markdown(f"{described} {code(finding.figures)}")
    return found
