"""The export in order: weights, GGUF, card and settings into a folder that is complete or absent; then the hub."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spag.config.files import dump_config
from spag.core.errors import RunError
from spag.core.store import folder_beside, storage_errors, write_atomically
from spag.export.card import Contents, card, shareable_config
from spag.export.gguf_file import GgufType, write_gguf
from spag.export.push import Destination, check_destination, push
from spag.export.sources import Source
from spag.export.weights import Weights, save_weights

CONFIG = "spag_config.yaml"


@dataclass(frozen=True, slots=True)
class Exported:
    """What came of an export. url: where it was pushed."""

    folder: Path
    weights: Weights
    gguf: Path | None
    url: str | None


def export_model(
    source: Source,
    output: Path,
    *,
    dtype: str | None = None,
    gguf: GgufType | None = None,
    destination: Destination | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Export ``source`` into the new folder ``output``, and push it where there is a ``destination``; ``note`` is told what goes on.

    ``dtype`` as ``weights.default_dtype`` by default. Raises ``RunError`` for a folder that is in use, ``ModelError`` for what cannot be
    loaded or written as GGUF, ``ConfigError`` for a destination that cannot work, and ``StorageError`` for disk and network.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunError(f"{output}: is there already, and an export overwrites nothing; name another --output or remove it")
    if destination:
        check_destination(destination)
    with storage_errors(output), folder_beside(output) as beside:
        weights, file = _fill(beside / "model", source, output.name, dtype, gguf, note)
        if output.exists():
            output.rmdir()
        (beside / "model").rename(output)
    url = None
    if destination:
        note(f"uploading to {destination.repo}")
        url = push(output, destination)
    return Exported(output, weights, output / file if file else None, url)


def _fill(
    folder: Path, source: Source, title: str, dtype: str | None, gguf: GgufType | None, note: Callable[[str], None]
) -> tuple[Weights, str | None]:
    note(f"loading {source.model}")
    weights = save_weights(source, folder, dtype)
    # in a folder of its own: beside a tokenizer_config.json, transformers takes half the tokenizer from there, and drops the chat template
    file = f"gguf/{title}-{gguf}.gguf" if gguf else None
    if gguf and file:
        note(f"writing {file}")
        (folder / file).parent.mkdir()
        write_gguf(folder, folder / file, gguf, name=title)
    if source.run and source.run.config:
        write_atomically(folder / CONFIG, dump_config(shareable_config(source.run.config)))
    contents = Contents(title, source, weights, gguf=file, config=CONFIG)
    write_atomically(folder / "README.md", card(contents))
    return weights, file
