"""How play grows with the workers of a cluster, and what it costs its driver. Engines are scripted, so that only our
own work is measured.

Every worker answers eight requests at a time after two seconds each, whatever the machine; what is lost between one
worker and many is the driver's, Ray's and the judge's. All workers share the cores of this machine: the curve ends
where those do.

python -m benchmarks.cluster [--workers 1 4 16 64]
"""

import argparse
import logging
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import ray
from rich.console import Console
from rich.table import Table

from spag.config.schema import ClusterConfig
from spag.core.episodes import Episode
from spag.core.options import SamplingConfig
from spag.engines.base import Player, Request
from spag.engines.scripted import ScriptedEngine
from spag.games.taboo.taboo import AdversarialTaboo
from spag.rollout.matchmaking import Match
from spag.rollout.ray.driver import RayPlayers
from spag.rollout.ray.worker import PlayJob
from spag.rollout.runner import PlayStats, game_specs
from spag.rollout.writer import collect_episodes

WORKERS = (1, 4, 16, 64)
CONCURRENCY = 8
LATENCY_S = 2.0
GAME = AdversarialTaboo(max_turns=2)
ROUNDS = 6  # games that each of a worker's places plays, one after the other


@dataclass(frozen=True, slots=True)
class Growth:
    """Games an hour (``rate``), their ``share`` of what the latency allows, and the driver's CPU time a game,
    ``driver_ms``.
    """

    workers: int
    rate: float
    share: float
    driver_ms: float


def chat(request: Request) -> str:
    return "Let us talk about something else, while the evening is long and the weather is what it is."


def players(stack: ExitStack) -> Mapping[str, Player]:
    engine = ScriptedEngine(chat, concurrency=CONCURRENCY, latency_s=LATENCY_S)
    return dict.fromkeys(GAME.roles, Player(engine, f"worker-{os.getpid()}", SamplingConfig()))


def measure(workers: int, path: Path) -> Growth:
    """Play ``ROUNDS`` games on each place of ``workers`` workers; a worker's rate is taken from its first game to its
    last.
    """
    specs = game_specs(
        [GAME.custom_task(f"word{number}") for number in range(workers * CONCURRENCY * ROUNDS)], 1, seed=0
    )
    cluster = ClusterConfig(address="local", workers=workers, lease=CONCURRENCY)
    arrivals: dict[str, list[float]] = defaultdict(list)
    began: list[float] = []

    def play_them(left: Sequence[Match], stats: PlayStats) -> Iterator[list[Episode]]:
        actors = RayPlayers(PlayJob(players), cluster, stack, lambda _: None, most=len(specs))
        for batch in actors.play(left[0].specs, stats, GAME, {role: role for role in GAME.roles}):
            now = time.monotonic()
            began.append(time.process_time())
            for episode in batch:
                arrivals[episode.players["attacker"].model].append(now)
            yield batch

    with ExitStack() as stack:
        collect_episodes(path, [Match("play", specs, {})], play_them, GAME)
    cpu = time.process_time() - began[0]
    rate = sum(_rate(times) for times in arrivals.values())
    ideal = workers * CONCURRENCY / (2 * GAME.max_turns * LATENCY_S)
    return Growth(workers, 3600 * rate, rate / ideal, 1000 * cpu / len(specs))


def _rate(times: list[float]) -> float:
    """Games a second of one worker after its first wave, which began at an unknown moment."""
    return (len(times) - CONCURRENCY) / (max(times) - min(times))


def grow(workers: Sequence[int]) -> list[Growth]:
    ray.init(
        address="local",
        num_cpus=max(workers),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            return [measure(count, Path(folder) / f"{count}.jsonl") for count in workers]
    finally:
        ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how play grows with the workers of a cluster.")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    table = Table("workers", "games/h", "of possible", "driver CPU a game, ms", box=None)
    for at in grow(parser.parse_args().workers):
        table.add_row(str(at.workers), f"{at.rate:,.0f}", f"{at.share:.1%}", f"{at.driver_ms:.2f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
