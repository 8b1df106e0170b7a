"""A cluster of three nodes of one core each, simulated on this machine. Its workers are forks of a process that has
imported torch.
"""

import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import forked

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from ray.cluster_utils import Cluster
    from warm_worker import ADDRESS

HERE = Path(__file__).parent
NODE = {"num_cpus": 1, "object_store_memory": 128 * 2**20, "setup_worker_path": str(HERE / "warm_worker.py")}
"""What a node has. Ray would give each a third of the memory that is free at that moment, and the tests' games take a
few kilobytes.
"""
IMPORTED = ["pandas", "pyarrow.dataset", "fsspec", "google.protobuf", "requests", "jsonschema"]
"""What Ray's workers import, but for Ray, which reads the worker's environment while it is imported."""


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    path = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        pytest.MonkeyPatch.context() as patch,
        forked.server(tmp_path_factory.mktemp("warm"), IMPORTED) as address,
    ):
        patch.setenv("PYTHONPATH", path)  # the nodes' workers import scripted_players and taboo_games
        patch.setenv(ADDRESS, address)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # Ray's 15 would let tests beside these starve the workers
        patch.setenv("RAY_health_check_period_ms", "500")  # a node that is gone is missed after five of these
        patch.setenv(
            "RAY_memory_monitor_refresh_ms", "0"
        )  # else Ray ends workers whenever other programs take the machine's memory
        with _same_sigterm():
            started = _started_head()
            for _ in range(2):
                started.add_node(**NODE)
        yield started
        started.shutdown()


def _started_head() -> "Cluster":
    """Return a cluster of one node. On a busy machine it may miss Ray's limit of 30 s, which no option changes."""
    for attempt in range(3):
        try:
            return Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        except Exception as error:
            if "timed out during startup" not in str(error) or attempt == 2:
                raise
    raise AssertionError


@contextmanager
def _same_sigterm() -> Iterator[None]:
    """Keep what SIGTERM does: a node that starts replaces it for the whole process, and for good."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _one_more_node(cluster: "Cluster", **more: Any) -> Iterator[Any]:
    """Add a fourth node, which the test may kill."""
    with _same_sigterm():
        node = cluster.add_node(**NODE, **more)
    cluster.wait_for_nodes()
    try:
        yield node
    finally:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)
        cluster.wait_for_nodes()


@pytest.fixture
def doomed(cluster: "Cluster") -> Iterator[Any]:
    """A fourth node, for the test to kill."""
    with _one_more_node(cluster) as node:
        yield node


@pytest.fixture
def two_gpus(cluster: "Cluster") -> Iterator[None]:
    """A fourth node, which claims to have GPUs."""
    with _one_more_node(cluster, num_gpus=2):
        yield
