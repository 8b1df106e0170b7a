"""The card's metadata, which the hub uses for search, categories and plots (huggingface.co/docs/hub/model-cards)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache
from yaml import YAMLError

from spag.core.errors import ModelError, first_line
from spag.core.visible import counted
from spag.export.training import ancestry, trained_games
from spag.games.base import Game, is_competitive
from spag.games.registry import settings_of
from spag.models.finding import EMBEDDED_HUB_ID, EMBEDDED_NAME
from spag.models.refusals import library_errors
from spag.runs.reading import RunFolder
from spag.storage.home import expanded

UNKNOWN = "unknown"  # the hub's word for an unknown licence
_LICENSES = {
    EMBEDDED_HUB_ID: "apache-2.0",
    "meta-llama/Llama-2-7b-hf": "llama2",
    "Qwen/Qwen3-1.7B": "apache-2.0",
    "Qwen/Qwen3-4B": "apache-2.0",
    "Qwen/Qwen3-4B-Base": "apache-2.0",
    "baichuan-inc/Baichuan2-13B-Base": "other",
}  # of the presets' models, by the hub's identifiers; "other" is one


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A model to export.

    ``name``: its name in the run (``base``, ``spag-1``), else the model's own. ``model``: the argument of
    ``load_model``. ``base``: the model from which training started; ``None`` if unknown. ``run``: ``None`` outside a
    run folder.
    """

    name: str
    model: str
    base: str | None
    run: RunFolder | None

    @property
    def trust_remote_code(self) -> bool:
        return bool(self.run and self.run.config and self.run.config.model.trust_remote_code)


def card_data(title: str, source: ExportSource) -> ModelCardData:
    """Return the metadata: base, licence, and the run's metrics of this model."""
    hub_id, name, run = _hub_id(source.base), source.name, source.run
    results = [*_arena_results(name, run), *_reasoning_results(name, run)] if run else []
    games = trained_games(ancestry(name, run)) if run else []
    languages = list(dict.fromkeys(settings_of(game).get("language", "en") for game in games)) or ["en"]
    tags = dict.fromkeys(map(_tag, (run.game, *games))) if run else ()  # the arena's game comes first
    trained: dict[str, Any] = {"base_model_relation": "finetune"} if hub_id and source.model != source.base else {}
    return ModelCardData(
        base_model=hub_id,
        license=license_of(source.base or source.model),
        language=languages if len(languages) > 1 else languages[0],
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["spag", "self-play", *tags],
        model_name=title if results else None,
        eval_results=results or None,
        **trained,
    )


def license_of(base: str | None) -> str:
    """Return the licence of a base model: a preset's, else from its model card on this machine, else ``UNKNOWN``."""
    hub_id = _hub_id(base)
    if hub_id in _LICENSES:
        return _LICENSES[hub_id]
    cached = try_to_load_from_cache(hub_id, "README.md") if hub_id else None
    try:
        path = Path(cached) if isinstance(cached, str) else expanded(base or ".") / "README.md"
        if base is None or not path.is_file():
            return UNKNOWN
        with library_errors(lambda error: ModelError(f"{path}: {first_line(error)}"), also=(YAMLError,)):
            found = ModelCard.load(path, ignore_metadata_errors=True).data.get("license")
    except ModelError:  # a home folder of the machine that trained, or a broken card
        return UNKNOWN
    return found if isinstance(found, str) else UNKNOWN


def _hub_id(base: str | None) -> str | None:
    """Return the hub id of a base model; ``None`` for a local folder or file."""
    if base == EMBEDDED_NAME:
        return EMBEDDED_HUB_ID
    is_id = base is not None and re.fullmatch(r"\w[\w.-]*/[\w.-]+", base) and not Path(base).exists()
    return base if is_id else None


def _arena_results(name: str, run: RunFolder) -> Iterator[EvalResult]:
    if run.arena is None:
        return
    title = run.game.title
    figures = []
    for row in (one for one in run.arena["roles"] if one["name"] == name):
        role, win = row["role"], row["win"]
        label = f"games won, 95 % interval {win['low']:.3f} to {win['high']:.3f}"
        figures.append((role, f"{title} as {role}", "win_rate", label, round(win["rate"], 4)))
    for row in (one for one in run.arena["ratings"] if one["name"] == name and is_competitive(run.game)):
        label = f"Elo points over the run's first player, 95 % interval {row['low']:.0f} to {row['high']:.0f}"
        figures.append(("both", f"{title}, both roles", "elo", label, round(row["points"], 1)))
    for config, task, metric, label, value in figures:
        yield EvalResult(
            task_type="text-generation",
            task_name=task,
            dataset_type=_tag(run.game),
            dataset_name=f"{task}, {counted(run.arena['tasks'], 'task' if run.held_out_doubt else 'held-out task')}",
            dataset_config=config,
            dataset_split=None if run.held_out_doubt else "held_out",
            metric_type=metric,
            metric_name=label,
            metric_value=value,
        )


def _reasoning_results(name: str, run: RunFolder) -> Iterator[EvalResult]:
    if not run.reasoning or name not in run.reasoning["models"]:
        return
    for task, figure in run.reasoning["models"][name]["tasks"].items():
        about = run.reasoning["tasks"][task]
        error = f", standard error {figure['se']:.4f}" if figure.get("se") is not None else ""
        yield EvalResult(
            task_type="text-generation",
            task_name="Reasoning",
            dataset_type=task,
            dataset_name=about["label"],
            dataset_args={"num_few_shot": about["shots"]},
            metric_type=about["metric"],
            metric_name=about["metric"] + error,
            metric_value=round(figure["value"], 4),
        )


def _tag(game: Game) -> str:
    return game.name.replace("_", "-")
