"""Online runs whose steps are played and trained on a cluster: the weights are those of one process."""

from pathlib import Path

import pytest
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from spag.config.files import parse_config
from spag.config.schema import PlannedEngine, RunConfig
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.learning.job import TrainingJob
from spag.learning.launch import train_on
from spag.runs.checks import check_run
from spag.runs.execute import run
from spag.storage.episodes import read_episodes

Tokens = tuple[tuple[int, ...] | None, ...]
pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # Ray of itself
]
CONFIG = """
game: {name: kuhn_poker}
engine: {concurrency: 8}
phases:
  - algorithm: reinforce
    steps: 3
    overlap: 1
    games: 8
    learning_rate: 1.0e-3
    warmup_ratio: 0
    micro_batch_size: 4
    sampling: {max_new_tokens: 6}
    opponents: {self: 2, snapshot: 1, "bot:equilibrium": 1}
    snapshot_every: 1
    evaluate_every: null
arena: {tasks: 2, entrants: ["bot:random", "bot:equilibrium"]}
"""


def config_for(model: Path, *overrides: str) -> RunConfig:
    return parse_config(CONFIG, "test", [f"model.name={model}", "model.dtype=float32", "model.device=cpu", *overrides])


@pytest.fixture(scope="module")
def alone(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The online stage of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run(config_for(model_folder), folder, SilentReporter())
    return folder / "1-reinforce"


def test_workers_of_a_cluster_play_ahead_and_train_their_shares(
    cluster: Cluster, model_folder: Path, alone: Path, tmp_path: Path
) -> None:
    cluster.wait_for_nodes()
    on_ray = (f"cluster.address={cluster.address}", "cluster.workers=1", "reinforce.processes=2")
    run(config_for(model_folder, *on_ray), tmp_path, SilentReporter())
    assert parts(tmp_path / "1-reinforce", 1) == [4, 4]
    assert_same_steps(tmp_path / "1-reinforce", alone)


def test_actors_play_ahead_for_workers_that_only_train(
    cluster: Cluster, model_folder: Path, alone: Path, tmp_path: Path
) -> None:
    cluster.wait_for_nodes()
    on_ray = (f"cluster.address={cluster.address}", "cluster.online_workers=1", "reinforce.processes=2")
    config = config_for(model_folder, *on_ray)
    job = TrainingJob(
        model=config.model,
        phase=config.phases[0],
        game=config.game,
        start_from=config.model.name,
        output=tmp_path,
        seed=config.seed,
        engine=PlannedEngine(**config.engine.model_dump()),
        cluster=config.cluster,
    )
    train_on(job, SilentReporter(), "reinforce")
    assert parts(tmp_path, 1) == [8]
    assert_same_steps(tmp_path, alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("cluster.address=auto", "cluster.online_workers=1"), "set processes of the online phase"),
        (
            ("cluster.address=local", "cluster.online_workers=500", "reinforce.processes=1"),
            "CPU cores left to play",
        ),
    ],
)
def test_actors_without_room_are_refused_first(model_folder: Path, options: tuple[str, ...], message: str) -> None:
    config = config_for(model_folder, *options)
    with pytest.raises(ConfigError, match=rf"cluster\.online_workers=.*{message}"):
        check_run(config, config.game.build())


def parts(online: Path, step: int) -> list[int]:
    """How many games of a step each training process wrote."""
    return [len(list(read_episodes(path))) for path in sorted((online / "episodes").glob(f"step-{step:05d}*"))]


def assert_same_steps(online: Path, alone: Path) -> None:
    """The same games by weights at most one step old, and the same weights in the end."""
    played = [games(online, step) for step in (1, 2, 3)]
    assert played == [games(alone, step) for step in (1, 2, 3)]
    assert [{by for by, _ in step.values()} for step in played] == [{"step 0"}, {"step 0"}, {"step 1"}]
    there, here = (load_file(folder / "checkpoint" / "model.safetensors") for folder in (online, alone))
    for name, weight in here.items():
        torch.testing.assert_close(there[name], weight, atol=1e-5, rtol=0, msg=name)


def games(online: Path, step: int) -> dict[str, tuple[str, Tokens]]:
    """By game, the weights of the policy that played it, and what was said."""
    found: dict[str, tuple[str, Tokens]] = {}
    for path in (online / "episodes").glob(f"step-{step:05d}*"):
        for game in read_episodes(path):
            [by] = {
                info.identity["weights"] for info in game.players.values() if info.model == "policy" and info.identity
            }
            found[game.id] = by, tuple(said.token_ids for said in game.history)
    return found
