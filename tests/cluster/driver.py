"""Plays on a cluster into a file, as a process of its own may, so that it can be killed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from spag.config.schema import ClusterConfig
from spag.core.episodes import Episode
from spag.rollout.matchmaking import Match
from spag.rollout.ray.driver import RayPlayers
from spag.rollout.ray.worker import PlayJob
from spag.rollout.runner import GameSpec, PlayStats, game_specs
from spag.rollout.writer import PlaySummary, collect_episodes
from taboo_games import ROLES, TABOO, task_of

CAST = {role: role for role in ROLES}
SPECS = game_specs(map(task_of, ["river", "bread", "piano", "garden", "window", "winter"]), 10, seed=3)


def play_into(
    path: Path, address: str, job: PlayJob, specs: Sequence[GameSpec] = SPECS, **cluster: float
) -> PlaySummary:
    config = ClusterConfig(address=address, **{"lease": 2, "deadline": 60.0, **cluster})  # type: ignore[arg-type]

    with ExitStack() as stack:

        def play_them(left: Sequence[Match], stats: PlayStats) -> Iterator[list[Episode]]:
            [match] = left
            return RayPlayers(job, config, stack, print, most=len(match.specs)).play(match.specs, stats, TABOO, CAST)

        return collect_episodes(path, [Match("play", specs, {})], play_them, TABOO)
