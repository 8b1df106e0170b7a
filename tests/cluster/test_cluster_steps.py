"""An online run whose steps are played and trained by Ray Train's workers: the weights are those of one process."""

from pathlib import Path

import pytest
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from spag.config.files import parse_config
from spag.config.schema import RunConfig
from spag.core.episodes import read_episodes
from spag.core.progress import SilentReporter
from spag.runs.loop import run

CONFIG = """
algorithm: reinforce
game: {name: kuhn_poker}
engine: {concurrency: 8}
imitation: {episodes: []}
online:
  {steps: 2, games: 8, learning_rate: 1.0e-3, warmup_ratio: 0, micro_batch_size: 4, sampling: {max_new_tokens: 6}, evaluate_every: null}
arena: {tasks: 2, sampling: {max_new_tokens: 6}}
"""


def config_for(model: Path, *overrides: str) -> RunConfig:
    return parse_config(CONFIG, "test", [f"model.name={model}", "model.dtype=float32", "model.device=cpu", *overrides])


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray of itself
def test_workers_of_a_cluster_play_and_train_their_shares(cluster: Cluster, model_folder: Path, tmp_path: Path) -> None:
    cluster.wait_for_nodes()
    on_ray = (f"cluster.address={cluster.address}", "cluster.workers=1", "online.processes=2")
    run(config_for(model_folder, *on_ray), tmp_path / "ray", SilentReporter())
    run(config_for(model_folder), tmp_path / "alone", SilentReporter())
    parts = [len(list(read_episodes(path))) for path in sorted((tmp_path / "ray" / "online" / "episodes").glob("step-00001*"))]
    assert parts == [4, 4]
    there, here = (load_file(tmp_path / name / "online" / "checkpoint" / "model.safetensors") for name in ("ray", "alone"))
    for name, weight in here.items():
        torch.testing.assert_close(there[name], weight, atol=1e-5, rtol=0, msg=name)
