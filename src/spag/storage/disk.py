"""Files shared with other processes: checks of output paths, locks, and one-line errors for failed writes.

Locks are the kernel's (``flock``): they end with the process that holds them, however it dies. A file system without
locks (some mounts of NFS and Lustre) keeps nobody out.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from spag.core.errors import RunError, StorageError

_FIXES = {
    "free space, then run again to resume": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "fix rights, then run again to resume": (errno.EACCES, errno.EPERM, errno.EROFS),
    "choose another output": (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
}
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` from writing ``path`` into a one-line ``StorageError``."""
    try:
        yield
    except OSError as error:
        fix = next(
            (fix for fix, codes in _FIXES.items() if error.errno in codes),
            "free space or fix rights, then run again to resume",
        )
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}; {fix}") from error


def is_file_there(path: Path) -> bool:
    """Return whether the output file ``path`` exists. Raises ``StorageError`` if no file can exist there."""
    with storage_errors(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            return False
    if not stat.S_ISREG(mode):
        raise StorageError(f"{path}: is {_KINDS.get(stat.S_IFMT(mode), 'no file')}; choose the name of a file")
    return True


def real_output(path: Path) -> Path:
    """Return the file to write for ``path``: the target of a link. Raises the same errors as ``is_file_there``."""
    is_file_there(path)
    return Path(os.path.realpath(path))


def open_locked(path: Path) -> int | None:
    """Open ``path``, creating it if needed, and lock it until the descriptor is closed; ``None`` if another process
    holds it.

    A file that was renamed or removed between opening and locking is opened again, so the lock is on the file now at
    ``path``.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


class _Lock:
    """Keeps other processes away while the context is open. ``path``: a file with the pid of the holder; ``shown`` and
    ``does``: the path in the error, and what the holder does.
    """

    def __init__(self, path: Path, shown: Path, does: str) -> None:
        self._path, self._shown, self._does = path, shown, does

    def __enter__(self) -> Self:
        with storage_errors(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with storage_errors(self._path):
            descriptor = open_locked(self._path)
            if descriptor is None:
                holder = self._path.read_bytes()[:20].decode(errors="replace").strip() or "unknown"
                raise RunError(f"{self._shown}: another process (pid {holder}) {self._does}")
            self._descriptor = descriptor
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class FolderLock(_Lock):
    """Keeps other processes out of ``folder``. Raises ``RunError`` while another process is in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / ".lock", folder, "is working in this run folder")


class FileLock(_Lock):
    """Keeps other processes from adding to a file. Raises ``RunError`` while another one does.

    The lock is a separate file, ``.NAME.lock``, because the file itself may be replaced; it is removed in the end.
    """

    def __init__(self, path: Path) -> None:
        real = real_output(path)
        does = "is writing this file; wait for it, or choose another output"
        super().__init__(real.with_name(f".{real.name}.lock"), path, does)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # still locked: a process that opened it meanwhile notices that it is gone
            self._path.unlink()
        super().__exit__()
