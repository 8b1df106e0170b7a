"""Processes that tests may kill: forks of a server that has imported torch and transformers once, and has computed
nothing.
"""

import atexit
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

import warm
from game_files import reached, wait_until
from spag.cli import main

_STORES: list[TCPStore] = []
"""Where pairs of processes meet; they go with this process."""
_SERVER = multiprocessing.get_context("forkserver")
MODULES = ["transformers.models.llama.modeling_llama", "transformers.trainer", "spag.learning.worker", __name__]
"""What the server imports when it starts, as tests need not; a test's module may add what its forks need."""
gc.freeze()  # in the server; a collection in a fork would copy every page
atexit.register(gc.unfreeze)  # or extensions complain of leaks


def start(target: Callable[..., Any], *arguments: Any, environment: dict[str, str] | None = None) -> BaseProcess:
    """Call ``target``, a function of a module, in a process of its own, on one core. Its ``exitcode`` is -9 once it was
    killed.
    """
    _start_server()
    process = _SERVER.Process(target=_work, args=(target, arguments, environment or {}))
    process.start()
    return process


def start_pair(target: Callable[..., Any], *arguments: Any) -> list[BaseProcess]:
    """Call ``target`` in two processes that find each other as torchrun's do."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # else another may take the port
    _STORES.append(store)
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    group |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))
    return [start(target, *arguments, environment=group | rank) for rank in ranks]


@cache
def _start_server() -> None:
    """Python 3.11 forgets to tell the server where its modules are."""
    _SERVER.set_forkserver_preload(MODULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()


@contextmanager
def server(folder: Path, modules: Sequence[str], **environment: str) -> Iterator[str]:
    """Yield the address of a server, in ``folder``, of forks that have imported ``modules`` too: see ``warm.py``."""
    address = folder / "server"
    process = start(warm.serve, str(address), modules, environment=environment)
    wait_until(address.exists)
    try:
        yield str(address)
    finally:
        process.kill()
        process.join()


def held(path: Path, lines: int, target: Callable[..., Any], *arguments: Any) -> None:
    """Call ``target``, which makes nothing more durable once ``path`` holds so many lines: whoever is to kill it then
    comes in time, however busy the machine is.
    """
    sync = os.fsync

    def wait_or_sync(descriptor: int) -> None:
        if reached(path, lines):
            time.sleep(3600)
        sync(descriptor)

    os.fsync = wait_or_sync
    target(*arguments)


def end(process: BaseProcess, seconds: float = 300.0) -> int | None:
    """Wait for the end of a process, and return its exit code."""
    process.join(seconds)
    return process.exitcode


def _work(target: Callable[..., Any], arguments: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ |= environment
    torch.set_num_threads(1)
    target(*arguments)


def run_command(*arguments: str) -> None:
    """Do what the command ``spag`` does, as a target of ``start``."""
    main(arguments)


def run_in(folder: str, *arguments: str) -> None:
    """Do what the command ``spag`` does in ``folder``, whose packages it finds, as a target of ``start``."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    main(arguments)


def printing(output: str, target: Callable[..., Any], *arguments: Any) -> None:
    """Call ``target`` with what it prints going to the file ``output``, as a target of ``start``. Ctrl-C stops it even
    if a shell's background would ignore that.
    """
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False, buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    target(*arguments)
