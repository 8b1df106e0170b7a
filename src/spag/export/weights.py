"""The weights of an export: loaded, a LoRA adapter merged into its base, cast, saved as a plain transformers folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig

from spag.core.errors import ModelError, StorageError, first_line
from spag.export.sources import Source
from spag.models.loading import adapter_base, load_failure, load_model, load_tokenizer, no_progress_bars, resolve_model, save_model


@dataclass(frozen=True, slots=True)
class Weights:
    """What was saved. merged: whether an adapter was merged into its base."""

    dtype: str
    parameters: int
    merged: bool


def save_weights(source: Source, folder: Path, dtype: str | None = None) -> Weights:
    """Save the model of ``source`` with its tokenizer and generation config into ``folder``; ``dtype`` as ``default_dtype`` by default.

    An adapter is merged in float32, whatever ``dtype``: rounding comes last and once. Raises ``ModelError``, and
    ``StorageError`` when the disk is full.
    """
    resolved = resolve_model(source.model)
    merged = adapter_base(Path(resolved)) is not None
    wanted = dtype or default_dtype(source)
    loading = "float32" if merged else wanted
    tokenizer = load_tokenizer(source.model, trust_remote_code=source.trust_remote_code)
    model: Any = load_model(source.model, dtype=loading, device="cpu", trust_remote_code=source.trust_remote_code)
    if merged:
        try:
            model = model.merge_and_unload(safe_merge=True)
        except ValueError as error:  # peft's word for weights that are no numbers
            raise ModelError(f"{source.model}: the adapter cannot be merged into its base: {first_line(error)}") from error
    model.to(getattr(torch, wanted))
    try:
        save_model(model, tokenizer, folder)
    except SafetensorError as error:  # how a full disk shows
        raise StorageError(f"{folder.parent.parent}: cannot be written: {first_line(error)}; free some space and export again") from error
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes for the owner alone; an export is for others
    return Weights(wanted, model.num_parameters(), merged)


def default_dtype(source: Source) -> str:
    """Return the dtype in which the run played, so that its figures hold for the exported weights; without a run, the saved weights' own.

    Training saves float32, whatever play takes; so the export of a run that played in bfloat16 is half as large as its checkpoint.
    """
    if source.run and source.run.config and source.run.config.model.dtype != "auto":
        return source.run.config.model.dtype
    resolved = resolve_model(source.model)
    base = adapter_base(Path(resolved))
    place = resolved if base is None else resolve_model(base)
    try:
        with no_progress_bars():
            config = AutoConfig.from_pretrained(place, trust_remote_code=source.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(load_failure(source.model, place, error)) from error
    return str(config.dtype or torch.float32).removeprefix("torch.")
