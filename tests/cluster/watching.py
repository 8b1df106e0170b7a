"""Who plays and who trains on which node of a test's cluster."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import psutil
from ray.cluster_utils import Cluster
from warm_worker import ADDRESS

import warm
from game_files import wait_until


def plays(node: Any) -> bool:
    """Whether a worker of ``node`` plays, so that it has games to lose."""
    return any(_raylet(node) == _parent(process) for process in players())


def kill_in_play(cluster: Cluster, node: Any, seconds: float = 600.0) -> None:
    """Kill ``node`` as soon as it plays. Who plays elsewhere is stopped till then: a busy machine could start this
    node's worker last.
    """
    stopped: dict[int, psutil.Process] = {}

    def stop_others() -> bool:
        for process in players():
            if _parent(process) == _raylet(node):
                return True
            stopped.setdefault(process.pid, process).suspend()
        return False

    try:
        wait_until(stop_others, seconds)
        cluster.remove_node(node, allow_graceful=False)
    finally:
        for process in stopped.values():
            with suppress(psutil.NoSuchProcess):
                process.resume()


def players() -> Iterator[psutil.Process]:
    """Yield the workers that play at this moment, on any node."""
    return (process for process, title in titled(psutil.process_iter()) if title.startswith("ray::PlayWorker.advance"))


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _parent(process: psutil.Process) -> int:
    return warm.parent_of(process.pid, os.environ.get(ADDRESS, "")) or process.ppid()


def a_trainer() -> psutil.Process:
    """Return a process that trains for Ray Train."""
    return next(
        process
        for process, title in titled(psutil.process_iter())
        if title.startswith("ray::") and "RayTrainWorker" in title
    )


def titled(processes: Iterable[psutil.Process]) -> Iterator[tuple[psutil.Process, str]]:
    """Yield those that live still, each with its title."""
    for process in processes:
        try:
            yield process, " ".join(process.cmdline())
        except psutil.Error:  # it has ended
            continue
