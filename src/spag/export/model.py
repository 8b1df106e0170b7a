"""The export of a model: find, load, merge a LoRA adapter into its base, save with a card."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from spag.config.files import dump_config
from spag.core.errors import ModelError, RunError, StorageError, first_line
from spag.engines.players import Kind, kind_of
from spag.export.card import CONFIG, Weights, card, shareable_config
from spag.export.metadata import ExportSource
from spag.models.finding import adapter_base, resolve_model
from spag.models.loading import load_model, load_tokenizer, quietly, save_model
from spag.models.refusals import loading
from spag.runs.layout import BASE
from spag.runs.reading import RunFolder
from spag.storage.home import expanded
from spag.storage.manifest import MANIFEST
from spag.storage.store import new_folder, write_atomically


def find_source(what: str, name: str | None = None) -> ExportSource:
    """Return the model named by ``what``: a run folder, a checkpoint in one, or any model.

    ``name``: which of a run's models, by default the last. Raises ``RunError`` and ``ModelError``.
    """
    path = expanded(what)
    if (path / MANIFEST).is_file():
        return _source_in(path, name)
    if name is not None:
        raise RunError(f"--name {name}: {what} is not a run folder, so there is nothing to choose from; omit --name")
    place = path.absolute()
    for run in place.parents[1:3] if place.name == "checkpoint" else ():
        if (run / MANIFEST).is_file() and (run / "config.yaml").is_file():
            inside = place.parent.relative_to(run).as_posix()
            models = {model.folder: model.name for model in RunFolder(run).models}
            return _source_in(run, models.get(inside, inside))
    if kind_of(what) is Kind.ENDPOINT:
        raise ModelError(f"{what}: a model behind an endpoint has no local weights to export")
    base = adapter_base(path) or (None if path.exists() else what)
    return ExportSource(name=Path(what).stem if path.is_file() else path.name, model=what, base=base, run=None)


def _source_in(folder: Path, name: str | None) -> ExportSource:
    run = RunFolder.open(folder)
    if run.config is None:
        raise RunError(f"{folder}: no config.yaml names the run's models; export a checkpoint by its folder")
    models = run.checkpoints()
    if name is None and [*models] == [BASE]:
        fix = f"resume it with spag run, or export what it starts from: --name {BASE}"
        raise RunError(f"{folder}: no model has been trained yet; {fix}")
    chosen = name or [*models][-1]
    if chosen not in models:
        raise RunError(f"{folder}: no trained model {chosen!r}; there are: {', '.join(models)}")
    return ExportSource(chosen, models[chosen], run.config.model.name, run)


def export_model(
    source: ExportSource, output: Path, *, dtype: str | None = None, note: Callable[[str], None] = lambda _: None
) -> Weights:
    """Export ``source`` into the new folder ``output``; progress goes to ``note``.

    Raises ``RunError`` for a folder in use, ``ModelError`` for a model that cannot be loaded, and ``StorageError``.
    """
    with new_folder(output, "an export") as folder:
        note(f"loading {source.model}")
        weights = save_weights(source, folder, dtype)
        if source.config:
            write_atomically(folder / CONFIG, dump_config(shareable_config(source.config)))
        write_atomically(folder / "README.md", card(output.absolute().name, source, weights))
    return weights


def save_weights(source: ExportSource, folder: Path, dtype: str | None = None) -> Weights:
    """Save model, tokenizer and generation config into ``folder``. An adapter is merged in float32, then rounded once.

    ``dtype``: by default ``default_dtype``. Raises ``ModelError``, and ``StorageError`` when the disk is full.
    """
    import torch  # noqa: PLC0415 - slow

    merged = adapter_base(Path(resolve_model(source.model))) is not None
    wanted = dtype or default_dtype(source)
    tokenizer = load_tokenizer(source.model, trust_remote_code=source.trust_remote_code)
    loading = "float32" if merged else wanted
    model: Any = load_model(source.model, dtype=loading, device="cpu", trust_remote_code=source.trust_remote_code)
    if merged:
        try:
            model = model.merge_and_unload(safe_merge=True)
        except ValueError as error:  # from peft, for NaN weights
            fault = f"the adapter cannot be merged into its base: {first_line(error)}"
            raise ModelError(f"{source.model}: {fault}") from error
    model.to(getattr(torch, wanted))
    try:
        save_model(model, tokenizer, folder)
    except SafetensorError as error:  # a full disk
        fault = f"cannot be written: {first_line(error)}; free some space and export again"
        raise StorageError(f"{folder.parent.parent}: {fault}") from error
    return Weights(wanted, model.num_parameters(), merged)


def default_dtype(source: ExportSource) -> str:
    """Return the dtype in which the run played and was measured; without a run, that of the saved weights.

    Checkpoints are float32, whatever dtype the run played in.
    """
    from transformers import AutoConfig  # noqa: PLC0415 - slow

    if source.config and source.config.model.dtype != "auto":
        return source.config.model.dtype
    resolved = resolve_model(source.model)
    base = adapter_base(Path(resolved))
    place = resolved if base is None else resolve_model(base)
    with loading(source.model, place, trust_remote_code=source.trust_remote_code), quietly():
        config = AutoConfig.from_pretrained(place, trust_remote_code=source.trust_remote_code)
    return str(config.dtype or "float32").removeprefix("torch.")
