"""What is left of vLLM's processes when they end. Needs no vLLM: stand-ins start the child of a tensor-parallel vLLM,
which ignores SIGTERM like one that hangs in NCCL.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fake_vllm import GIB, FakeGPU, installed
from spag.config.schema import PlannedEngine
from spag.engines.vllm import pool as vllm_pool
from spag.engines.vllm import worker
from spag.engines.vllm.setup import VLLMSettings, worker_environments

CHILD = """
import os, signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
"""
REPLICA = f"""{CHILD}
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
pipe.recv()
pipe.send(child.pid)
try:
    pipe.recv()
except EOFError:
    os._exit(0)
"""
HUNG = """
import multiprocessing, os, sys, time
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
pipe.recv()
started = multiprocessing.get_context(os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork"))  # as in vLLM's envs.py
child = started.Process(target=time.sleep, args=(600,))
child.start()
pipe.send(child.pid)
print("TimeoutError: RPC call to execute_model timed out.", flush=True)
os._exit(1)
"""
WORKER = f"""{CHILD}
from multiprocessing import Pipe
from queue import SimpleQueue
from spag.engines.vllm import worker
worker._GRACE_S = 0.1
ours, theirs = Pipe()
theirs.close()
print(child.pid, flush=True)
worker._read(ours, SimpleQueue())
"""


def is_gone(process: int) -> bool:
    """Whether a process ends soon; one that has ended may wait for its parent."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if psutil.Process(process).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_a_replica_that_ends_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_pool, "WORKER", [sys.executable, "-c", REPLICA])
    monkeypatch.setattr(vllm_pool, "_GROUP_CHECKS", 2)
    replica = vllm_pool.VLLMReplica(({}, (), 258), {})
    child = replica.receive()
    replica.close()
    assert is_gone(child)


@pytest.mark.slow
def test_a_replica_that_fails_is_noticed_while_its_child_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_pool, "WORKER", [sys.executable, "-P", "-c", HUNG])
    monkeypatch.setattr(vllm_pool, "_GROUP_CHECKS", 2)
    settings = VLLMSettings("m", "bfloat16", PlannedEngine(tensor_parallel=2), [[0, 1]])
    [environment] = worker_environments(settings, cores=[0], visible_gpus=["0", "1"])
    replica = vllm_pool.VLLMReplica(({}, (), 258), environment)
    child = replica.receive()
    noticed = replica.pipe.poll(120)
    cause = str(replica.failure())
    replica.close()
    assert noticed and "TimeoutError: RPC call to execute_model timed out." in cause and is_gone(child)


def test_a_worker_without_its_pool_lets_vllm_end_by_itself() -> None:
    """vLLM 0.32.0 waits 5 s for its processes (VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS), and 4 s after it ended them."""
    assert 5 + 4 < worker._GRACE_S < vllm_pool._CLOSING_SECONDS


def test_a_worker_whose_pool_is_gone_when_it_answers_shuts_vllm_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group is not killed here, as if the pool had been: what vLLM holds and started must end by itself."""
    gpu = FakeGPU.of(tmp_path / "gpu", GIB * 24)
    environment = installed(tmp_path / "packages", gpu, GIB)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    arguments = {"model": str(tmp_path), "gpu_memory_utilization": 0.5, "weight_transfer_config": {"backend": "ipc"}}
    replica = vllm_pool.VLLMReplica((arguments, (), 258), environment)
    assert replica.receive() is None and gpu.free == 12 * GIB
    process = replica._process
    process.send_signal(signal.SIGSTOP)
    replica.send(worker.WorkerRequest("1", [0], {"stop_token_ids": [1]}, 0))
    replica.pipe.close()
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0 and gpu.free == gpu.total
    replica.close()


@pytest.mark.slow
def test_a_replica_that_was_closed_kills_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be that of another process by then."""
    monkeypatch.setattr(vllm_pool, "WORKER", [sys.executable, "-c", "raise SystemExit"])
    replica = vllm_pool.VLLMReplica(({}, (), 258), {})
    replica.failure()
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, signal: killed.append(group))
    replica.close()
    assert killed == []


@pytest.mark.slow
@pytest.mark.parametrize("is_leader", [True, False])
def test_a_worker_without_its_pool_ends_its_own_group_only(is_leader: bool, tmp_path: Path) -> None:
    """``start_new_session`` is how the pool starts it; without, its group has processes of others: here, of a shell."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, str(script)] if is_leader else ["sh", "-c", f"{sys.executable} {script}; echo alive"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        if is_leader:
            assert process.wait(60) == -9 and is_gone(child)
        else:
            assert process.stdout.readline() == "alive\n" and process.wait(60) == 0
            assert psutil.pid_exists(child)
    finally:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(child).kill()
        process.stdout.close()
