"""The card's metadata, by which the hub finds, files and plots a model (huggingface.co/docs/hub/model-cards)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache

from spag.export.sources import Source
from spag.models.loading import EMBEDDED_HUB_ID, EMBEDDED_NAME

UNKNOWN = "unknown"
"""The hub's own word for a licence that nobody knows."""
_LICENSES = {
    EMBEDDED_HUB_ID: "apache-2.0",
    "meta-llama/Llama-2-7b-hf": "llama2",
    "Qwen/Qwen3-1.7B": "apache-2.0",
    "baichuan-inc/Baichuan2-13B-Base": "other",
}
"""Licences of the models that spag's presets name, by the hub's identifiers; "other" is one of its own."""
_SIDES = {"attacker": "tries to make the defender say the word", "defender": "tries to guess the word"}


def card_data(title: str, source: Source) -> ModelCardData:
    """Return the metadata: base, licence, and every figure of the run about this model."""
    hub_id = _hub_id(source.base)
    results = list(_arena_results(source)) + list(_reasoning_results(source))
    more: dict[str, Any] = {} if hub_id is None or source.model == source.base else {"base_model_relation": "finetune"}
    return ModelCardData(
        base_model=hub_id,
        license=license_of(source.base or source.model),
        language="en",
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["spag", "self-play", "adversarial-taboo"],
        model_name=title if results else None,
        eval_results=results or None,
        **more,
    )


def license_of(base: str | None) -> str:
    """Return the licence of a base model: of a preset's model, else what a model card on this machine says, else ``UNKNOWN``."""
    hub_id = _hub_id(base)
    if hub_id in _LICENSES:
        return _LICENSES[hub_id]
    cached = try_to_load_from_cache(hub_id, "README.md") if hub_id else None
    path = Path(cached) if isinstance(cached, str) else Path(base or ".").expanduser() / "README.md"
    if base is None or not path.is_file():
        return UNKNOWN
    found = ModelCard.load(path, ignore_metadata_errors=True).data.get("license")
    return found if isinstance(found, str) else UNKNOWN


def _hub_id(base: str | None) -> str | None:
    """Return the hub's name of a base model; ``None`` for a folder or file of this machine."""
    if base == EMBEDDED_NAME:
        return EMBEDDED_HUB_ID
    if base is None or not re.fullmatch(r"[\w.-]+/[\w.-]+", base) or base.startswith(".") or Path(base).exists():
        return None
    return base


def _arena_results(source: Source) -> Iterator[EvalResult]:
    arena: Mapping[str, Any] = (source.run.arena if source.run else None) or {"roles": [], "ratings": []}
    game: dict[str, Any] = {"task_type": "text-generation", "dataset_type": "adversarial-taboo", "dataset_split": "held_out"}
    for row in arena["roles"]:
        if row["name"] == source.name:
            win, role = row["win"], str(row["role"])
            yield EvalResult(
                **game,
                task_name=f"Adversarial Taboo: {_SIDES[role]}",
                dataset_name=f"Adversarial Taboo as {role}, {arena['words']} held-out words",
                dataset_config=role,
                metric_type="win_rate",
                metric_name=f"games won, 95 % interval {win['low']:.3f} to {win['high']:.3f}",
                metric_value=round(win["rate"], 4),
            )
    for row in arena["ratings"]:
        if row["name"] == source.name:
            yield EvalResult(
                **game,
                task_name="Adversarial Taboo, both roles",
                dataset_name=f"Adversarial Taboo, {arena['words']} held-out words",
                dataset_config="both",
                metric_type="elo",
                metric_name=f"Elo points over the run's first player, 95 % interval {row['low']:.0f} to {row['high']:.0f}",
                metric_value=round(row["points"], 1),
            )


def _reasoning_results(source: Source) -> Iterator[EvalResult]:
    reasoning = source.run.reasoning if source.run else None
    figures = (reasoning or {"models": {}})["models"].get(source.name)
    if reasoning is None or figures is None:
        return
    for task, about in reasoning["tasks"].items():
        figure = figures["tasks"][task]
        yield EvalResult(
            task_type="text-generation",
            task_name="Reasoning",
            dataset_type=task,
            dataset_name=about["label"],
            dataset_args={"num_few_shot": about["shots"]},
            metric_type=about["metric"],
            metric_name=f"{about['metric']}, standard error {figure['se']:.4f}" if figure.get("se") is not None else about["metric"],
            metric_value=round(figure["value"], 4),
        )
