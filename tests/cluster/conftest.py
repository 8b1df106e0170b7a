"""A cluster of three nodes of one core each, simulated on this machine."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from ray.cluster_utils import Cluster


@pytest.fixture(scope="package")
def cluster() -> "Iterator[Cluster]":
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)  # the nodes' workers import scripted_players and taboo_games
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        for _ in range(2):
            started.add_node(num_cpus=1)
        yield started
        started.shutdown()


@pytest.fixture
def doomed(cluster: "Cluster") -> Iterator[Any]:
    """A fourth node, for the test to kill."""
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield node
    if node in cluster.worker_nodes:  # the test failed before
        cluster.remove_node(node)
    cluster.wait_for_nodes()
