"""The embedded model on a cluster: a node and the driver are killed while it plays."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from watching import games_in, kill_in_play, wait_for_lines

pytestmark = [pytest.mark.model, pytest.mark.cluster, pytest.mark.timeout(1800)]
SETTINGS = (
    "model.prompt_style=chat", "model.dtype=float32", "game.max_turns=2", "engine.concurrency=2", "cluster.lease=1", "game.words=shipped",
    "selfplay.sampling.max_new_tokens=6",
)  # fmt: skip


def play(output: Path, *more: str) -> subprocess.Popen[bytes]:
    chosen = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "spag", "play", "smollm2-135m", "--count", "18", *chosen, "--output", str(output), *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_whatever_is_killed_the_games_are_those_of_one_machine(cluster: Cluster, doomed: Any, tmp_path: Path) -> None:
    assert play(tmp_path / "alone.jsonl").wait() == 0
    alone = games_in(tmp_path / "alone.jsonl")
    path = tmp_path / "together.jsonl"
    with play(path, "--ray", cluster.address) as driver:
        kill_in_play(cluster, doomed)
        wait_for_lines(path, 4)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL
    assert len(games_in(path)) < len(alone)
    cluster.wait_for_nodes()
    assert play(path, "--ray", cluster.address).wait() == 0
    assert games_in(path) == alone
