"""The tree of errors that a user can cause.

    SpagError
    ├── ConfigError       a setting: unknown key, wrong value, unreadable config file
    ├── DataError         a data file: which file, which line, which value
    ├── ModelError        a model that cannot be found or loaded
    ├── EngineError       an engine that failed while generating (dead endpoint, out of memory)
    ├── RunError          a run folder: locked by another process, settings changed, stage missing
    └── StorageError      the disk: full, read-only, gone

The command line prints the message on one line, without a traceback, and exits with status 2. A message names the
place, the value and the fix.
"""

import importlib.util


class SpagError(Exception):
    """Base of all errors that a user can cause."""


class ConfigError(SpagError):
    """A setting is unknown or has a value that cannot work."""


class DataError(SpagError):
    """A data file contains something that cannot be read. The message starts with ``FILE:LINE:``."""


class ModelError(SpagError):
    """A model cannot be found or loaded."""


class EngineError(SpagError):
    """An engine failed while generating."""


class RunError(SpagError):
    """A run folder is in use, or its state does not allow the request."""


class StorageError(SpagError):
    """Writing to disk failed; what was written before stays readable."""


def require_package(package: str, setting: str, fix: str) -> None:
    """Raise ``ConfigError`` when ``setting`` needs a package that is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{setting}: {package} is not installed; {fix}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the machine or of a GPU was too small; torch has no type for all such errors."""
    said = str(error).lower()
    texts = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(text in said for text in texts)


def first_line(error: BaseException, longest: int = 300) -> str:
    """Return the message of another library's error as one line of at most ``longest`` characters: its first line, and
    the next if the first only introduces it.
    """
    lines = [" ".join(line.split()) for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:longest]
