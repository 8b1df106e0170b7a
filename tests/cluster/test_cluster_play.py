"""Play on a simulated cluster of three nodes: the games of one machine, whatever is killed while they are played."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import ray
from click.testing import CliRunner
from driver import SPECS, play_into
from ray.cluster_utils import Cluster
from scripted_players import broken, chatter, hanging, missing, opened, refusing, scripted
from watching import kill_in_play

import forked
from game_files import games_in, lines, wait_for_lines, wait_until
from spag.cli import main
from spag.config.files import load_config
from spag.core.episodes import Episode
from spag.core.errors import ConfigError, EngineError, ModelError
from spag.core.options import SamplingConfig
from spag.engines.base import RequestError
from spag.engines.scripted import ScriptedEngine
from spag.planning.here import planned_engines
from spag.rollout.ray.connection import connected
from spag.rollout.ray.worker import PlayJob
from spag.rollout.runner import Player, play
from spag.storage.episodes import read_episodes
from taboo_games import ROLES

Capture = pytest.CaptureFixture[str]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:Tip. In future versions of Ray:FutureWarning"),
]


@pytest.fixture(scope="module")
def alone() -> dict[str, Episode]:
    players = dict.fromkeys(ROLES, Player(ScriptedEngine(chatter), "chatter", SamplingConfig()))
    return {episode.id: episode for episode in play(SPECS, players)}


def start(act: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_the_games_are_those_of_one_machine(cluster: Cluster, alone: dict[str, Episode], tmp_path: Path) -> None:
    summary = play_into(tmp_path / "e.jsonl", cluster.address, PlayJob(partial(scripted, tmp_path, 0.01, together=3)))
    assert games_in(tmp_path / "e.jsonl") == alone
    assert len(opened(tmp_path)) == 3  # a worker a node
    assert summary.stats.utterances == sum(len(episode.history) for episode in alone.values())
    assert not ray.is_initialized()


def test_a_bot_plays_another_game_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone.jsonl", tmp_path / "together.jsonl"
    command = ["play", "bot:random", "bot:equilibrium", "--game", "kuhn_poker", "--count", "12"]
    for path, more in ((alone, []), (together, ["--ray", cluster.address, "--set", "cluster.workers=1"])):
        result = CliRunner().invoke(main, [*command, "--output", str(path), *more])
        assert result.exit_code == 0, result.output
    assert len(games_in(alone)) == 12
    assert games_in(together) == games_in(alone)


def test_matches_of_the_same_models_share_workers(cluster: Cluster, tmp_path: Path) -> None:
    command = ["arena", "bot:random", "bot:equilibrium", "bot:constant", "--game", "kuhn_poker"]
    command += ["--set", "arena.tasks=3", "--set", "cluster.workers=1"]
    for name, more in (("alone", []), ("together", ["--ray", cluster.address])):
        result = CliRunner().invoke(main, [*command, "--output", str(tmp_path / name), *more])
        assert result.exit_code == 0, result.output
    assert result.output.count("cluster: 1 worker, ") == 1  # for six matches
    alone, together = (games_in(tmp_path / name / "episodes.jsonl") for name in ("alone", "together"))
    assert len(alone) == 18 and together == alone


def test_a_killed_worker_is_replaced(
    cluster: Cluster, alone: dict[str, Episode], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def kill_once(descriptor: int) -> None:
        """In the place of ``os.fsync``: the driver hands out no more games meanwhile."""
        sync(descriptor)
        if lines(tmp_path / "e.jsonl") >= 5:
            monkeypatch.setattr(os, "fsync", sync)
            os.kill(opened(tmp_path)[0], signal.SIGKILL)

    monkeypatch.setattr(os, "fsync", kill_once)
    play_into(tmp_path / "e.jsonl", cluster.address, PlayJob(partial(scripted, tmp_path, 0.05)), workers=1)
    assert games_in(tmp_path / "e.jsonl") == alone
    assert "was lost (" in capsys.readouterr().out
    assert len(opened(tmp_path)) == 2


@pytest.mark.long
def test_a_killed_node_costs_no_game(
    cluster: Cluster, doomed: Any, alone: dict[str, Episode], tmp_path: Path, capsys: Capture
) -> None:
    """All four have games to lose when it is killed, and end none before that."""
    killer = start(lambda: (kill_in_play(cluster, doomed), (tmp_path / "go").touch()))
    job = PlayJob(partial(scripted, tmp_path, 0.05, together=4, go="go"))
    play_into(tmp_path / "e.jsonl", cluster.address, job, deadline=600.0)
    killer.join()
    assert games_in(tmp_path / "e.jsonl") == alone
    said = capsys.readouterr().out
    assert "4 workers" in said
    assert "was lost (" in said


@pytest.mark.long
def test_a_worker_that_hangs_is_replaced(cluster: Cluster, alone: dict[str, Episode], tmp_path: Path) -> None:
    play_into(tmp_path / "e.jsonl", cluster.address, PlayJob(partial(hanging, tmp_path / "mark")), deadline=20.0)
    assert (tmp_path / "mark").exists()
    assert games_in(tmp_path / "e.jsonl") == alone


@pytest.mark.long
def test_a_killed_driver_resumes(cluster: Cluster, alone: dict[str, Episode], tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    job = PlayJob(partial(scripted, tmp_path, 0.05))
    driver = forked.start(forked.held, path, 7, play_into, path, cluster.address, job)
    wait_for_lines(path, 7)
    driver.kill()
    assert forked.end(driver) == -signal.SIGKILL
    before = list(read_episodes(path))
    assert 7 <= len(before) < len(SPECS)
    assert forked.end(forked.start(play_into, path, cluster.address, job), 600) == 0
    assert games_in(path) == alone
    assert list(read_episodes(path))[: len(before)] == before


@pytest.mark.long
def test_engines_that_fail_for_ever_end_the_play(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="lost without finishing a game; the last one: the endpoint is gone"):
        play_into(tmp_path / "e.jsonl", cluster.address, PlayJob(broken), workers=2)


def test_a_missing_model_is_an_error_of_one_line(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^nowhere: no such model$"):
        play_into(tmp_path / "e.jsonl", cluster.address, PlayJob(missing), workers=1)


def test_a_prompt_that_fits_no_engine_ends_the_play_at_once(cluster: Cluster, tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(RequestError, match="9,999 tokens"):
        play_into(tmp_path / "e.jsonl", cluster.address, PlayJob(refusing), workers=1)
    assert "was lost" not in capsys.readouterr().out


def test_workers_that_find_no_room_are_an_error(cluster: Cluster, tmp_path: Path) -> None:
    job, for_ever = (PlayJob(partial(scripted, tmp_path, latency_s)) for latency_s in (0.0, 600.0))
    blocker = forked.start(partial(play_into, deadline=3600.0), tmp_path / "b.jsonl", cluster.address, for_ever)
    try:
        wait_until(lambda: len(opened(tmp_path)) == 3)
        with pytest.raises(EngineError, match="no worker could start within 1 s"):
            play_into(tmp_path / "e.jsonl", cluster.address, job, deadline=1.0)
    finally:
        blocker.kill()
        blocker.join()


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.address=127\.0\.0\.1:1: no Ray cluster answers there"):
        play_into(tmp_path / "e.jsonl", "127.0.0.1:1", PlayJob(partial(scripted, tmp_path, 0.0)))


def test_a_ray_that_starts_too_slowly_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", Mock(side_effect=Exception("The current node timed out during startup.")))
    with pytest.raises(ConfigError, match=r"^cluster\.address=local: .*timed out during startup"), connected("local"):
        pass


def test_a_cluster_without_gpus_needs_no_plan(cluster: Cluster) -> None:
    changes = [f"cluster.address={cluster.address}", "engine.backend=vllm"]
    assert planned_engines(load_config("taboo-qwen3-1.7b", changes)) == {}


@pytest.mark.usefixtures("two_gpus")
def test_gpus_of_other_nodes_need_a_share_that_is_set(cluster: Cluster) -> None:
    changes = [f"cluster.address={cluster.address}", "engine.backend=vllm"]
    with pytest.raises(ConfigError, match=r"2 GPUs on other nodes, and none here .* set engine\.memory"):
        planned_engines(load_config("taboo-qwen3-1.7b", changes))
    [engine] = planned_engines(load_config("taboo-qwen3-1.7b", [*changes, "engine.memory=0.4"])).values()
    assert engine.memory == 0.2  # there are two engines
