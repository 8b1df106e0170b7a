"""This process on its machine: the resources that it may use, how it returns memory, and ends with its parent."""

import ctypes
import gc
import ipaddress
import os
import resource
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def memory_bytes() -> int:
    """Return the memory in bytes, as limited by the system or a container."""
    texts = [path.read_text(encoding="ascii", errors="replace").strip() for path in _MEMORY_LIMITS if path.is_file()]
    return min([psutil.virtual_memory().total, *(int(text) for text in texts if text.isdigit())])


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of ``path``, which need not exist."""
    for place in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):  # not there, or out of reach
            return shutil.disk_usage(place).free
    return 0


def free_objects() -> None:
    """Free objects that only refer to each other, such as models and their wrappers, and return their memory: torch
    keeps a GPU's, and other processes, such as vLLM's, need it.
    """
    gc.collect()
    trim_heap()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def trim_heap() -> None:
    """Return freed memory that the C library keeps to the system; only glibc keeps much, and has a function for it.

    This takes time, since later objects need fresh pages: worthwhile between phases of work, but not after each update.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def limit_kernel_caches() -> None:
    """Let torch keep compiled matrix products of 64 shapes instead of 1,024, unless the environment says otherwise.

    On CPUs, oneDNN compiles a bfloat16 product for each number of rows and keeps it, about 0.8 MB each. Rows of text
    differ in length, so nearly all of these are used once. Call this before the first product: the limits are read
    then. ``LRU_CACHE_CAPACITY`` is torch's, the other oneDNN's; both caches hold the same kernels.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_files() -> int:
    """Return how many files and connections this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is localhost or a loopback address."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def exit_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent process ``parent`` is gone, however it dies: even by ``kill -9``.

    Linux does so at once, even if this process hangs. It treats the thread that started us as the parent, so that
    thread must outlive us. Besides, a thread checks once a second who our parent is.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="spag-parent", daemon=True).start()
