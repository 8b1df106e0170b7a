"""Files shared with other processes: checks of output paths, locks, and one-line errors for failed writes.

Locks are the kernel's (``flock``): they end with the process that holds them, however it dies. A file system without
locks (some mounts of NFS and Lustre) excludes nobody.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from spag.core.errors import RunError, StorageError

_FIXES = {
    "free space, then run again to resume": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "fix permissions, then run again to resume": (errno.EACCES, errno.EPERM, errno.EROFS),
    "choose another output": (
        errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
    ),
}  # fmt: skip
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` from writing ``path`` into a one-line ``StorageError``."""
    try:
        yield
    except OSError as error:
        fixes = (fix for fix, codes in _FIXES.items() if error.errno in codes)
        fix = next(fixes, "free space or fix permissions, then run again to resume")
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
    """Open ``path``, made if needed, and lock it until the descriptor is closed; ``None`` if another process holds it.

    A file that was renamed or removed between opening and locking is opened again: the lock is on the one at ``path``.
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


@contextmanager
def locked_if_free(folder: Path) -> Iterator[bool]:
    """Lock a folder itself; return whether that worked: it fails if another process holds it, or without locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # gone, or another user's
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except OSError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)


def lock_folder(folder: Path) -> AbstractContextManager[None]:
    """Keep other processes out of ``folder``. Raises ``RunError`` while another process is in it."""
    return _locked(folder / ".lock", folder, "is working in this run folder")


def lock_file(path: Path) -> AbstractContextManager[None]:
    """Keep other processes from adding to a file. Raises ``RunError`` while another one does.

    The lock is a separate file, ``.NAME.lock``, because the file itself may be replaced.
    """
    real = real_output(path)
    does = "is writing this file; wait for it, or choose another output"
    return _locked(real.with_name(f".{real.name}.lock"), path, does)


@contextmanager
def _locked(path: Path, shown: Path, does: str) -> Iterator[None]:
    """Hold ``path``, a file with its holder's pid, and remove it. ``shown``, ``does``: the error's path and words."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(path):
        if (descriptor := open_locked(path)) is None:
            holder = ""
            with suppress(FileNotFoundError):  # its holder may have ended since
                holder = path.read_bytes()[:20].decode(errors="replace").strip()
            raise RunError(f"{shown}: another process (pid {holder or 'unknown'}) {does}")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
    try:
        yield
    finally:
        with suppress(OSError):  # still locked: a process that opened it meanwhile notices that it is gone
            path.unlink()
        os.close(descriptor)
