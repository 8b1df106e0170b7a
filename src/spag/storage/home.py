"""Paths that begin with a home folder: ``~/models`` or ``~ada/models``."""

from pathlib import Path

from spag.core.errors import ModelError, SpagError


def expanded(path: str | Path, kind: type[SpagError] = ModelError) -> Path:
    """Return ``path`` with ``~`` or ``~USER`` expanded. Raises ``kind`` if there is no such home folder."""
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError) as error:  # ValueError: a null byte, as in a damaged adapter's config
        start = Path(path).parts[0]
        raise kind(f"{str(path)!r}: there is no home folder {start!r} here; write the full path") from error
