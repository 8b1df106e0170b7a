"""The embedded model on a cluster: a node and the driver are killed while it plays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from games import games_in, wait_for_lines, wait_for_play_on
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]
SETTINGS = (
    "model.prompt_style=chat", "model.dtype=float32", "game.max_turns=2", "engine.concurrency=2", "cluster.lease=1",
    "selfplay.attacker.max_new_tokens=6", "selfplay.defender.max_new_tokens=6",
)  # fmt: skip
WORDS = ["river", "bread", "piano", "garden", "window", "teacher", "engine", "doctor", "winter", "bottle", "planet", "ticket"]


def play(words: Path, output: Path, *more: str) -> subprocess.Popen[bytes]:
    chosen = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "spag", "play", "smollm2-135m", "--words", str(words), *chosen, "--output", str(output), *more]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_whatever_is_killed_the_games_are_those_of_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("".join(f"{word}\n" for word in WORDS))
    assert play(words, tmp_path / "alone.jsonl").wait() == 0
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    path = tmp_path / "together.jsonl"
    with play(words, path, "--ray", cluster.address) as driver:
        wait_for_play_on(doomed)
        cluster.remove_node(doomed, allow_graceful=False)
        wait_for_lines(path, 4)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL
    assert len(games_in(path)) < len(WORDS)
    cluster.wait_for_nodes()
    assert play(words, path, "--ray", cluster.address).wait() == 0
    assert games_in(path) == games_in(tmp_path / "alone.jsonl")
