"""The machine's resources that this process may use, and how it returns memory."""

import ctypes
import gc
import os
import resource
from pathlib import Path

import psutil

_MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int:
    """Return the memory in bytes, as limited by the system or a container."""
    texts = [path.read_text(encoding="ascii", errors="replace").strip() for path in _MEMORY_LIMITS if path.is_file()]
    return min(psutil.virtual_memory().total, *(int(text) for text in texts if text.isdigit()), 1 << 60)


def free_objects() -> None:
    """Free objects that only refer to each other, such as models and their wrappers, and return their memory."""
    gc.collect()
    trim_heap()


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
    differ in length, so nearly all of these are used once. To be called before the first product: the limits are read
    then. ``LRU_CACHE_CAPACITY`` is torch's, the other oneDNN's; both caches hold the same kernels.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def core_count() -> int:
    """Return how many cores the machine has, including those that this process may not use."""
    return os.cpu_count() or 1


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else core_count()


def open_files() -> int:
    """Return how many files and connections this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
