"""Processes that would import for ten seconds first, as forks of the server that has: Ray's workers and vLLM's.

Whoever starts such a process starts this file instead, ``python -IS warm.py ADDRESS PROGRAM ...``, which asks the
server at that socket (``forked.server``) for a fork, gives it its own environment, folder and files, and ends as the
fork ends. If it is killed, so is the fork.
"""

import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

_FIRST_FREE = 500  # above every number that a program's own files have
_PR_SET_PDEATHSIG = 1


def command(address: str, program: Sequence[str]) -> list[str]:
    """Return what to start in place of ``program``, the arguments of a Python interpreter."""
    return [sys.executable, "-IS", __file__, address, *program]


def parent_of(pid: int, address: str) -> int | None:
    """Return the process that asked the server for its fork ``pid``; ``None`` if that is another process."""
    with suppress(FileNotFoundError):
        return int(Path(address).with_name(f"{pid}.parent").read_text())
    return None


def serve(address: str, modules: Sequence[str]) -> None:
    """Import ``modules``, then fork for whoever connects to ``address``, as long as the parent process lives."""
    _end_with(os.getppid())
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{address}.new")
        server.listen()
        Path(f"{address}.new").rename(address)
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _guard(client, Path(address).parent)
            client.close()


def _end_with(parent: int) -> None:
    """As ``exit_with_parent``, without its thread: a process that forks has none."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _guard(client: socket.socket, folder: Path) -> None:
    """Fork the process that the client asks for, and kill it if the client goes first."""
    status = 1
    try:
        _end_with(os.getppid())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        message, files, _, _ = socket.recv_fds(client, 1 << 22, 64)
        asked, guard = json.loads(message), os.getpid()
        if (process := os.fork()) == 0:
            client.close()
            _end_with(guard)
            note = folder / f"{os.getpid()}.parent"  # there before anybody can ask for it
            note.write_text(str(_parent(asked["client"])))
            _become(asked, files)
        ended = os.pidfd_open(process)
        if client in select.select([client, ended], [], [])[0]:
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        (folder / f"{process}.parent").unlink(missing_ok=True)
        with suppress(OSError):
            client.sendall(f"{status} {guard}".encode())
    finally:
        os._exit(status != 0)


def _parent(process: int) -> int:
    from psutil import Process  # not at the top: who asks for a fork starts without packages

    return Process(process).ppid()


def _become(asked: dict[str, Any], files: list[int]) -> None:
    """Run the program that was asked for, and end."""
    status = 1
    try:
        kept = [fcntl.fcntl(file, fcntl.F_DUPFD, _FIRST_FREE) for file in files]
        for file, wanted in zip(kept, asked["files"], strict=True):
            os.dup2(file, wanted)
        os.environ.clear()
        os.environ |= asked["environment"]
        os.chdir(asked["folder"])
        added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
        sys.path[:0] = added
        for own in (Path(path, "sitecustomize.py") for path in added):
            if own.is_file():
                runpy.run_path(str(own))
        sys.argv = asked["program"]
        os.getppid = lambda: _parent(asked["client"])  # as if the client had become this process
        if sys.argv[0] == "-c":
            code = sys.argv.pop(1)
            exec(code, {"__name__": "__main__"})
        elif sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - as Python does
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def become(address: str, program: list[str], environment: dict[str, str]) -> None:
    """Have a fork of the server at ``address`` run ``program``, and end as it ends."""
    files = sorted(int(file.name) for file in Path("/proc/self/fd").iterdir() if file.exists())
    asked = {"program": program, "files": files, "folder": str(Path.cwd()), "client": os.getpid()}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps({**asked, "environment": environment}).encode()], files)
        status, guard = map(int, (server.recv(32) or b"1 0").split())
    with suppress(OSError):  # it has ended
        select.select([os.pidfd_open(guard)], [], [])
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    become(sys.argv[1], sys.argv[2:], dict(os.environ))
