"""The export of a model: found, loaded, a LoRA adapter merged into its base, saved with its card, and pushed to the hub."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]  # of httpx or httpx2, by the hub's version
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from safetensors import SafetensorError

from spag.config.files import dump_config
from spag.core.disk import storage_errors
from spag.core.errors import ConfigError, ModelError, RunError, StorageError, first_line
from spag.core.store import folder_beside, write_atomically
from spag.engines.opening import OPENAI_PREFIX
from spag.export.card import CONFIG, Weights, card, shareable_config
from spag.export.metadata import Source
from spag.models.finding import adapter_base, resolve_model
from spag.models.loading import load_model, load_tokenizer, no_progress_bars, save_model
from spag.models.refusals import loading
from spag.runs.folder import BASE, trained_models
from spag.runs.reading import RunFolder

TOKEN = "HF_TOKEN"
"""The only place that the hub's token is taken from, so that nothing is published under a name that was forgotten on the machine."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A repository on the hub. private: make it private where it is new; where it exists, insist on it."""

    repo: str
    private: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export. url: where it was pushed."""

    folder: Path
    weights: Weights
    url: str | None


def find_source(what: str, name: str | None = None) -> Source:
    """Return the model that ``what`` names: a run folder, a checkpoint in one, or any model.

    ``name`` chooses among a run's models; by default the last that was trained. Raises ``RunError`` for a run without that model, and
    ``ModelError`` for what has no weights here.
    """
    path = Path(what).expanduser()
    if (path / "manifest.json").is_file():
        return _source_in(path, name)
    if name is not None:
        raise RunError(f"--name {name}: {what} is no run folder, so there is nothing to choose from; leave --name out")
    run = path.parent.parent
    if path.name == "checkpoint" and (run / "manifest.json").is_file():
        return _source_in(run, path.parent.name)
    if what.startswith(OPENAI_PREFIX):
        raise ModelError(f"{what}: a model behind an endpoint has no weights here to export")
    base = adapter_base(path) or (None if path.exists() else what)
    return Source(name=Path(what).stem if path.is_file() else path.name, model=what, base=base, run=None)


def _source_in(folder: Path, name: str | None) -> Source:
    run, trained = RunFolder.open(folder), trained_models(folder)
    if name is None and not trained:
        raise RunError(f"{folder}: no model has been trained yet; resume it with spag run, or export what it starts from: --name {BASE}")
    chosen = name or list(trained)[-1]
    base = run.config.model.name if run.config else None
    if chosen == BASE:
        if base is None:
            raise RunError(f"{folder}: no config.yaml, so nothing tells which model it started from; export that model by its name")
        return Source(BASE, base, base, run)
    if chosen not in trained:
        raise RunError(f"{folder}: no trained model {chosen!r}; there are: {', '.join((BASE, *trained))}")
    return Source(chosen, trained[chosen], base, run)


def export_model(
    source: Source,
    output: Path,
    *,
    dtype: str | None = None,
    destination: Destination | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Export ``source`` into the new folder ``output``, and push it where there is a ``destination``; progress goes to ``note``.

    ``dtype`` as ``default_dtype`` by default. Raises ``RunError`` for a folder that is in use, ``ModelError`` for what cannot be loaded,
    ``ConfigError`` for a destination that cannot work, and ``StorageError`` for disk and network.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunError(f"{output}: is there already, and an export overwrites nothing; name another --output or remove it")
    if destination:
        check_destination(destination)
    with storage_errors(output), folder_beside(output) as beside:
        folder = beside / "model"
        note(f"loading {source.model}")
        weights = save_weights(source, folder, dtype)
        if source.run and source.run.config:
            write_atomically(folder / CONFIG, dump_config(shareable_config(source.run.config)))
        write_atomically(folder / "README.md", card(output.name, source, weights))
        if output.exists():
            output.rmdir()
        folder.rename(output)
    if destination is None:
        return Exported(output, weights, None)
    note(f"uploading to {destination.repo}")
    return Exported(output, weights, push(output, destination))


def save_weights(source: Source, folder: Path, dtype: str | None = None) -> Weights:
    """Save the model of ``source`` with its tokenizer and generation config into ``folder``; ``dtype`` as ``default_dtype`` by default.

    An adapter is merged in float32, whatever ``dtype``: rounding comes last and once. Raises ``ModelError``, and ``StorageError`` when the
    disk is full.
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

    Training saves float32, whatever dtype it plays in; so the export of a run that played in bfloat16 is half as large as its checkpoint.
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
    """Raise ``ConfigError`` for what can be seen to fail before the work: no OWNER/NAME, or no token."""
    try:
        validate_repo_id(destination.repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {destination.repo}: {first_line(error)}") from error
    if "/" not in destination.repo:
        raise ConfigError(f"--push {destination.repo}: name the owner too, as in --push YOUR-NAME/{destination.repo}")
    if not os.environ.get(TOKEN):
        raise ConfigError(f"--push {destination.repo}: {TOKEN} is not set; put a token with write access into it")


def push(folder: Path, destination: Destination) -> str:
    """Upload ``folder`` as the repository's newest commit and return its address. Raises ``StorageError``; the folder stays."""
    api, repo = HfApi(token=os.environ.get(TOKEN)), destination.repo
    try:
        url = api.create_repo(repo, private=destination.private or None, exist_ok=True)
        if destination.private and not api.repo_info(repo).private:
            raise StorageError(f"{repo}: exists and is public, so --private cannot hold; choose another name, or leave it out")
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Export of spag")
    except (OSError, HTTPError, ValueError) as error:
        raise StorageError(
            f"{repo}: not uploaded: {first_line(error)}; {folder} is complete: fix this, then hf upload {repo} {folder}"
        ) from error
    return str(url)
