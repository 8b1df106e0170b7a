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
    except (MemoryError, OSError, RuntimeError, SafetensorError) as error:
        text = str(error).lower()
        is_disk = error.errno in _DISK_ERRNOS if isinstance(error, OSError) else any(known in text for known in _DISK_TEXTS)
        if is_disk:
            path = getattr(error, "filename", None) or output
            fix = "free some space and start again, training resumes"
            raise StorageError(f"{path}: cannot be written ({first_line(error, 200)}); {fix}") from error
        if isinstance(error, MemoryError) or any(known in text for known in _MEMORY_TEXTS):
            fix = "lower micro_batch_size or max_length, switch gradient_checkpointing on, or train a LoRA adapter"
            raise RunError(f"{output}: out of memory while training; {fix}, and start again: training resumes") from error
        raise
