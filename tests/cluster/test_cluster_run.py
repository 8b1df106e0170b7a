"""A run on the cluster: a node dies in play and a process in training, and games and weights are those of a quiet run
on one machine.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file
from watching import a_trainer, kill_in_play

import forked
from game_files import games_in, wait_for_lines, wait_until
from spag.config.files import load_config
from spag.config.schema import ClusterConfig, GameConfig, ModelConfig, PhaseConfig
from spag.core.episodes import TrainingSample
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.learning.job import TrainingJob
from spag.learning.launch import train_on
from spag.runs.execute import run
from spag.storage.manifest import Manifest
from spag.storage.store import write_rows

CONFIG = """
model: {name: MODEL, dtype: float32, device: cpu}
game: {max_turns: 2, words: shipped}
engine: {concurrency: 2}
phases:
  - {algorithm: imitation, max_episodes: 4, TRAINING}
  - {algorithm: spag, iterations: 1, tasks: 24, sampling: {max_new_tokens: 16}, tie_reward: 0.5, TRAINING}
cluster: {lease: 2}
""".replace(
    "TRAINING",
    "learning_rate: 1.0e-3, global_batch_size: 8, micro_batch_size: 4, max_length: 512, "
    "gradient_checkpointing: false, save_steps: 4",
)
IMITATION, ITERATION = "1-imitation", "2-spag/iteration-1"


@contextmanager
def running(config: Path, folder: Path, *more: str) -> Iterator[BaseProcess]:
    command = ("run", str(config), "--output", str(folder), *more)
    process = forked.start(run_saying, str(said_by(folder)), *command)
    try:
        yield process
    finally:
        process.terminate()
        process.join()
        print(said_by(folder).read_text())  # pytest shows it when the test fails


def run_saying(said: str, *command: str) -> None:
    """Do what the command ``spag`` does, with standard error going to the file ``said``."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    forked.run_command(*command)


def said_by(folder: Path) -> Path:
    """Return the file of what the last command of a run folder wrote to standard error."""
    return folder.with_name(f"{folder.name}.stderr")


def is_trained(folder: Path) -> bool:
    return Manifest.open(folder).is_done(f"{ITERATION}/train")


def run_alone(config: Path, folder: Path) -> None:
    """Run on one machine to the end of the iteration, and leave the arena out."""
    process = forked.start(run, load_config(str(config)), folder, SilentReporter())
    wait_until(lambda: is_trained(folder) or not process.is_alive())
    process.kill()


def begin_alike(alone: Path, folder: Path) -> None:
    """Make ``folder`` what ``alone`` was after imitation."""
    shutil.copytree(alone / IMITATION, folder / IMITATION)
    manifest = json.loads((alone / "manifest.json").read_text())
    manifest["stages"] = {name: stage for name, stage in manifest["stages"].items() if name.startswith(f"{IMITATION}/")}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_a_run_survives_a_node_and_a_process(cluster: Cluster, doomed: Any, model_folder: Path, tmp_path: Path) -> None:
    config, folder, alone = tmp_path / "config.yaml", tmp_path / "cluster", tmp_path / "alone"
    config.write_text(CONFIG.replace("MODEL", str(model_folder)))
    run_alone(config, alone)
    begin_alike(alone, folder)
    there = ("--ray", cluster.address, "--set", "spag.processes=2")

    with running(config, folder, *there) as process:
        kill_in_play(cluster, doomed, 300.0)
        wait_for_lines(folder / ITERATION / "metrics.jsonl", 5)
        a_trainer().kill()
        assert forked.end(process, 600) == 2
    said = said_by(folder).read_text()
    assert "was lost (" in said
    assert said.splitlines()[-1].startswith("error: ")
    assert said.splitlines()[-1].endswith("the same command resumes the training")
    cluster.wait_for_nodes()
    with running(config, folder, *there) as process:
        wait_until(lambda: is_trained(folder) or not process.is_alive())

    assert games_in(folder / ITERATION / "episodes.jsonl") == games_in(alone / ITERATION / "episodes.jsonl")
    ours, theirs = (load_file(each / ITERATION / "checkpoint" / "model.safetensors") for each in (folder, alone))
    for name, weights in theirs.items():
        torch.testing.assert_close(ours[name], weights, rtol=0, atol=1e-5)


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray of itself
def test_an_error_in_a_process_is_the_error_of_the_call(
    cluster: Cluster, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the processes find files by relative names, and then refuse the dtype
    Path("mix.json").write_text('[{"instruction": "Say a.", "input": "", "output": "a"}]')
    samples = tmp_path / "samples.jsonl"
    write_rows(samples, [TrainingSample(prompt="p", completion="c", reward=1.0)] * 8)
    model = ModelConfig(name=str(model_folder), dtype="float16", device="cpu")
    options = {"algorithm": "spag", "processes": 1, "sft_data": "mix.json"}
    job = TrainingJob(
        model=model,
        phase=PhaseConfig.model_validate(options),
        game=GameConfig(),
        start_from=model.name,
        output=tmp_path / "run",
        seed=3,
        files=[samples],
        cluster=ClusterConfig(address=cluster.address),
    )
    with pytest.raises(ConfigError, match=r"^model.dtype=float16: training on the CPU needs bfloat16 or float32$"):
        train_on(job, SilentReporter(), "test")
