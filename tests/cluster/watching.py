"""Looking at what a test's driver does: the file of games that it writes, and who plays on which node."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from spag.core.episodes import Episode
from spag.storage.episodes import read_episodes


def games_in(path: Path) -> dict[str, Episode]:
    """Return the games by id, each there once, less log-probabilities, whose last digits depend on the batch."""
    episodes = list(read_episodes(path))
    without = {"logprobs": None, "sampling_logprobs": None}
    games = {e.id: replace(e, history=tuple(replace(said, **without) for said in e.history)) for e in episodes}
    assert len(games) == len(episodes), "a game was counted twice"
    return games


def wait_until(happened: Callable[[], bool], seconds: float = 600.0) -> None:
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(path: Path, count: int, seconds: float = 600.0) -> None:
    wait_until(lambda: lines(path) >= count, seconds)


def plays(node: Any) -> bool:
    """Whether a worker of ``node`` plays, so that it has games to lose."""
    return any(_raylet(node) == process.ppid() for process in players())


def kill_in_play(cluster: Cluster, node: Any, seconds: float = 600.0) -> None:
    """Kill ``node`` as soon as it plays. Who plays elsewhere is stopped till then: a busy machine could start this
    node's worker last.
    """
    stopped: dict[int, psutil.Process] = {}

    def stop_others() -> bool:
        for process in players():
            if process.ppid() == _raylet(node):
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
