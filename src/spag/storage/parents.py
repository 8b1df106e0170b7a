"""A process that ends with its parent, however the parent dies: even by ``kill -9``, when nothing can clean up."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_S = 1.0


def exit_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent process ``parent`` is gone.

    Linux does so at once, even if this process hangs. It treats the thread that started us as the parent, so that
    thread must outlive us. Elsewhere a thread checks once a second who our parent is.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _end_if_orphan(parent)  # it may have died before that
    threading.Thread(target=_watch, args=(parent,), name="spag-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        time.sleep(_POLL_S)
        _end_if_orphan(parent)


def _end_if_orphan(parent: int) -> None:
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
