"""Actors that stay open between plays and get new weights, as online learning asks of them."""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from safetensors.torch import load_file
from scripted_players import LearningEngine, both, chatter, chatting, learner, opened, pair

from spag.config.schema import ClusterConfig, ModelConfig
from spag.core.episodes import Episode
from spag.core.errors import EngineError
from spag.core.options import SamplingConfig
from spag.core.types import Split
from spag.engines.base import Completion
from spag.engines.players import endpoint_environment
from spag.engines.scripted import ScriptedEngine
from spag.games.base import Game
from spag.games.registry import get
from spag.rollout.ray.driver import RayPlayers
from spag.rollout.ray.weights import pack
from spag.rollout.ray.worker import PlayJob, PlayWorker
from spag.rollout.runner import GameSpec, Player, PlayStats, game_specs, play
from taboo_games import ROLES, TABOO, task_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:Tip. In future versions of Ray:FutureWarning"),
]
KUHN = get("kuhn_poker")
CAST = {role: role for role in ROLES}
SPECS = game_specs([task_of("river"), task_of("bread")], 3, seed=5)
Games = dict[str, Episode]


def by_id(episodes: Iterable[Episode]) -> Games:
    return {episode.id: episode for episode in episodes}


def play_there(players: RayPlayers, specs: Sequence[GameSpec] = SPECS, stats: PlayStats | None = None) -> Games:
    batches = players.play(specs, stats or PlayStats(), TABOO, CAST)
    games = by_id(episode for batch in batches for episode in batch)
    assert games.keys() == {spec.id for spec in specs}
    return games


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_open_engines_learn_between_plays_and_so_do_their_replacements(
    cluster: Cluster, model_folder: Path, tmp_path: Path, stack: ExitStack
) -> None:
    old = load_file(model_folder / "model.safetensors")
    new = {name: value + 0.1 for name, value in old.items() if "layers.0." in name}
    newest = {name: value * 1.5 for name, value in old.items() if "layers." in name}

    def play_here(weights: Mapping[str, torch.Tensor]) -> Games:
        return by_id(play(SPECS, both(LearningEngine(weights))))

    before, after = play_here(old), play_here(old | newest)
    assert all(before[name] != after[name] for name in before)

    config = ClusterConfig(address=cluster.address, workers=2, lease=1, deadline=60.0)
    job = PlayJob(partial(learner, model_folder / "model.safetensors", tmp_path))
    players = RayPlayers(job, config, stack, lambda note: None)
    stats = PlayStats()
    assert play_there(players, stats=stats) == before
    assert stats.utterances == sum(len(episode.history) for episode in before.values())
    players.update_weights(new, ROLES[0])
    players.update_weights(newest, ROLES[0])
    for value in newest.values():
        value.zero_()  # the trainer goes on at once
    assert play_there(players) == after
    assert play_there(players) == after
    assert len(opened(tmp_path)) == 2  # the actors are still those of the beginning

    first = set(opened(tmp_path))
    for process in first:
        os.kill(process, signal.SIGKILL)
    assert play_there(players) == after
    assert set(opened(tmp_path)) > first  # at least one replacement; it may have played all games before the other
    players.update_weights(old, ROLES[0])
    assert play_there(players) == before
    assert len(players._updates) == 1  # nobody keeps weights that newer ones replace


def test_weights_change_only_between_plays(cluster: Cluster, stack: ExitStack) -> None:
    job, notes = PlayJob(chatting), list[str]()
    players = RayPlayers(
        job, ClusterConfig(address=cluster.address, workers=1, lease=1, deadline=60.0), stack, notes.append
    )
    batches = players.play(SPECS, PlayStats(), TABOO, CAST)
    next(batches)
    with pytest.raises(EngineError, match="weights change only between plays"):
        players.update_weights({}, ROLES[0])
    [worker] = players.workers
    ray.wait([worker.calls[0]])
    worker.last_seen -= 3600.0  # as if this process had stood still: the reply is there
    assert list(batches) and not any("was lost" in note for note in notes)
    players.update_weights({}, ROLES[0])
    with pytest.raises(EngineError, match=r"lost without finishing a game.*: ScriptedEngine accepts no new weights"):
        list(players.play(SPECS, PlayStats(), TABOO, CAST))


def test_each_play_may_have_a_game_and_players_of_its_own(cluster: Cluster, stack: ExitStack) -> None:
    config = ClusterConfig(address=cluster.address, workers=1, lease=1, deadline=60.0)
    players = RayPlayers(PlayJob(pair), config, stack, lambda note: None)
    specs = [GameSpec(f"k{number}", task, number) for number, task in enumerate(KUHN.tasks(Split.TRAIN, 4, 0))]

    def speakers(specs: Sequence[GameSpec], game: Game, first: str, second: str) -> set[tuple[str, str]]:
        cast = dict(zip(game.roles, (first, second), strict=True))
        played = [episode for batch in players.play(specs, PlayStats(), game, cast) for episode in batch]
        assert len(played) == len(specs) and {episode.game for episode in played} == {game.name}
        return {(said.role, said.content) for episode in played for said in episode.history}

    assert {said for _, said in speakers(SPECS, TABOO, "one", "two")} == {"this is one", "this is two"}
    assert all(said == "this is two" for role, said in speakers(SPECS, TABOO, "two", "one") if role == ROLES[0])
    os.kill(next(iter(worker_processes(players))), signal.SIGKILL)
    assert {said for _, said in speakers(specs, KUHN, "one", "one")} == {"this is one"}
    assert {said for _, said in speakers(SPECS, TABOO, "one", "two")} == {"this is one", "this is two"}


def worker_processes(players: RayPlayers) -> list[int]:
    return [ray.get(worker.actor.__ray_call__.remote(lambda actor: os.getpid())) for worker in players.workers]


def test_weights_go_to_the_engine_of_a_player() -> None:
    class Learner(ScriptedEngine):
        given: tuple[str, ...] = ()

        def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
            self.given += tuple(weights)

    engines = [Learner(chatter), Learner(chatter)]
    worker = PlayWorker()
    worker.open(
        PlayJob(lambda stack: {role: Player(e, "m", SamplingConfig()) for role, e in zip(ROLES, engines, strict=True)})
    )
    worker.update_weights(pack({"a": torch.zeros(1)}), ROLES[1])
    worker.update_weights(pack({"b": torch.zeros(1)}), ROLES[0])
    assert [engine.given for engine in engines] == [("b",), ("a",)]


def test_games_that_ended_before_an_engine_failed_are_returned() -> None:
    class Failing(ScriptedEngine):
        polls = 0

        def poll(self) -> list[Completion]:
            self.polls += 1
            if self.polls > 2 * TABOO.max_turns:
                raise EngineError("gone")
            return super().poll()

    worker, engine = PlayWorker(), Failing(lambda request: "Hello.", concurrency=1)
    worker.open(PlayJob(lambda stack: dict.fromkeys(ROLES, Player(engine, "m", SamplingConfig())), in_flight=1))
    worker.assign(TABOO, CAST)
    episodes, _ = worker.advance(game_specs(map(task_of, ["river", "bread"]), 1, seed=3))
    assert [episode.task.data["target_word"] for episode in episodes] == ["river"]
    with pytest.raises(EngineError, match="gone"):
        worker.advance([])


def test_workers_ask_the_driver_s_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert endpoint_environment([ModelConfig(name="./here"), ModelConfig(name="bot:random")]) == {}
    given = endpoint_environment([ModelConfig(name="openai:m")])
    job = PlayJob(chatting, environment=given)
    assert "secret" not in repr(job)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    monkeypatch.delenv("OPENAI_API_KEY")
    PlayWorker().open(job)
    assert (os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]) == ("http://localhost:1/v1", "secret")
