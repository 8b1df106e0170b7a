"""Trainings that are killed for real (SIGKILL), and trainings in several processes."""

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import MODEL, found, settings, train_tiny, train_until

import forked
from spag.algorithms.imitation import Imitation, ImitationSettings
from spag.algorithms.spag import SpagSettings
from spag.config.schema import GameConfig
from spag.core.episodes import Episode, TrainingSample
from spag.core.errors import RunError
from spag.games.base import Game
from spag.learning.checkpoints import STATE, record_result
from spag.learning.job import TrainingJob
from spag.learning.metrics import MetricsLog, TrainProgress, Unit
from spag.learning.sharding import load_shares, save_shares
from spag.learning.worker import run_job
from spag.runs.teachers import bot_games
from spag.storage.store import write_rows

slow = pytest.mark.slow


def run_tiny(model: Path, output: Path, moment: str = "", **changes: object) -> int | None:
    return forked.end(forked.start(train_until, moment, model, output, settings(**changes)))


def rows(output: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "samples_per_second"} for row in read]


@pytest.fixture(scope="module")
def undisturbed(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed")
    assert run_tiny(model_folder, output) == 0
    return output


@slow
@pytest.mark.parametrize("moment", ["reference 8", "training 5", "checkpoint", "finish"])
def test_a_killed_training_goes_on_as_if_nothing_had_happened(
    model_folder: Path, undisturbed: Path, tmp_path: Path, moment: str
) -> None:
    killed = tmp_path
    assert run_tiny(model_folder, killed, moment) == -signal.SIGKILL
    left = sorted(path.name for path in (killed / "state").glob("checkpoint-*"))
    assert (
        left
        == {
            "reference 8": [],
            "training 5": ["checkpoint-4"],
            "checkpoint": ["checkpoint-2", "checkpoint-4"],
            "finish": ["checkpoint-4"],
        }[moment]
    )
    assert run_tiny(model_folder, killed) == 0
    for name in ("checkpoint/model.safetensors", "reference.jsonl"):
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes()
    assert rows(killed) == rows(undisturbed)
    assert not (killed / "state").exists()


@slow
def test_a_killed_adapter_training_resumes_exactly(model_folder: Path, tmp_path: Path) -> None:
    lora = {"lora": {"rank": 2, "alpha": 4}}
    assert run_tiny(model_folder, tmp_path / "killed", "training 3", **lora) == -signal.SIGKILL
    assert run_tiny(model_folder, tmp_path / "killed", **lora) == 0
    assert run_tiny(model_folder, tmp_path / "undisturbed", **lora) == 0
    name = "checkpoint/adapter_model.safetensors"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


@slow
def test_training_draws_no_random_numbers(model_folder: Path, tmp_path: Path) -> None:
    """So a checkpoint keeps no random state."""
    states: list[torch.Tensor] = []
    chosen = settings(lora={"rank": 2, "alpha": 4}, gradient_checkpointing=True)
    train_tiny(model_folder, tmp_path, chosen, progress=lambda at: states.append(torch.get_rng_state()))
    assert len(states) > 6 and all(torch.equal(state, states[0]) for state in states)


@slow
def test_a_changed_setting_starts_over_but_a_smaller_micro_batch_resumes(model_folder: Path, tmp_path: Path) -> None:
    assert run_tiny(model_folder, tmp_path, "training 5") == -signal.SIGKILL
    steps: list[int] = []
    train_tiny(model_folder, tmp_path, settings(micro_batch_size=1), progress=lambda at: steps.append(at.step))
    assert steps == [5, 6]
    assert run_tiny(model_folder, tmp_path / "again", "training 5") == -signal.SIGKILL
    steps.clear()
    train_tiny(
        model_folder, tmp_path / "again", settings(learning_rate=2e-2), progress=lambda at: steps.append(at.step)
    )
    assert steps[-6:] == [1, 2, 3, 4, 5, 6]


def test_only_the_newest_complete_checkpoint_survives(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert found(tmp_path, "a") == (None, None)
    for step in (2, 10, 12):
        (state / f"checkpoint-{step}").mkdir()
        torch.save(torch.zeros(1), state / f"checkpoint-{step}" / "optimizer.pt")
    for step in (2, 10):
        (state / f"checkpoint-{step}" / STATE).write_text("{}")
    assert found(tmp_path, "a") == (None, state / "checkpoint-10")
    assert [path.name for path in state.glob("checkpoint-*")] == ["checkpoint-10"]
    assert found(tmp_path, "b") == (None, None)
    assert not (state / "checkpoint-10").exists()


def test_online_games_of_another_policy_go_with_its_state(tmp_path: Path) -> None:
    for name in ("episodes", "evaluations", "snapshots"):
        (tmp_path / name).mkdir()
    found(tmp_path, "a")
    found(tmp_path, "a")  # killed before the first checkpoint, resumed
    assert len([*tmp_path.iterdir()]) == 4
    found(tmp_path, "b")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_only_a_training_of_other_settings_is_said_to_start_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.joinpath(".fingerprint.unfinished-x").touch()  # killed while it wrote its first file
    found(tmp_path, "a")
    assert not caplog.messages
    found(tmp_path, "b")
    assert caplog.messages == [f"{state} belongs to other samples or settings; training starts over"]


def test_folders_of_those_names_beside_an_offline_training_stay(tmp_path: Path) -> None:
    for name in ("episodes", "start"):
        (tmp_path / name).mkdir()
    record_result(tmp_path, "a", {"steps": 3})
    assert found(tmp_path, "b", SpagSettings()) == (None, None)
    found(tmp_path, "a", SpagSettings())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episodes", "start", "state"]


@pytest.mark.parametrize("name", ["notes.txt", "checkpoint-final"])
def test_a_state_of_others_is_refused_before_anything_is_deleted(name: str, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).touch()
    (tmp_path / "training.json").write_text('{"fingerprint": "a", "result": {}}')
    with pytest.raises(RunError, match=rf"state: holds {name}, which training did not write; choose another --output"):
        found(tmp_path, "b", SpagSettings())
    assert (tmp_path / "state" / name).is_file() and (tmp_path / "training.json").is_file()


def test_online_games_of_another_finished_training_go_with_its_record(tmp_path: Path) -> None:
    """Its games have the ids of the new one's, and ``start`` is the model that it began with."""
    folders = ["checkpoint", "episodes", "evaluations", "snapshots", "start"]
    for name in folders:
        (tmp_path / name).mkdir()
    record_result(tmp_path, "a", {"steps": 3})
    assert found(tmp_path, "a") == ({"steps": 3}, None)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == folders
    assert found(tmp_path, "b") == (None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "state"]


def test_models_that_a_killed_training_was_saving_go(tmp_path: Path) -> None:
    left = [f"{name}.spag-12345678" for name in (".checkpoint", ".start", "snapshots/.step-00002")]
    for name in (*left, "snapshots/step-00001", "snapshots/.git"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.safetensors").touch()
    assert found(tmp_path, "a") == (None, None)
    kept = {"snapshots", "step-00001", ".git", "model.safetensors"}
    assert {path.name for path in tmp_path.rglob("*")} == kept | {"state", "fingerprint"}


class Counting(Imitation):
    """Counts the games that it has credited."""

    def __init__(self, settings: ImitationSettings, *, seed: int = 0, state: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings, seed=seed)
        self.games = int((state or {}).get("games", 0))

    def credit(self, episodes: Sequence[Episode], game: Game, learner: str | None) -> list[TrainingSample]:
        self.games += len(episodes)
        return super().credit(episodes, game, learner)

    def state(self) -> dict[str, Any]:
        return {"games": self.games}

    def summary(self) -> dict[str, Any]:
        return self.state()


class CountingJob(TrainingJob):
    algorithm = property(lambda self: Counting)


@pytest.mark.slow
def test_a_resumed_training_credits_its_files_once(model_folder: Path, tmp_path: Path) -> None:
    """They are credited again, by an algorithm without the state that it had then."""
    files, game = [tmp_path / "games.jsonl"], GameConfig(name="kuhn_poker")
    write_rows(files[0], bot_games("bot:random", 20, 0, game.build()))
    places: dict[str, Any] = {"start_from": str(model_folder), "output": tmp_path, "files": files}
    job = CountingJob(model=MODEL, phase=settings("imitation"), game=game, seed=0, **places)

    def train(last: int | None) -> int:
        def progress(at: TrainProgress) -> None:
            if (at.unit, at.step) == (Unit.UPDATES, last):
                raise KeyboardInterrupt

        return int(run_job(job, progress)["games"])

    with pytest.raises(KeyboardInterrupt):
        train(3)
    assert (tmp_path / "state" / "checkpoint-2" / STATE).exists()
    assert train(None) == 20


def test_metrics_rows_behind_the_resume_point_and_a_torn_last_line_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    for step in range(1, 6):
        log.append({"step": step, "loss": None})
    with path.open("a") as file:
        file.write('{"step": 6, "lo')
    assert MetricsLog(path, 4).last == {"step": 4, "loss": None}
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_a_checkpoint_before_the_first_update_leaves_it_the_first(tmp_path: Path) -> None:
    def moved(save: bool) -> torch.Tensor:
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if save:
            save_shares(tmp_path / "state", model, optimizer, {})
            load_shares(tmp_path / "state", model, optimizer, {})
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return model.weight.detach()

    assert torch.equal(moved(save=True), moved(save=False))
