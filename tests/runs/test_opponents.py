"""Opponents of online steps: who is drawn, how results weigh, and snapshots, which are models of their own."""

import json
import shutil
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import PHASE, config_for, train_here
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from spag.algorithms.reinforce import ReinforceSettings
from spag.config.schema import EngineConfig, GameConfig, ModelConfig, PhaseConfig
from spag.core.episodes import Episode, PlayerInfo
from spag.core.errors import ModelError
from spag.core.options import SamplingConfig
from spag.core.types import Split, Task
from spag.engines.bot import BotEngine
from spag.games.base import Game
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.registry import get
from spag.learning.job import TrainingJob
from spag.learning.metrics import TrainProgress
from spag.learning.selfplay import SelfplaySource
from spag.learning.step_figures import CollapseWatch
from spag.learning.worker import run_job
from spag.models.loading import load_model, load_tokenizer, save_model
from spag.models.saved import saved_weights
from spag.rollout import steps
from spag.rollout.matchmaking import FADE, OpponentResults, Opponents, by_results, draw_opponents
from spag.rollout.runner import Player, game_specs
from spag.rollout.steps import StepPlayer
from spag.storage.episodes import read_episodes

KUHN = KuhnPoker()
POOL = {"self": 2.0, "snapshot": 1.0, "bot:equilibrium": 1.0}
Step = Sequence[tuple[Game, Sequence[Episode]]]


def hand(opponent: str, won: float, seat: int = 0) -> Episode:
    """A hand in which the policy, in ``seat``, wins so many chips from ``opponent``."""
    own, other = KUHN.roles[seat], KUHN.roles[1 - seat]
    players = {own: PlayerInfo("policy"), other: PlayerInfo(opponent)}
    rewards = {own: won, other: -won}
    return Episode(task=Task("J,Q"), history=(), game="kuhn_poker", players=players, rewards=rewards)


def opponents(*steps: Step, **options: Any) -> Opponents:
    settings = ReinforceSettings.model_validate({"opponents": POOL, "snapshot_every": 2, **options})
    return Opponents(settings, "policy", lambda step: steps[step - 1])


def test_results_fade_towards_a_game_that_was_never_played() -> None:
    beaten = OpponentResults().then([1.0] * 9)
    assert beaten == OpponentResults(9.0, 9.0, 9) and beaten.score == 9.5 / 10
    assert beaten.rating == pytest.approx(-400 * 1.2787536)  # log10(19)
    later = beaten.then([]).then([0.5])
    assert later == OpponentResults(9 * FADE * FADE + 0.5, 9 * FADE * FADE + 1, 10)
    assert OpponentResults().score == 0.5 and OpponentResults().rating == 0.0


def test_the_policy_meets_more_often_whom_it_loses_to() -> None:
    results = {"easy": OpponentResults(9.0, 9.0, 9), "hard": OpponentResults(0.0, 9.0, 9)}
    found = by_results({"self": 1.0, "easy": 1.0, "hard": 2.0}, results)
    assert found == pytest.approx({"self": 0.5, "easy": 0.05, "hard": 1.9})


def test_a_score_is_the_difference_of_rewards_in_either_seat() -> None:
    """Kuhn poker's range is 4 chips: a pot of 2 won is all of it, one of 1 three quarters."""
    games = [hand("bot:equilibrium", 2.0), hand("bot:equilibrium", 1.0, seat=1), hand("bot:equilibrium", -2.0)]
    found = opponents([(KUHN, games)]).results(1, KUHN, ["self", "bot:equilibrium", "snapshot-2"])
    assert found == {"bot:equilibrium": OpponentResults(1.0 + 0.75 + 0.0, 3.0, 3), "snapshot-2": OpponentResults()}


class BotPlayer(StepPlayer):
    """Whose policy is a bot."""

    def player(self, name: str, game: Game) -> Player:
        return Player(BotEngine(game.bots["random"]), name, SamplingConfig())


@pytest.mark.parametrize("cut", [0, 40])
def test_a_step_that_two_processes_began_can_end_with_one(tmp_path: Path, cut: int) -> None:
    def player(rank: int, processes: int) -> StepPlayer:
        settings, model = ReinforceSettings(games=8), ModelConfig(name="bot:random")
        return BotPlayer(tmp_path, [(KUHN, 1.0)], model, EngineConfig(), settings, 0, rank, processes)

    for rank in range(2):
        with player(rank, 2) as playing:
            playing.play(1, 0)
    part = tmp_path / "episodes" / "step-00001.part1.jsonl"
    part.write_bytes(part.read_bytes()[: -cut or None])
    with player(0, 1) as playing:
        playing.play(1, 0)
        [(_, games)] = playing.episodes(1)
    assert len(games) == 8


def test_a_step_of_a_mix_loads_each_snapshot_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(steps, "saved_weights", lambda folder: loaded.append(folder.name))
    monkeypatch.setattr(StepPlayer, "update_weights", lambda *_: None)
    settings = ReinforceSettings.model_validate({"games": 24, "opponents": {"snapshot": 1}, "snapshot_every": 1})
    mix = [(KUHN, 1.0), (get("nim"), 1.0)]
    with BotPlayer(tmp_path, mix, ModelConfig(name="bot:random"), EngineConfig(), settings, 0) as playing:
        playing.play(3, 2)
        assert [len(games) for _, games in playing.episodes(3)] == [12, 12]
    assert sorted(loaded) == ["step-00001", "step-00002"]


def test_every_snapshot_is_an_opponent_once_its_step_has_ended() -> None:
    pool = opponents()
    assert pool.weights(2, KUHN) == {"self": 3.0, "bot:equilibrium": 1.0}  # the games of none are self-play
    assert pool.weights(3, KUHN) == {"self": 2.0, "snapshot-2": 1.0, "bot:equilibrium": 1.0}
    assert pool.weights(5, KUHN) == {"self": 2.0, "snapshot-2": 0.5, "snapshot-4": 0.5, "bot:equilibrium": 1.0}
    assert opponents(overlap=1).weights(3, KUHN) == pool.weights(2, KUHN)  # step 2 was not trained when 3 began


def test_results_count_from_the_steps_that_had_ended() -> None:
    lost = [(KUHN, [hand("bot:equilibrium", -2.0)] * 9)]
    options = {"matchmaking": "results", "snapshot_every": 50}
    pool = opponents(lost, lost, **options)
    assert pool.weights(1, KUHN) == {"self": 1.5, "bot:equilibrium": 0.5}
    assert pool.weights(2, KUHN)["bot:equilibrium"] == pytest.approx(1 - 0.5 / 10)
    ahead = opponents(lost, lost, overlap=1, **options)
    assert ahead.weights(2, KUHN) == pool.weights(1, KUHN)
    assert ahead.weights(3, KUHN) == pool.weights(2, KUHN)
    ahead = opponents(lost, lost, overlap=3, **options)
    ahead.results(2, KUHN, [])  # two steps have ended before the third is drawn, which began before them
    assert ahead.weights(3, KUHN) == ahead.weights(4, KUHN) == pool.weights(1, KUHN)
    assert ahead.weights(5, KUHN) == pool.weights(2, KUHN)


def test_a_role_that_alone_is_trained_is_the_seat_of_the_policy(tmp_path: Path) -> None:
    specs = game_specs(KUHN.tasks(Split.TRAIN, 24, 0), 2, 0)
    settings = ReinforceSettings.model_validate({"roles": "player_1"})
    player = StepPlayer(tmp_path, [(KUHN, 1.0)], ModelConfig(), EngineConfig(), settings, 0)
    pairs = draw_opponents(specs, "policy", {"bot:random": 1.0}, player.seats(KUHN))
    assert [pairing.players for pairing in pairs] == [("bot:random", "policy")]
    both = draw_opponents(specs, "policy", {"bot:random": 1.0})
    assert len(both) == 2


def test_a_snapshot_that_is_gone_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelError, match="has no weights"):
            saved_weights(folder)


@pytest.mark.slow
def test_a_run_records_ratings_and_draws_by_them(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a step loads each snapshot once, and none that is still loaded."""
    loaded: list[list[str]] = []
    plain = StepPlayer.play

    def play(self: StepPlayer, step: int, weights_of: int) -> None:
        loaded.append([])
        plain(self, step, weights_of)

    def noted(folder: Path) -> dict[str, torch.Tensor]:
        loaded[-1].append(folder.name)
        return saved_weights(folder)

    monkeypatch.setattr(StepPlayer, "play", play)
    monkeypatch.setattr(steps, "saved_weights", noted)
    options = ("reinforce.opponents={snapshot: 1, 'bot:equilibrium': 1}", "reinforce.matchmaking=results")
    train_here(config_for(model_folder, *options, "reinforce.evaluate_every=null"), tmp_path)
    assert loaded[:2] == [[], ["step-00001"]] and len(loaded) == 4 and all(len({*one}) == len(one) for one in loaded)
    assert all(one != other for one, other in pairwise(chain(*loaded)))
    recorded = [json.loads(line) for line in (tmp_path / PHASE / "opponents.jsonl").read_text().splitlines()]
    assert [row["step"] for row in recorded] == [1, 2, 3, 4]
    last = {one["opponent"]: one for one in recorded[-1]["opponents"]}
    assert last.keys() == {"bot:equilibrium", "snapshot-1", "snapshot-2", "snapshot-3", "snapshot-4"}
    assert sum(one["share"] for one in last.values()) == pytest.approx(1)
    games = [game for path in sorted((tmp_path / PHASE / "episodes").iterdir()) for game in read_episodes(path)]
    for name, one in last.items():
        met = [game for game in games if name in {info.model for info in game.players.values()}]
        assert one["games"] == len(met)
        assert one["share"] > 0 and (one["rating"] > 0) == (one["score"] < 0.5)
    bot, fresh = last["bot:equilibrium"], last["snapshot-4"]
    assert (fresh["games"], fresh["score"], fresh["rating"]) == (0, 0.5, 0.0)
    assert bot["score"] < 0.5  # the policy's hands are mostly illegal
    assert bot["share"] / fresh["share"] == pytest.approx(4 * (1 - bot["score"]) / 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4}, {"rank": 4, "per_role": True}])
def test_an_interrupted_phase_meets_the_same_opponents(
    model_folder: Path, tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    options = {
        "algorithm": "reinforce", "steps": 3, "games": 4, "learning_rate": 1e-2, "micro_batch_size": 4,
        "sampling": {"max_new_tokens": 6}, "opponents": {"snapshot": 1, "bot:equilibrium": 1}, "snapshot_every": 1,
        "matchmaking": "results", "evaluate_every": None, "save_steps": 1, "warmup_ratio": 0, "lora": lora,
        "entropy_coef": 0.1,
    }  # fmt: skip

    def job(name: str) -> TrainingJob:
        return TrainingJob(
            model=ModelConfig(dtype="float32", device="cpu"),
            phase=PhaseConfig.model_validate(options),
            game=GameConfig(name="kuhn_poker"),
            start_from=str(model_folder),
            output=tmp_path / name,
            seed=3,
        )

    def copy(at: TrainProgress) -> None:
        if at.step == 2:  # trained, and its checkpoint is not written
            shutil.copytree(tmp_path / "whole", tmp_path / "stopped")

    run_job(job("whole"), copy)
    assert [path.name for path in (tmp_path / "stopped" / "state").glob("checkpoint-*")] == ["checkpoint-1"]
    seen: list[int] = []
    run_job(job("stopped"), lambda at: seen.append(at.step))
    assert [*dict.fromkeys(seen)] == [2, 3]
    assert moves(tmp_path / "whole") == moves(tmp_path / "stopped")
    rows = [(tmp_path / name / "opponents.jsonl").read_text() for name in ("whole", "stopped")]
    assert rows[0] == rows[1] and "snapshot-3" in rows[0]
    places = "whole/snapshots/step-00002", "stopped/snapshots/step-00002", "whole/snapshots/step-00001"
    one, other, first = (saved_weights(tmp_path / place) for place in places)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=0)
    assert any(not torch.equal(one[name], first[name]) for name in one)


@pytest.mark.slow
def test_a_frozen_opponent_is_hashed_once(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(steps, "identity_of", lambda model: hashed.append(model.name) or {"weights": "start"})
    options = "reinforce.opponents={start: 1}", "reinforce.steps=2", "reinforce.games=4", "reinforce.evaluation_tasks=1"
    train_here(config_for(model_folder, *options), tmp_path)
    assert hashed == [str(model_folder)]


def moves(folder: Path) -> dict[str, Any]:
    games = [game for path in sorted((folder / "episodes").iterdir()) for game in read_episodes(path)]
    return {
        game.id: ([info.model for info in game.players.values()], [said.content for said in game.history])
        for game in games
    }


@pytest.mark.slow
def test_a_snapshot_is_a_model_and_is_kept_where_somebody_asks(model_folder: Path, tmp_path: Path) -> None:
    few = "reinforce.games=4", "reinforce.evaluate_every=null"
    train_here(config_for(model_folder, *few, "reinforce.steps=2", "reinforce.snapshot_every=2"), tmp_path / "kept")
    [folder] = (tmp_path / "kept" / PHASE / "snapshots").iterdir()
    assert folder.name == "step-00002"
    last = load_model(str(tmp_path / "kept" / PHASE / "checkpoint"), dtype="float32", device="cpu").state_dict()
    for name, weight in load_model(str(folder), dtype="float32", device="cpu").state_dict().items():
        assert torch.equal(weight, last[name])  # both are the policy after the last step
    train_here(config_for(model_folder, *few, "reinforce.steps=1", "reinforce.snapshot_every=null"), tmp_path / "none")
    assert not (tmp_path / "none" / PHASE / "snapshots").exists()


@pytest.mark.slow
def test_the_weights_of_a_snapshot_with_experts_have_the_names_of_a_loaded_model(
    model_folder: Path, tmp_path: Path
) -> None:
    """Its file has each expert of a layer by itself."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=258, **sizes, **experts))
    save_model(model, load_tokenizer(str(model_folder)), tmp_path / "snapshot")
    own, found = dict(model.named_parameters()), saved_weights(tmp_path / "snapshot")
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], weight) for name, weight in own.items())


def test_a_step_s_record_and_progress_name_opponents_as_the_next_draw_does() -> None:
    """Which with ``overlap`` is of a later step: the games of those before it are drawn, or even played."""
    source = object.__new__(SelfplaySource)
    source.settings = ReinforceSettings.model_validate({"opponents": POOL, "snapshot_every": 2, "overlap": 1})
    source.player = StepPlayer(Path(), [(KUHN, 1.0)], ModelConfig(), EngineConfig(), source.settings, 0)
    source.player.opponents = opponents([], [], overlap=1)
    shares = {row["opponent"]: row["share"] for row in source._ratings(2)}
    assert shares == {"bot:equilibrium": 0.25, "snapshot-2": 0.25}
    source.watch = None
    source.figures = {"kuhn_poker/player_0/reward": 0.5, "kuhn_poker/player_0 against ./runs/a/checkpoint/reward": -1}
    assert source.describe() == "player_0 +0.50  player_0 against ./runs/a/checkpoint -1.00"


def test_the_progress_of_a_mix_names_the_games() -> None:
    source = object.__new__(SelfplaySource)
    mix = [(KUHN, 1.0), (get("nim"), 1.0)]
    source.player = StepPlayer(Path(), mix, ModelConfig(), EngineConfig(), ReinforceSettings(), 0)
    source.figures = {"kuhn_poker/player_0/reward": 0.5, "nim/player_0/reward": -1, "nim/games": 3}
    source.watch = object.__new__(CollapseWatch)
    source.watch.found = {"nim/player_0/win": "", "kl": ""}
    found = "Kuhn poker: player_0 +0.50  Nim: player_0 -1.00  collapse? Nim: player_0/win, kl"
    assert source.describe() == found
