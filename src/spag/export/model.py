"""The export of a model: find, load, merge a LoRA adapter into its base, save with a card, push to the hub."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from safetensors import SafetensorError

from spag.config.files import dump_config
from spag.core.errors import ConfigError, ModelError, RunError, StorageError, first_line
from spag.engines.players import Kind, kind_of
from spag.export.card import CONFIG, Weights, card, shareable_config
from spag.export.metadata import ExportSource
from spag.models.finding import adapter_base, resolve_model
from spag.models.loading import load_model, load_tokenizer, no_progress_bars, save_model
from spag.models.refusals import loading
from spag.runs.layout import BASE
from spag.runs.reading import RunFolder
from spag.storage.home import expanded
from spag.storage.manifest import MANIFEST
from spag.storage.store import new_folder, write_atomically

TOKEN = "HF_TOKEN"  # the only source of the hub's token: a stored login never publishes anything
_EARLIER_WEIGHTS = ["model*.safetensors", "model.safetensors.index.json", "adapter_*"]  # might be loaded instead


@dataclass(frozen=True, slots=True)
class Destination:
    """A repository on the hub. ``private``: a new one becomes private; an existing one must be private."""

    repo: str
    private: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export. ``url``: the address that it was pushed to."""

    folder: Path
    weights: Weights
    url: str | None


def find_source(what: str, name: str | None = None) -> ExportSource:
    """Return the model named by ``what``: a run folder, a checkpoint in one, or any model.

    ``name``: which of a run's models, by default the last. Raises ``RunError`` and ``ModelError``.
    """
    path = expanded(what)
    if (path / MANIFEST).is_file():
        return _source_in(path, name)
    if name is not None:
        raise RunError(f"--name {name}: {what} is no run folder, so there is nothing to choose from; leave --name out")
    place = path.absolute()
    for run in place.parents[1:3] if place.name == "checkpoint" else ():
        if (run / MANIFEST).is_file() and (run / "config.yaml").is_file():
            inside = place.parent.relative_to(run).as_posix()
            models = {model.folder: model.name for model in RunFolder(run).models}
            return _source_in(run, models.get(inside, inside))
    if kind_of(what) is Kind.ENDPOINT:
        raise ModelError(f"{what}: a model behind an endpoint has no weights here to export")
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
    source: ExportSource,
    output: Path,
    *,
    dtype: str | None = None,
    destination: Destination | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Export ``source`` into the new folder ``output``, and push it to ``destination``; progress goes to ``note``.

    Raises ``RunError`` for a folder in use, ``ModelError`` for a model that cannot be loaded, ``ConfigError`` for an
    invalid destination, and ``StorageError`` for disk and network errors.
    """
    if destination:
        check_destination(destination)
    output = output.absolute()
    with new_folder(output, "an export") as folder:
        note(f"loading {source.model}")
        weights = save_weights(source, folder, dtype)
        if source.run and source.run.config:
            write_atomically(folder / CONFIG, dump_config(shareable_config(source.run.config)))
        write_atomically(folder / "README.md", card(output.name, source, weights))
    if destination is None:
        return Exported(output, weights, None)
    note(f"uploading to {destination.repo}")
    return Exported(output, weights, push(output, destination))


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
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes files readable only by their owner
    return Weights(wanted, model.num_parameters(), merged)


def default_dtype(source: ExportSource) -> str:
    """Return the dtype in which the run played and was measured; without a run, that of the saved weights.

    Checkpoints are float32, whatever dtype the run played in.
    """
    from transformers import AutoConfig  # noqa: PLC0415 - slow

    if source.run and source.run.config and source.run.config.model.dtype != "auto":
        return source.run.config.model.dtype
    resolved = resolve_model(source.model)
    base = adapter_base(Path(resolved))
    place = resolved if base is None else resolve_model(base)
    with loading(source.model, place, trust_remote_code=source.trust_remote_code), no_progress_bars():
        config = AutoConfig.from_pretrained(place, trust_remote_code=source.trust_remote_code)
    return str(config.dtype or "float32").removeprefix("torch.")


def check_destination(destination: Destination) -> None:
    """Raise ``ConfigError`` for a destination that is not OWNER/NAME, or if there is no token."""
    try:
        validate_repo_id(destination.repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {destination.repo}: {first_line(error)}") from error
    if "/" not in destination.repo:
        raise ConfigError(f"--push {destination.repo}: name the owner too, as in --push YOUR-NAME/{destination.repo}")
    if not os.environ.get(TOKEN):
        raise ConfigError(f"--push {destination.repo}: {TOKEN} is not set; put a token with write access into it")


def push(folder: Path, destination: Destination, hub: HfApi | None = None) -> str:
    """Upload ``folder`` as a commit; return the repository's address. Raises ``StorageError``; the folder stays."""
    api, repo = hub or HfApi(token=os.environ.get(TOKEN)), destination.repo
    try:
        url = api.create_repo(repo, private=destination.private or None, exist_ok=True)
        if destination.private and not api.repo_info(repo).private:
            raise StorageError(f"{repo}: exists and is public; choose another name, or leave --private out")
        api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message="Export of spag", delete_patterns=_EARLIER_WEIGHTS
        )
    except (OSError, HTTPError, ValueError) as error:
        fix = f"{folder} is complete: fix this, then hf upload {repo} {folder}"
        raise StorageError(f"{repo}: not uploaded: {first_line(error)}; {fix}") from error
    return str(url)
