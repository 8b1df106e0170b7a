"""New weights for actors by a group, on a stand-in for vLLM and gloo in the place of NCCL: replacements, a death in the
middle, and the way without a group.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file
from scripted_players import chatting

from fake_vllm import GIB, FakeGPU, installed
from gloo_nccl import at_the_trainer
from spag.config.schema import ClusterConfig, ModelConfig, PlannedEngine
from spag.core.options import SamplingConfig
from spag.engines.vllm import broadcast, opening
from spag.engines.vllm.broadcast import WeightBroadcast
from spag.engines.vllm.setup import installed_vllm
from spag.models.loading import load_model
from spag.rollout.ray import group
from spag.rollout.ray.driver import RayPlayers
from spag.rollout.ray.group import EngineGroup
from spag.rollout.ray.worker import PlayJob
from spag.rollout.runner import Player, PlayStats, game_specs
from taboo_games import ROLES, TABOO, task_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:Tip. In future versions of Ray:FutureWarning"),
]
CAST = {role: role for role in ROLES}
SPECS = game_specs([task_of("river"), task_of("bread")], 3, seed=5)
SMALL = 2000  # bytes of a buffer, at both ends: several for a tiny model
Weights = dict[str, torch.Tensor]
Opener = Callable[[ExitStack], Mapping[str, Player]]


def open_stand_in(model: Path, folder: Path, together: int, stack: ExitStack) -> Mapping[str, Player]:
    """Open the stand-in on a GPU of this actor's own. The first ``together`` actors wait for each other,
    and all for the file ``begun``.
    """
    here = folder / str(os.getpid())
    gpu = FakeGPU.of(here / "gpu", 24 * GIB)
    os.environ.update(installed(here / "packages", gpu, GIB), FAKE_DIES=str(folder / "dies"))
    opening.checked_device = lambda device: "cuda"
    opening.visible_gpus = lambda: ["0"]
    broadcast.BUFFER_BYTES = SMALL
    options = PlannedEngine(max_length=2048, nccl=True)
    [engine] = opening.open_vllm([ModelConfig(name=str(model), dtype="float32")], options, 1)
    stack.callback(engine.close)
    (here / "open").touch()
    while len(list(folder.glob("*/open"))) < together or not (folder / "begun").exists():
        time.sleep(0.05)
    return dict.fromkeys(ROLES, Player(engine, "stand-in", SamplingConfig(max_new_tokens=6)))


class Actors:
    """Two actors, their group with this process, and the lines about them."""

    def __init__(self, cluster: Cluster, opener: Opener, model: Path, stack: ExitStack) -> None:
        self.notes: list[str] = []
        config = ClusterConfig(address=cluster.address, workers=2, lease=1, deadline=240.0)
        self.players = RayPlayers(PlayJob(opener), config, stack, self.notes.append)
        version, _ = installed_vllm() or ("", False)
        end = WeightBroadcast(ModelConfig(name=str(model), dtype="float32"), torch.device("cpu"), version)
        self.players.group = EngineGroup(end, ROLES[0], config.deadline)

    def play(self) -> None:
        games = [game.id for batch in self.players.play(SPECS, PlayStats(), TABOO, CAST) for game in batch]
        assert sorted(games) == sorted(spec.id for spec in SPECS)

    def update(self, weights: Weights, *, steady: bool = True) -> None:
        self.players.update_weights(weights, ROLES[0], steady=steady)

    def processes(self) -> list[int]:
        calls = [worker.actor.__ray_call__.remote(lambda actor: os.getpid()) for worker in self.players.workers]
        return sorted(ray.get(calls))

    @property
    def lost(self) -> list[str]:
        return [note for note in self.notes if "was lost" in note]


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    at_the_trainer(monkeypatch)
    monkeypatch.setattr(broadcast, "BUFFER_BYTES", SMALL)
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def weights(model_folder: Path) -> Weights:
    model = load_model(str(model_folder), dtype="float32", device="cpu")
    return {name: value.detach() * 1.5 for name, value in model.named_parameters()}


def taken(folder: Path, process: int) -> list[str]:
    """Return the ways of new weights into an actor's engine, in order."""
    events = FakeGPU(folder / str(process) / "gpu").events("takes")
    return [event.rpartition(" ")[2] for event in events]


def assert_has(folder: Path, process: int, weights: Weights) -> None:
    arrived = load_file(folder / str(process) / "gpu" / "weights.safetensors")
    assert arrived.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in arrived.items())


def test_actors_get_weights_in_a_group_and_so_do_their_replacements(
    cluster: Cluster, model_folder: Path, weights: Weights, tmp_path: Path, stack: ExitStack
) -> None:
    (tmp_path / "dies").touch()
    actors = Actors(cluster, partial(open_stand_in, model_folder, tmp_path, 2), model_folder, stack)
    actors.update(weights)  # while they open
    (tmp_path / "begun").touch()
    actors.play()
    two = actors.processes()
    halves = {name: value / 2 for name, value in weights.items()}
    actors.update(halves)
    assert [update.held for update in actors.players._updates] == [None]  # nobody needed a copy
    actors.play()
    assert [taken(tmp_path, process) for process in two] == [["host", "nccl"]] * 2
    for process in two:
        assert_has(tmp_path, process, halves)
    os.kill(two[0], signal.SIGKILL)
    actors.play()  # a replacement gets the same weights
    thirds = {name: value / 3 for name, value in weights.items()}
    actors.players.forget()
    actors.update(thirds, steady=False)
    values = {name: value.clone() for name, value in thirds.items()}
    for value in thirds.values():
        value.zero_()  # the trainer goes on at once
    actors.play()
    [new] = {*actors.processes()} - {*two}  # which has opened its engine by now
    assert_has(tmp_path, new, values)
    actors.update(values)
    assert taken(tmp_path, two[1]) == ["host", "nccl", "nccl", "nccl"]
    ways = taken(tmp_path, new)
    assert ways[0] == "host" and ways[-1] == "nccl"
    assert_has(tmp_path, new, values)
    assert len(actors.lost) == 1


def test_an_engine_that_dies_in_an_update_ends_it_and_all_get_the_weights(
    cluster: Cluster, model_folder: Path, weights: Weights, tmp_path: Path, stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The other one waits for ever for its part, as this process does; both actors are replaced, and form a group."""
    monkeypatch.setattr(group, "_GRACE_S", 1.0)
    (tmp_path / "begun").touch()
    actors = Actors(cluster, partial(open_stand_in, model_folder, tmp_path, 2), model_folder, stack)
    actors.play()
    two = actors.processes()
    with caplog.at_level(logging.WARNING):
        actors.update(weights)
    assert not {*two} & {*actors.processes()}
    assert any("vLLM ended: exit status -9" in line for line in actors.lost) and len(actors.lost) == 2
    actors.play()
    actors.update(weights)
    now = actors.processes()
    assert any(taken(tmp_path, process)[-1:] == ["nccl"] for process in now)
    for process in now:
        assert_has(tmp_path, process, weights)
    assert not caplog.records


def test_who_can_join_no_group_gets_weights_from_the_object_store(
    cluster: Cluster, model_folder: Path, weights: Weights, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is in the log once."""
    actors = Actors(cluster, chatting, model_folder, stack)
    actors.play()
    with caplog.at_level(logging.WARNING):
        actors.update(weights)
        held = actors.players._updates[-1].held
        actors.update(weights)
    assert held is not None and [worker.calls[-1] for worker in actors.players.workers]
    assert [record.getMessage() for record in caplog.records] == [
        "new weights go through Ray's object store, not NCCL: ScriptedEngine can join no group"
    ]
