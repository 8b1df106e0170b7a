"""Failures of the machine during training as errors of one line: out of memory, disk full.

torch and safetensors wrap the operating system's errors in exceptions of their own and name the cause in the text only.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from spag.core.errors import RunError, StorageError, first_line

_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
_DISK_TEXTS = ("no space left on device", "disk quota exceeded", "file write failed", "failed writing file", "unexpected pos")
_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def clear_failures(output: Path) -> Iterator[None]:
    """Raise ``StorageError`` or ``RunError`` in place of the libraries' errors when disk or memory run out. Other errors pass."""
    try:
        yield
    except MemoryError as error:
        raise RunError(_memory_line(output)) from error
    except (OSError, RuntimeError, SafetensorError) as error:
        if _is_disk(error):
            path = getattr(error, "filename", None) or output
            raise StorageError(
                f"{path}: cannot be written ({first_line(error, 200)}); free some space and start again, training resumes"
            ) from error
        if any(text in str(error).lower() for text in _MEMORY_TEXTS):
            raise RunError(_memory_line(output)) from error
        raise


def _is_disk(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _DISK_ERRNOS
    return any(text in str(error).lower() for text in _DISK_TEXTS)


def _memory_line(output: Path) -> str:
    remedy = "lower micro_batch_size or max_length, switch gradient_checkpointing on, or train a LoRA adapter"
    return f"{output}: out of memory while training; {remedy}, and start again: training resumes"
