"""Online runs from end to end with a tiny model: files, figures, exact updates, resuming, several processes."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import (
    MOMENTS,
    PHASE,
    Watcher,
    assert_same_weights,
    config_for,
    job_of,
    run_here,
    spoken,
    train_here,
    train_in_pair,
    weights_of,
)
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import forked
from game_files import reached, wait_until
from scripted_run import run_until
from spag.algorithms.reinforce import Reinforce, ReinforceSettings
from spag.config.schema import RunConfig
from spag.core.episodes import Episode
from spag.core.errors import ConfigError
from spag.core.progress import SilentReporter
from spag.games.kuhn_poker.kuhn import KuhnPoker
from spag.games.tic_tac_toe.board import TicTacToe
from spag.learning.selfplay import SelfplaySource
from spag.learning.worker import run_job
from spag.models.loading import load_model, load_tokenizer
from spag.report.run_tables import cost_table
from spag.rollout.matchmaking import step_specs
from spag.rollout.runner import play_together
from spag.rollout.steps import StepPlayer
from spag.runs.reading import RunFolder
from spag.storage.episodes import read_episodes

pytestmark = pytest.mark.slow
PLAIN = ("reinforce.entropy_coef=0", "reinforce.baseline_decay=1")
"""Options of plain REINFORCE."""
AHEAD = ("reinforce.warmup_ratio=0", "reinforce.evaluate_every=null")


@pytest.fixture(scope="module")
def finished(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("online") / "run"
    run_here(config_for(model_folder), folder)
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_games_figures_and_a_model(finished: Path) -> None:
    metrics = rows(finished / PHASE / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    for row in metrics:
        games = list(read_episodes(finished / PHASE / "episodes" / f"step-{row['step']:05d}.jsonl"))
        assert len(games) == 12
        assert row["samples"] == sum(len(game.history) for game in games)
        for role in ("player_0", "player_1"):
            pay = sum(game.rewards[role] for game in games) / 12
            assert row[f"kuhn_poker/{role}/reward"] == pytest.approx(pay)
        assert row["mismatch"] < 1e-3  # both compute in float32
        evaluated = (finished / PHASE / "evaluations").glob(f"step-{row['step']:05d}-*.jsonl")
        played = [*games, *(game for path in evaluated for game in read_episodes(path))]
        assert row["completion_tokens"] == sum(len(said.token_ids or ()) for one in played for said in one.history) > 0
    [train, arena, total] = [row[-1] for row in cost_table(RunFolder(finished)).rows]
    assert train == f"{sum(row['completion_tokens'] for row in metrics):,}"
    assert int(total) == int(train) + int(arena)
    assert [(row["step"], row["opponent"]) for row in rows(finished / PHASE / "evaluations.jsonl")] == [
        (2, "start"),
        (4, "start"),
    ]
    evaluation = rows(finished / PHASE / "evaluations.jsonl")[-1]
    assert {row["role"]: row["games"] for row in evaluation["roles"]} == {"player_0": 3, "player_1": 3}
    assert evaluation["exact"]["exploitability"] > 0
    [file] = (finished / PHASE / "evaluations").glob("step-00004-*.jsonl")
    seeds: dict[str, list[int]] = {}
    for game in read_episodes(file):
        seeds.setdefault(game.task.id, []).append(game.seed)
    assert all(len(own) == 2 and len(set(own)) == 1 for own in seeds.values())  # one for each role assignment
    assert not (finished / PHASE / "state").exists()
    players = {
        name
        for game in read_episodes(finished / "arena" / "episodes.jsonl")
        for name in (i.model for i in game.players.values())
    }
    assert players == {"base", "reinforce"}
    assert load_model(str(finished / PHASE / "checkpoint"), dtype="float32").num_parameters() > 0


def test_evaluations_against_names_that_differ_in_punctuation_are_apart(model_folder: Path, tmp_path: Path) -> None:
    """Their games are in one file."""
    deep = tmp_path / ("x" * 200) / "y"  # a file's name may have 255 bytes
    one, other = deep / "a-b", deep / "a" / "b"
    for folder in (one, other):
        shutil.copytree(model_folder, folder)
    options = f'reinforce.evaluation_opponents=["{one}", "{other}"]', "reinforce.steps=1", "reinforce.save_steps=5"
    train_here(config_for(model_folder, *options), tmp_path / "run")
    assert len(list((tmp_path / "run" / PHASE / "evaluations").iterdir())) == 1
    for row in rows(tmp_path / "run" / PHASE / "evaluations.jsonl"):
        assert [role["games"] for role in row["roles"]] == [3, 3]
        assert [pair["players"] for pair in row["pair"]] == [["policy", row["opponent"]]]


def test_a_second_call_does_nothing(finished: Path, model_folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / PHASE).rglob("*") if path.is_file()}
    run_here(config_for(model_folder), finished)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_an_update_is_adamw_on_the_sum_over_tokens(model_folder: Path, tmp_path: Path) -> None:
    """One step, without micro-batches, packing, merging or the chunked head: the same weights."""
    train_here(
        config_for(
            model_folder,
            "reinforce.steps=1",
            "reinforce.snapshot_every=5",
            "reinforce.warmup_ratio=0",
            "reinforce.evaluate_every=null",
            *PLAIN,
        ),
        tmp_path / "run",
    )
    policy, tokenizer = load_model(str(model_folder), dtype="float32", device="cpu"), load_tokenizer(str(model_folder))
    games = {game.id: game for game in read_episodes(tmp_path / "run" / PHASE / "episodes" / "step-00001.jsonl")}
    specs = step_specs([(KuhnPoker(), 1.0)], 12, 1, 0)
    samples = Reinforce(ReinforceSettings(baseline_decay=1)).credit(
        [games[spec.id] for _, spec in specs], KuhnPoker(), "policy"
    )
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
    loss = torch.zeros(())
    for sample in samples:
        loss = loss - sample.reward * spoken(policy, tokenizer, sample).sum() / (len(samples) * 6)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    start = load_model(str(model_folder), dtype="float32", device="cpu").state_dict()
    moved, expected = (
        torch.cat([(after[name] - start[name]).flatten() for name in weights_of(tmp_path / "run")])
        for after in (weights_of(tmp_path / "run"), policy.state_dict())
    )
    # AdamW's first step is the learning rate along the gradient's sign; rounding decides the sign of gradients that are
    # next to nothing
    assert float(((moved - expected).abs() > 1e-5).float().mean()) < 0.005
    assert float(moved.abs().median()) == pytest.approx(1e-3, rel=0.01)
    # the loss that is logged is the surrogate's: at ratio 1, minus the advantage of every token
    surrogate = -sum(sample.reward * len(sample.completion_ids or ()) for sample in samples) / (len(samples) * 6)
    assert rows(tmp_path / "run" / PHASE / "metrics.jsonl")[0]["loss"] == pytest.approx(surrogate, rel=1e-4)


class Interrupt(SilentReporter):
    """Interrupts a training when its third step is recorded, and not yet saved."""

    @contextmanager
    def track(self, title: str, total: int, done: int = 0) -> Iterator["Interrupt"]:
        yield self

    def update(self, done: int, detail: str = "") -> None:
        if done == 3 and detail.count("samples/s"):
            raise KeyboardInterrupt


def test_a_resumed_run_counts_the_samples_of_all_steps(model_folder: Path, finished: Path, tmp_path: Path) -> None:
    config = config_for(model_folder, "reinforce.evaluate_every=null")
    with pytest.raises(KeyboardInterrupt):
        train_here(config, tmp_path, Interrupt())
    assert [path.name for path in (tmp_path / PHASE / "state").glob("checkpoint-*")] == ["checkpoint-2"]
    train_here(config, tmp_path)
    counts = [row["samples"] for row in rows(tmp_path / PHASE / "metrics.jsonl")]
    assert len(counts) == 4 and trained_samples(tmp_path) == trained_samples(finished) == sum(counts)
    said = [row["completion_tokens"] for row in rows(tmp_path / PHASE / "metrics.jsonl")]
    assert RunFolder(tmp_path).results(f"{PHASE}/train")["completion_tokens"] == sum(said)


def test_an_evaluation_is_announced(model_folder: Path, tmp_path: Path) -> None:
    watcher = Watcher()
    train_here(config_for(model_folder, "reinforce.steps=2", "reinforce.evaluate_every=2"), tmp_path, watcher)
    shown = [(done, "evaluating step 2" in detail) for done, detail in watcher.shown if "samples/s" in detail]
    assert shown == [(1, False), (1, True), (2, False)]


def trained_samples(folder: Path) -> int:
    return int(json.loads((folder / PHASE / "training.json").read_text())["result"]["trained_samples"])


@pytest.mark.long
def test_a_run_survives_being_killed_anywhere(model_folder: Path, finished: Path, tmp_path: Path) -> None:
    """kill -9 in play, between play and training, in training and in saving: games, weights and baselines are those of
    no kill.
    """
    config, killed = config_for(model_folder), tmp_path / "killed"
    assert all(run_until(moment, config, killed, run_here) for moment in MOMENTS)
    run_here(config, killed)
    assert_same_weights(killed, finished)
    assert trained_samples(killed) == trained_samples(finished)
    for step in range(1, 5):
        name = f"{PHASE}/episodes/step-{step:05d}.jsonl"
        assert by_id(killed / name) == by_id(finished / name)
    numbers = (
        "step",
        "samples",
        "kuhn_poker/player_0/reward",
        "kuhn_poker/player_0/baseline",
        "kuhn_poker/player_1/baseline",
    )
    assert [[row[name] for name in numbers] for row in rows(killed / PHASE / "metrics.jsonl")] == [
        [row[name] for name in numbers] for row in rows(finished / PHASE / "metrics.jsonl")
    ]
    assert [row["step"] for row in rows(killed / PHASE / "evaluations.jsonl")] == [2, 4]


def by_id(path: Path) -> dict[str, tuple[tuple[int, ...] | None, ...]]:
    found: dict[str, tuple[tuple[int, ...] | None, ...]] = {}
    for game in read_episodes(path):
        assert game.id not in found
        found[game.id] = tuple(said.token_ids for said in game.history)
    return found


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # torch's launcher leaves its log files open
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "launched"),
    [
        # the first process alone saves a snapshot, and all meet it in the next step
        (("reinforce.opponents={self: 1, start: 1, snapshot: 1}", "reinforce.snapshot_every=1"), True),
        (("reinforce.lora={rank: 2}",), False),
    ],
    ids=["weights", "adapter"],
)
def test_two_processes_do_what_one_does(
    model_folder: Path, tmp_path: Path, options: tuple[str, ...], launched: bool, request: pytest.FixtureRequest
) -> None:
    """Each plays and trains its share; the model is that of one process. Replicas: test_per_role.py."""
    some = [
        *PLAIN,
        "reinforce.steps=2",
        "reinforce.epochs=2",
        "reinforce.kl_coef=0.1",
        "reinforce.average_decay=0.5",
        "reinforce.evaluate_every=null",
        "reinforce.save_steps=2",
        *options,
    ]
    alone, together = config_for(model_folder, *some), config_for(model_folder, *some, "reinforce.parallel=fsdp")
    if launched:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("spag.learning.processes.WORKER", request.getfixturevalue("training_command"))
            train_here(
                config_for(model_folder, *some, "reinforce.parallel=fsdp", "reinforce.processes=2"), tmp_path / "two"
            )
        train_here(alone, tmp_path / "one")
    else:
        train_in_pair(together, tmp_path / "two")
        run_job(job_of(alone, tmp_path / "one"))
    assert_same_weights(tmp_path / "two", tmp_path / "one")
    for step in (1, 2):
        files = sorted((tmp_path / "two" / PHASE / "episodes").glob(f"step-0000{step}*"))
        one, two = (list(read_episodes(path)) for path in files)
        assert (len(one), len(two)) == (6, 6)


def test_playing_ahead_lags_one_update_behind(model_folder: Path, finished: Path, tmp_path: Path) -> None:
    train_here(config_for(model_folder, *AHEAD, "reinforce.overlap=1"), tmp_path / "ahead")
    played = [by(tmp_path / "ahead", step) for step in range(1, 5)]
    assert played == ["step 0", "step 0", "step 1", "step 2"]
    assert [by(finished, step) for step in range(1, 5)] == ["step 0", "step 1", "step 2", "step 3"]
    metrics = rows(tmp_path / "ahead" / PHASE / "metrics.jsonl")
    assert metrics[0]["mismatch"] < 1e-4 < metrics[1]["mismatch"]  # the importance weights see the update between
    assert metrics[0]["clip_fraction"] == 0.0 < metrics[1]["clip_fraction"]  # and so does the trust region
    assert metrics[1]["mismatch"] < metrics[1]["mismatch_max"]
    assert [row["staleness"] for row in metrics] == [0, 1, 1, 1]
    assert [row["staleness"] for row in rows(finished / PHASE / "metrics.jsonl")] == [0, 0, 0, 0]


def test_an_interruption_does_not_wait_for_the_steps_ahead(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    players: list[StepPlayer] = []
    enter = SelfplaySource.__enter__

    def note(source: SelfplaySource) -> SelfplaySource:
        players.append(source.player)
        return enter(source)

    def slow(game: Any, games: Iterator[Any], *others: Any) -> Iterator[list[Episode]]:
        own = list(games)
        for ended in play_together(game, own, *others):
            yield ended
            if own[0][0].id.startswith("2/"):
                wait_until(lambda: players[0].stopped)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spag.rollout.steps.play_together", slow)
    monkeypatch.setattr(SelfplaySource, "__enter__", note)
    monkeypatch.setattr("spag.learning.loop.Loop._record", interrupt)  # step 1 is trained, step 2 is being played
    with pytest.raises(KeyboardInterrupt):
        train_here(config_for(model_folder, *AHEAD, "reinforce.overlap=1", "engine.concurrency=1"), tmp_path)
    assert len(list(read_episodes(tmp_path / PHASE / "episodes" / "step-00002.jsonl"))) < 12


def test_games_are_never_older_than_the_bound(model_folder: Path, tmp_path: Path) -> None:
    """Two steps ahead, they are played by copies of earlier weights, although newer ones were trained before that."""
    options = "reinforce.games=4", "reinforce.overlap=2", "reinforce.steps=5"
    play_slowly(config_for(model_folder, *AHEAD, *options), tmp_path, (4, 1))
    assert [by(tmp_path, step) for step in range(1, 6)] == ["step 0", "step 0", "step 0", "step 1", "step 2"]
    assert [row["staleness"] for row in rows(tmp_path / PHASE / "metrics.jsonl")] == [0, 1, 2, 2, 2]
    for weights in (1, 2, 3):
        policy = load_model(str(tmp_path / PHASE / "snapshots" / f"step-{weights:05d}"), dtype="float32", device="cpu")
        off = furthest(policy, load_tokenizer(str(model_folder)), tmp_path / PHASE / "episodes" / "step-00004.jsonl")
        assert (off < 1e-4) == (weights == 1), "the record of who played is wrong"


def furthest(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> float:
    """The largest difference between the log-probabilities that games record and the policy's."""
    samples = Reinforce(ReinforceSettings()).credit([*read_episodes(path)], KuhnPoker(), "policy")
    with torch.no_grad():
        off = [spoken(policy, tokenizer, one) - torch.tensor(one.logprobs) for one in samples]
    return float(torch.cat(off).abs().max())


def play_slowly(config: RunConfig, folder: Path, slow: tuple[int, int]) -> None:
    """Run, but play ``slow``, a step ahead and its weights, only some time after step 2 is trained."""
    plain = StepPlayer.play

    def play(self: StepPlayer, step: int, weights_of: int) -> None:
        if (step, weights_of) == slow:
            while not reached(folder / PHASE / "metrics.jsonl", 2):
                time.sleep(0.01)
            time.sleep(2.0)
        plain(self, step, weights_of)

    StepPlayer.play = play  # type: ignore[method-assign]
    try:
        train_here(config, folder)
    finally:
        StepPlayer.play = plain  # type: ignore[method-assign]


@pytest.mark.long
def test_a_run_that_plays_ahead_resumes_exactly(model_folder: Path, tmp_path: Path) -> None:
    """A checkpoint waits for the games that are played ahead: a run that resumes from it has newer weights only."""
    played_by, steps = [0, 0, 0, 1, 2], range(1, 6)
    config = config_for(model_folder, *AHEAD, "reinforce.overlap=2", f"reinforce.steps={len(steps)}")
    complete = tmp_path / "killed" / PHASE / "state" / "checkpoint-2" / "state.json"
    process = forked.start(forked.held, complete, 0, play_slowly, config, tmp_path / "killed", (4, 1))
    while not complete.exists():
        assert process.is_alive()
        time.sleep(0.001)
    process.kill()
    assert forked.end(process) == -9
    for name in ("killed", "whole"):
        run_here(config, tmp_path / name)
        assert [by(tmp_path / name, step) for step in steps] == [f"step {weights}" for weights in played_by]
    for step in steps:
        games = [by_id(tmp_path / name / PHASE / f"episodes/step-{step:05d}.jsonl") for name in ("killed", "whole")]
        assert games[0] == games[1]
    assert_same_weights(tmp_path / "killed", tmp_path / "whole")


def by(folder: Path, step: int) -> str:
    [described] = {
        info.identity["weights"]
        for game in read_episodes(folder / PHASE / "episodes" / f"step-{step:05d}.jsonl")
        for info in game.players.values()
        if info.identity
    }
    return described


def test_frozen_opponents_are_not_trained(model_folder: Path, tmp_path: Path) -> None:
    opponents = 'reinforce.opponents={"snapshot": 1, "bot:equilibrium": 1}'
    train_here(
        config_for(model_folder, opponents, "reinforce.steps=3", 'reinforce.evaluation_opponents=["bot:random"]'),
        tmp_path / "run",
    )
    games = list(read_episodes(tmp_path / "run" / PHASE / "episodes" / "step-00003.jsonl"))
    met = {info.model for game in games for info in game.players.values()}
    assert met == {"policy", "snapshot-1", "snapshot-2", "bot:equilibrium"}
    weights = {
        (info.model, info.identity["weights"])
        for game in games
        for info in game.players.values()
        if info.model.startswith("snapshot") and info.identity
    }
    assert weights == {("snapshot-1", "step 1"), ("snapshot-2", "step 2")}
    own = sum(said.role in roles_of(game, "policy") for game in games for said in game.history)
    assert rows(tmp_path / "run" / PHASE / "metrics.jsonl")[-1]["samples"] == own


def roles_of(game: Episode, name: str) -> set[str]:
    return {role for role, info in game.players.items() if info.model == name}


def test_games_are_mixed_by_weight_with_baselines_of_their_own(model_folder: Path, tmp_path: Path) -> None:
    mix = "reinforce.mix=[{name: kuhn_poker, weight: 2}, {name: tic_tac_toe}]"
    train_here(config_for(model_folder, mix, "reinforce.steps=2", "reinforce.evaluate_every=null"), tmp_path / "run")
    row = rows(tmp_path / "run" / PHASE / "metrics.jsonl")[-1]
    assert (row["kuhn_poker/games"], row["tic_tac_toe/games"]) == (8, 4)
    baselines = {name for name in row if name.endswith("/baseline")}
    roles = [f"{game.name}/{role}" for game in (KuhnPoker, TicTacToe) for role in game.roles]
    assert baselines == {f"{name}/baseline" for name in roles}


def test_a_kl_term_that_begins_at_nothing_has_its_reference(model_folder: Path, tmp_path: Path) -> None:
    train_here(
        config_for(model_folder, "reinforce.kl_coef_end=0.5", "reinforce.steps=2", "reinforce.evaluate_every=null"),
        tmp_path / "run",
    )
    assert rows(tmp_path / "run" / PHASE / "metrics.jsonl")[0]["kl"] == pytest.approx(0.0, abs=1e-5)  # rounding of -6


def test_every_task_is_played_before_any_is_played_again() -> None:
    specs = step_specs([(KuhnPoker(hands=6), 1.0)], 15, 3, 7)
    tasks = [spec.task.id for _, spec in specs]
    assert len(set(tasks[:6])) == 6 and set(tasks[6:12]) == set(tasks[:6])
    assert len({spec.id for _, spec in specs}) == len({spec.seed for _, spec in specs}) == 15
    assert (
        specs == step_specs([(KuhnPoker(hands=6), 1.0)], 15, 3, 7) != step_specs([(KuhnPoker(hands=6), 1.0)], 15, 4, 7)
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("reinforce.parallel=deepspeed", r"phases\.0\.parallel"),
        ("reinforce.rewards={chess: {tie: 1}}", "rewards: chess is not played in this phase; the games are kuhn_poker"),
        (
            "reinforce.rewards={kuhn_poker: {tie_by_role: {player_2: 1}}}",
            r"phases\.0\.rewards\.kuhn_poker\.tie_by_role: kuhn_poker has no role player_2; the roles are player_0",
        ),
        ("reinforce.opponents={bob: 1}", "there is no opponent bob"),
        ("reinforce.evaluation_opponents=[self]", "there is no opponent self"),
        ("reinforce.roles=king", "kuhn_poker has no role king"),
    ],
)
def test_settings_that_do_not_fit_are_refused(model_folder: Path, option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_for(model_folder, option)


@pytest.mark.parametrize(
    ("template", "length", "message"),
    [
        ("play", 2147, "100 tokens after a prompt of 2048; set max_length to 2148 at least"),
        ("random", 100, "100 tokens, which leaves none for its prompt; set max_length to 101 at least"),
    ],
)
def test_a_length_that_would_cut_what_was_sampled_is_refused_first(
    model_folder: Path, tmp_path: Path, template: str, length: int, message: str
) -> None:
    sampling = "sampling: {published: true, max_new_tokens: 100}"
    phases = f"phases=[{{algorithm: spag, template: {template}, {sampling}, max_length: {length}}}]"
    said = rf"phases\.0 \(spag\): max_length={length}: an utterance may have {message}"
    with pytest.raises(ConfigError, match=said):
        run_here(config_for(model_folder, phases, "arena.entrants=[base, spag-1]"), tmp_path / "run")
    assert not (tmp_path / "run" / "1-spag").exists()


def test_what_a_late_step_would_find_wrong_is_refused_first(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"phases\.0\.evaluation_tasks \(kuhn_poker\): 1,000 tasks asked for"):
        run_here(config_for(model_folder, "reinforce.evaluation_tasks=1000"), tmp_path / "run")
    mix = "reinforce.mix=[{name: kuhn_poker, weight: 30}, {name: nim}]"
    with pytest.raises(ConfigError, match="mix: weight 1 gives nim none of the 12 games of a step; raise the weight"):
        run_here(config_for(model_folder, mix), tmp_path / "run")
    mix = "reinforce.mix=[{name: kuhn_poker}, {name: nim, weight: 2}, {name: kuhn_poker}]"
    with pytest.raises(ConfigError, match="mix: kuhn_poker is named more than once; name each game once"):
        run_here(config_for(model_folder, mix), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"matchmaking=results: in guess_my_city players win together"):
        run_here(config_for(model_folder, "reinforce.matchmaking=results", "game.name=guess_my_city"), tmp_path / "run")
    with pytest.raises(ConfigError, match="bot:nobody: kuhn_poker has no such bot"):
        run_here(config_for(model_folder, 'reinforce.opponents={"bot:nobody": 1}'), tmp_path / "run")
    assert not (tmp_path / "run" / PHASE).exists()
