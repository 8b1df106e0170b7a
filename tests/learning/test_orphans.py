"""Processes end with whoever started them, also when that one is killed and can clean up nothing."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import forked
from spag.engines.vllm.pool import VLLMReplica

SECONDS = 120.0  # vLLM's process gives its own 12 to end
"""After which nothing may be left of a killed launcher."""
VLLM = """
import os, time
from pathlib import Path


class EngineArgs:
    def __init__(self, **_): pass


class LLMEngine:
    @staticmethod
    def from_engine_args(arguments):
        Path(os.environ["HANGING"]).joinpath(f"worker-{os.getpid()}").touch()
        time.sleep(600)


class SamplingParams: pass
"""
"""A vLLM that never gets ready."""


def within(seconds: float, done: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.05)
    return done()


def workers(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("worker-")) for path in folder.glob("worker-*")]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_replica(folder: Path) -> None:
    """Open a vLLM that hangs, and hang with it."""
    os.environ["PYTHONPATH"] = str(folder)
    VLLMReplica(({}, (), 32), {"HANGING": str(folder)})
    time.sleep(600)


@pytest.mark.slow
@pytest.mark.long
def test_training_processes_end_with_a_killed_launcher(tmp_path: Path) -> None:
    from sleeping_job import launch

    launcher = forked.start(launch, tmp_path, environment={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert within(120, lambda: len(workers(tmp_path)) == 1 or not launcher.is_alive())
    assert len(alive(workers(tmp_path))) == 1
    launcher.kill()
    forked.end(launcher)
    assert within(SECONDS, lambda: not alive(workers(tmp_path))), "training processes outlive their launcher"


@pytest.mark.slow
def test_a_vllm_that_is_starting_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text(VLLM)
    launcher = forked.start(open_replica, tmp_path)
    assert within(120, lambda: len(workers(tmp_path)) == 1 or not launcher.is_alive())
    assert len(alive(workers(tmp_path))) == 1
    launcher.kill()
    forked.end(launcher)
    assert within(SECONDS, lambda: not alive(workers(tmp_path))), "a vLLM outlives the process that opened it"
