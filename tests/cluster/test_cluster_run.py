"""A run on the cluster: a node dies in play and a process in training, and games and weights are those of a quiet run on one machine."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file
from watching import a_trainer, games_in, kill_in_play, wait_for_lines

CONFIG = """
iterations: 1
model: {name: MODEL, dtype: float32, device: cpu}
game: {max_turns: 2, words: shipped}
engine: {concurrency: 2}
imitation:
  max_episodes: 4
  training: &training
    {learning_rate: 1.0e-3, global_batch_size: 16, micro_batch_size: 4, max_length: 256, gradient_checkpointing: false, save_steps: 4,
     processes: 2}
selfplay:
  tasks: 48
  sampling: {max_new_tokens: 16}
rewards: {tie_reward: 0.5}
offline_rl: *training
cluster: {lease: 2}
"""


@contextmanager
def running(config: Path, folder: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "spag", "run", str(config), "--output", str(folder), *more]
    alike = {**os.environ, "OMP_NUM_THREADS": "1"}  # as the workers of one core
    with said_by(folder).open("wb") as said, subprocess.Popen(command, stderr=said, env=alike) as process:
        try:
            yield process
        finally:
            process.terminate()
            print(said_by(folder).read_text())  # pytest shows it when the test fails


def said_by(folder: Path) -> Path:
    """Return the file of what the last command of a run folder wrote to standard error."""
    return folder.with_name(f"{folder.name}.stderr")


def run_till_trained(config: Path, folder: Path, *more: str) -> None:
    """Wait for the end of the iteration, and leave the arena out."""
    with running(config, folder, *more) as process:
        while '"iteration-1/train"' not in ((folder / "log.jsonl").read_text() if (folder / "log.jsonl").exists() else ""):
            assert process.poll() is None
            time.sleep(0.1)


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_a_run_survives_a_node_and_a_process(cluster: Cluster, doomed: Any, model_folder: Path, tmp_path: Path) -> None:
    config, folder, alone = tmp_path / "config.yaml", tmp_path / "cluster", tmp_path / "alone"
    config.write_text(CONFIG.replace("MODEL", str(model_folder)))
    run_till_trained(config, alone)

    with running(config, folder, "--ray", cluster.address) as process:
        kill_in_play(cluster, doomed, 300.0)
        wait_for_lines(folder / "iteration-1" / "metrics.jsonl", 5)
        a_trainer().kill()
        assert process.wait(timeout=600) == 2
    said = said_by(folder).read_text()
    assert "was lost (" in said
    assert said.splitlines()[-1].startswith("error: ")
    assert said.splitlines()[-1].endswith("the same command resumes the training")
    cluster.wait_for_nodes()
    run_till_trained(config, folder, "--ray", cluster.address)

    assert games_in(folder / "iteration-1" / "episodes.jsonl") == games_in(alone / "iteration-1" / "episodes.jsonl")
    ours, theirs = (load_file(run / "iteration-1" / "checkpoint" / "model.safetensors") for run in (folder, alone))
    for name, weights in theirs.items():
        torch.testing.assert_close(ours[name], weights, rtol=0, atol=1e-5)
