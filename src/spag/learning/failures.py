"""Machine failures during training as one-line errors: out of memory, disk full.

torch and safetensors wrap the operating system's errors in their own exceptions and name the cause only in the text.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from spag.core.errors import RunError, SpagError, StorageError, first_line

_DISK_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
_DISK_TEXTS = (
    "no space left on device",
    "disk quota exceeded",
    "file write failed",
    "failed writing file",
    "unexpected pos",
)
_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")


@contextmanager
def clear_failures(output: Path) -> Iterator[None]:
    """Raise ``StorageError`` or ``RunError`` in place of the libraries' errors when disk or memory run out. Other
    errors and interrupts pass through.
    """
    try:
        yield
    except CheckpointException as error:  # not an Exception: torch's, from the first process that failed
        cause = next((cause for cause, _ in error.failures.values()), error)
        if isinstance(cause, KeyboardInterrupt):  # interrupted while a checkpoint was written
            raise cause from None
        described = _clear(cause, output) if isinstance(cause, Exception) else None
        fix = f"remove {output / 'state'} to begin this training again"
        raise described or RunError(
            f"{output}: its state cannot be read or written: {type(cause).__name__}; {fix}"
        ) from error
    except (MemoryError, OSError, RuntimeError, SafetensorError) as error:
        if described := _clear(error, output):
            raise described from error
        raise


def _clear(error: Exception, output: Path) -> SpagError | None:
    """Return the one-line error for a library's error, ``None`` if neither disk nor memory is the cause."""
    text = str(error).lower()
    if _is_of_disk(error, text):
        path = getattr(error, "filename", None) or output
        fix = "free some space and start again, training resumes"
        return StorageError(f"{path}: cannot be written ({first_line(error, 200)}); {fix}")
    if isinstance(error, MemoryError) or any(known in text for known in _MEMORY_TEXTS):
        fix = "lower micro_batch_size (offline also max_length), set gradient_checkpointing, or train a LoRA adapter"
        return RunError(f"{output}: out of memory while training; {fix}, and start again: training resumes")
    return None


def _is_of_disk(error: Exception, text: str) -> bool:
    if isinstance(error, OSError):
        return error.errno in _DISK_ERRNOS
    return any(known in text for known in _DISK_TEXTS)
