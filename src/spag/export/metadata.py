"""The card's metadata, which the hub uses for search and categories (huggingface.co/docs/hub/model-cards)."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData, try_to_load_from_cache
from yaml import YAMLError

from spag.config.schema import RunConfig
from spag.core.errors import ModelError, first_line
from spag.export.training import ancestry, trained_games
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
    ``load_model``. ``base``: the model from which training started; ``None`` if unknown. ``run``: a run folder
    with its config; ``None`` outside of one.
    """

    name: str
    model: str
    base: str | None
    run: RunFolder | None

    @property
    def config(self) -> RunConfig | None:
        return self.run.config if self.run else None

    @property
    def trust_remote_code(self) -> bool:
        return bool(self.config and self.config.model.trust_remote_code)


def card_data(source: ExportSource) -> ModelCardData:
    """Return the metadata: base, licence, languages and games."""
    hub_id, run = _hub_id(source.base), source.run
    games = trained_games(ancestry(source.name, run)) if run else []
    languages = list(dict.fromkeys(settings_of(game).get("language", "en") for game in games)) or ["en"]
    named = [run.game, *games] if run else []  # the arena's game comes first
    trained: dict[str, Any] = {"base_model_relation": "finetune"} if hub_id and source.model != source.base else {}
    return ModelCardData(
        base_model=hub_id,
        license=license_of(source.base or source.model),
        language=languages if len(languages) > 1 else languages[0],
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["spag", "self-play", *dict.fromkeys(game.name.replace("_", "-") for game in named)],
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
