"""What a finished or interrupted run does when its settings have changed: bots play, and training is a stub."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from spag.config.files import parse_config
from spag.core.errors import ConfigError, RunError
from spag.core.progress import SilentReporter
from spag.learning.job import TrainingJob
from spag.runs import execute, phases
from spag.runs.execute import run
from spag.runs.reading import RunFolder
from spag.storage import outputs
from spag.storage.episodes import read_episodes

CONFIG = """
model: {{name: "{model}", dtype: float32}}
game: {{name: kuhn_poker}}
phases: [{phases}]
arena: {{entrants: ["bot:random", "bot:constant"], tasks: 2}}
"""
SPAG = "{algorithm: spag, iterations: 1, tasks: 4}"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[TrainingJob]:
    """The trainings of the test's runs; each writes a checkpoint that tells what it learned from."""
    found: list[TrainingJob] = []

    def train(job: TrainingJob, *_: object) -> dict[str, Any]:
        found.append(job)
        (job.output / "checkpoint").mkdir(parents=True)
        (job.output / "checkpoint" / "config.json").write_text(f'{{"start": "{job.start_from}"}}')
        return {}

    monkeypatch.setattr(phases, "train_on", train)
    monkeypatch.setattr(execute, "check_run", lambda *_: None)
    monkeypatch.setattr(execute, "play_arena", lambda *_, **__: {"pairs": [], "completion_tokens": 0})
    return found


def go(folder: Path, listed: str, model: str = "bot:random", **options: Any) -> None:
    run(parse_config(CONFIG.format(model=model, phases=listed), "test"), folder, SilentReporter(), **options)


def learners(job: TrainingJob) -> set[str]:
    """Return the players of the games that a job trains on."""
    return {player.model for file in job.files for game in read_episodes(file) for player in game.players.values()}


@pytest.mark.slow
def test_another_base_model_plays_its_own_games(tmp_path: Path, jobs: list[TrainingJob]) -> None:
    go(tmp_path, SPAG)
    go(tmp_path, SPAG, "bot:equilibrium", force=True)
    assert [job.start_from for job in jobs] == ["bot:random", "bot:equilibrium"]
    [file] = jobs[1].files
    assert {player.identity["bot"] for game in read_episodes(file) for player in game.players.values()} == {
        "equilibrium"
    }


@pytest.mark.slow
def test_another_model_under_the_same_name_is_noticed(
    tmp_path: Path, jobs: list[TrainingJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, imitation = tmp_path / "model", tmp_path / "run", "{algorithm: imitation, episodes: ['bot:random']}"
    weights = model / "model.safetensors"
    model.mkdir()
    (model / "config.json").write_text("{}")
    weights.write_bytes(b"old")
    hashed: list[Path] = []
    digest = outputs.file_digest
    monkeypatch.setattr(outputs, "file_digest", lambda path: (hashed.append(path), digest(path))[1])
    go(folder, imitation, str(model))
    assert weights in hashed
    hashed.clear()
    (model / "README.md").write_text("About it.")
    go(folder, imitation, str(model))
    assert not hashed  # sizes and times are the same
    os.utime(weights, (0, 0))  # a copy
    go(folder, imitation, str(model))
    assert hashed == [weights] * 2  # before the run, to see what is due, and in it
    weights.write_bytes(b"new")
    said = f"run: 1-imitation/train was begun before {weights} changed; use a new run folder, or "
    with pytest.raises(RunError, match=re.escape(said)):
        go(folder, imitation, str(model))
    go(folder, imitation, str(model), force=True)
    go(folder, imitation, str(model))
    assert len(jobs) == 2
    (model / "model-2.safetensors").write_bytes(b"more")
    with pytest.raises(RunError, match=r"begun before .*model-2\.safetensors changed"):
        go(folder, imitation, str(model))
    shutil.rmtree(model)  # as on another machine: nothing is due, so nothing is missing
    go(folder, imitation, str(model))
    assert len(jobs) == 2


def test_a_run_that_did_not_record_its_models_files_is_left_alone(tmp_path: Path, jobs: list[TrainingJob]) -> None:
    model, folder, imitation = tmp_path / "model", tmp_path / "run", "{algorithm: imitation, episodes: ['bot:random']}"
    model.mkdir()
    (model / "config.json").write_text("{}")
    go(folder, imitation, str(model))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert list(manifest["stages"]["1-imitation/train"].pop("files")) == [f"{model}/config.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (model / "config.json").write_text("{ }")
    go(folder, imitation, str(model))
    assert len(jobs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("step", ["health", "train_on"])
def test_a_phase_added_later_does_not_part_the_learner_from_its_games_on_disk(
    tmp_path: Path, jobs: list[TrainingJob], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Killed in play, its games on disk, or in training: then another phase gives the models other names."""
    opened = phases.make_matches

    def bots(pairs: Any, models: Any, *rest: Any) -> Any:
        return opened(
            pairs, {name: model.model_copy(update={"name": "bot:random"}) for name, model in models.items()}, *rest
        )

    monkeypatch.setattr(phases, "make_matches", bots)
    twice, stub = "{algorithm: spag, iterations: 2, tasks: 4}", getattr(phases, step)

    def killed(*arguments: Any) -> Any:
        if (tmp_path / "1-spag/iteration-2").exists():
            raise KeyboardInterrupt
        return stub(*arguments)

    monkeypatch.setattr(phases, step, killed)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, twice)
    monkeypatch.setattr(phases, step, stub)
    go(tmp_path, f"{twice}, {SPAG}")
    assert [job.learner for job in jobs] == ["base", "spag-1-1" if step == "health" else "spag-1", "spag-1-2"]
    assert all(learners(job) == {job.learner} for job in jobs)


@pytest.mark.parametrize("online", ["{algorithm: reinforce, steps: 3, games: 4, evaluate_every: null}"])
def test_a_forced_redo_is_checked_and_planned_like_a_new_run(
    tmp_path: Path, jobs: list[TrainingJob], monkeypatch: pytest.MonkeyPatch, online: str
) -> None:
    go(tmp_path, online.replace("3", "2"))

    def refuse(*_: object) -> None:
        raise ConfigError("checked")

    go(tmp_path, online.replace("3", "2"), plan_engines=refuse)  # nothing to do, nothing to check
    with pytest.raises(ConfigError, match="checked"):
        go(tmp_path, online, force=True, plan_engines=refuse)
    assert len(jobs) == 1


@pytest.mark.slow
def test_weights_replaced_under_the_name_of_another_player_are_noticed(
    tmp_path: Path, jobs: list[TrainingJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of opponents in an online phase, and of entrants; an entrant that joins or leaves is no replacement."""
    rival, other = tmp_path / "rival", tmp_path / "other"
    for folder in (rival, other):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"first")

    def play(opponent: Path | str, *entrants: Path | str) -> None:
        online = f'{{algorithm: reinforce, opponents: {{self: 1, "{opponent}": 1}}}}'
        text = CONFIG.format(model="bot:random", phases=online)
        names = json.dumps([*map(str, entrants), "bot:random"])
        config = parse_config(text, "test", [f"arena.entrants={names}"])
        run(config, tmp_path / "run", SilentReporter())

    play("bot:constant", rival)
    play("bot:constant", rival, other)
    (other / "model.safetensors").write_bytes(b"second")
    with pytest.raises(RunError, match=r"arena was begun before .*other/model.safetensors changed"):
        play("bot:constant", rival, other)
    play("bot:constant", rival)
    shutil.rmtree(tmp_path / "run")
    play(rival, "bot:constant")
    (rival / "model.safetensors").write_bytes(b"second")
    with pytest.raises(RunError, match=r"reinforce/train was begun before .*rival/model.safetensors changed"):
        play(rival, "bot:constant")


@pytest.mark.slow
def test_what_waits_for_its_redo_is_neither_shown_nor_exported(
    tmp_path: Path, jobs: list[TrainingJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forced redo that was stopped: the second phase and the arena have results of the first one's old model."""

    def play(rate: float, **options: Any) -> None:
        bots = "algorithm: imitation, episodes: ['bot:random']"
        text = CONFIG.format(model="bot:random", phases=f"{{{bots}, learning_rate: {rate}}}, {{{bots}}}")
        config = parse_config(text, "test", ["arena.entrants=[base, imitation-2]"])
        run(config, tmp_path, SilentReporter(), **options)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    play(1e-4)
    for part in ("arena", "reasoning"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "results.json").write_text("{}")
    assert [*RunFolder(tmp_path).checkpoints()] == ["base", "imitation-1", "imitation-2"]
    stub = phases.train_on
    monkeypatch.setattr(phases, "train_on", killed)
    with pytest.raises(KeyboardInterrupt):
        play(1e-5, force=True)
    half_done = RunFolder(tmp_path)
    assert [stage.status for stage in half_done.progress()] == ["done", "started", "done", "waiting", "waiting"]
    assert [*half_done.checkpoints()] == ["base"]
    assert half_done.arena is None and half_done.reasoning is None
    monkeypatch.setattr(phases, "train_on", stub)
    play(1e-5)
    assert [*RunFolder(tmp_path).checkpoints()] == ["base", "imitation-1", "imitation-2"]
    assert not (tmp_path / "reasoning" / "results.json").exists()  # of models that are gone
