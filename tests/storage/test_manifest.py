"""What becomes of a stage, what the manifest of a run folder refuses to read, and how a forced redo survives a kill."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripted_run import config_for
from spag.core.errors import DataError, RunError
from spag.core.progress import SilentReporter
from spag.learning.job import TrainingJob
from spag.runs import execute, phases
from spag.runs.execute import run
from spag.runs.layout import check_free
from spag.storage.manifest import Action, Manifest, Record, StageRequest, decide
from spag.storage.outputs import changed_files, record_files
from spag.storage.store import write_atomically

BEGUN: Record = {"status": "started", "settings": {"size": 2}, "seconds": 1.0, "built_on": {"play": "a"}}
DONE: Record = {**BEGUN, "status": "done"}
GIVEN_UP: Record = {"status": "waiting", "settings": {}, "seconds": 0.0, "given_up": "has lost train/file"}
SAME: dict[str, Any] = {"settings": {"size": 2}, "built_on": {"play": "a"}}
OTHER = {**SAME, "settings": {"size": 3}}
GONE = {"lost": ["train/file"]}
NEEDS = {"missing": {"play": "play/file"}}
CHANGED = "was begun with other settings (size was 2, is 3)"
REPLACED = "is done, but train/file is not what it wrote"
FIX = "; use a new run folder, or --force to redo it"
MISSING = "needs play/file, which is gone; restore it, or let --force redo play and what builds on it"
REBUILT = "was built on other results of play"
SKIP, RUN, REDO, REFUSE = Action


@pytest.mark.parametrize(
    ("record", "request_", "action", "reason", "by_force"),
    [
        # record, what is asked and found, what becomes of it and why, and what becomes of it by force
        (None, SAME, RUN, "due", RUN),
        (None, SAME | NEEDS, REFUSE, MISSING, REFUSE),
        (BEGUN, SAME, RUN, "begun", RUN),
        (BEGUN, SAME | NEEDS, REFUSE, MISSING, REFUSE),
        (BEGUN, OTHER, REFUSE, CHANGED + FIX, REDO),
        (BEGUN, SAME | {"built_on": {"play": "b"}}, REDO, REBUILT, REDO),
        (BEGUN | {"free": ["a"]}, SAME | {"free": ["b"]}, RUN, "due", RUN),
        (DONE, SAME, SKIP, "done before", SKIP),
        (DONE, SAME | NEEDS, SKIP, "done before", SKIP),
        (DONE, OTHER, REFUSE, CHANGED + FIX, REDO),
        (DONE, OTHER | NEEDS, REFUSE, CHANGED + FIX, REFUSE),
        (DONE, SAME | {"replaced": ["train/file"]}, REFUSE, REPLACED + FIX, REDO),
        (DONE, SAME | GONE, SKIP, "done before, but train/file is gone; --force redoes it", REDO),
        (DONE, SAME | {"built_on": {"play": "b"}}, REDO, REBUILT, REDO),
        (DONE, SAME | {"built_on": {"play": None}}, REDO, REBUILT, REDO),
        (DONE, SAME | {"built_on": {"play": "b"}} | NEEDS, REFUSE, MISSING, REFUSE),
        (DONE, OTHER | {"built_on": {"play": "b"}}, REFUSE, CHANGED + FIX, REDO),
        (DONE, SAME | {"built_on": {"walk": "a"}}, REFUSE, "was built on play, not on walk" + FIX, REDO),
        (DONE, SAME | {"built_on": {}}, REFUSE, "was built on play, not on nothing" + FIX, REDO),
        (DONE | {"free": ["a"]}, SAME | {"free": ["a"]}, SKIP, "done before", SKIP),
        (DONE | {"free": ["a"]}, SAME | {"free": ["b"], "built_on": {"play": "a", "b": "c"}}, RUN, "due", RUN),
        (DONE | {"free": ["a"]}, SAME | {"free": ["b"], "built_on": {"play": "b"}}, REDO, REBUILT, REDO),
        (DONE | {"free": ["a"]}, OTHER | {"free": ["b"]}, REFUSE, CHANGED + FIX, REDO),
        (GIVEN_UP, SAME, REDO, "has lost train/file", REDO),
        (GIVEN_UP, OTHER, REDO, "has lost train/file", REDO),
        (GIVEN_UP, SAME | NEEDS, REFUSE, MISSING, REFUSE),
    ],
)
def test_what_becomes_of_a_stage(
    record: Record | None, request_: dict[str, Any], action: Action, reason: str, by_force: Action
) -> None:
    decision, forced = decide(record, StageRequest(**request_)), decide(record, StageRequest(**request_, force=True))
    assert (decision.action, decision.reason, decision.forced) == (action, reason, False)
    assert forced.action is by_force
    assert forced.forced == (by_force is REDO and action is not REDO)


def do(manifest: Manifest, stage: str, text: str, inputs: Sequence[str] = (), **settings: Any) -> bool:
    """Run a stage that writes ``text`` into a file of its name; return whether it was due."""
    if not manifest.begin(stage, settings, inputs, outputs=[stage]).is_due:
        return False
    with manifest.running(stage, [stage]):
        (manifest.folder / stage).mkdir(parents=True, exist_ok=True)
        (manifest.folder / stage / "file").write_text(text)
    return True


def do_all(
    folder: Path, *, force: bool = False, first: str = "one", second: str = "two", **settings: Any
) -> list[bool]:
    manifest = Manifest.open(folder, force=force)
    return [do(manifest, "first", first, **settings), do(manifest, "second", second, ["first"])]


def test_done_stages_stay_done_wherever_the_folder_is_copied_to(tmp_path: Path) -> None:
    assert do_all(tmp_path) == [True, True]
    assert do_all(tmp_path) == [False, False]
    os.utime(tmp_path / "first" / "file", ns=(1, 1))  # as a copy has
    assert do_all(tmp_path) == [False, False]
    (tmp_path / "first" / "README").write_text("added by hand")
    assert do_all(tmp_path) == [False, False]


@pytest.mark.parametrize("text", ["ONE", "another length"])
def test_a_replaced_file_is_noticed_and_forced_away(tmp_path: Path, text: str) -> None:
    do_all(tmp_path)
    (tmp_path / "first" / "file").write_text(text)
    with pytest.raises(
        RunError,
        match=r"first is done, but first/file is not what it wrote; use a new run folder, or --force to redo it",
    ):
        do_all(tmp_path)
    assert do_all(tmp_path, force=True) == [True, False]  # it makes what it made before, so the second one still stands
    assert do_all(tmp_path) == [False, False]


def test_what_was_built_on_other_results_is_redone(tmp_path: Path) -> None:
    do_all(tmp_path)
    (tmp_path / "first" / "file").unlink()
    assert do(Manifest.open(tmp_path, force=True), "first", "another")  # killed here
    (tmp_path / "second" / "old").touch()
    assert do_all(tmp_path) == [False, True]
    assert not (tmp_path / "second" / "old").exists()
    assert do_all(tmp_path) == [False, False]


def test_a_redo_removes_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    do_all(tmp_path)
    moved = (tmp_path / "first").rename(tmp_path / "another disk")
    (tmp_path / "first").symlink_to(moved)
    assert do_all(tmp_path, force=True, size=3) == [True, False]
    assert not (tmp_path / "first").is_symlink() and (moved / "file").is_file()


def test_a_lost_file_matters_to_the_stage_that_needs_it(tmp_path: Path) -> None:
    do_all(tmp_path)
    (tmp_path / "first" / "file").unlink()
    assert do_all(tmp_path) == [False, False]
    with pytest.raises(RunError, match="third needs first/file, which is gone"):
        do(Manifest.open(tmp_path), "third", "three", ["first"])
    manifest = Manifest.open(tmp_path, force=True)
    assert do(manifest, "first", "one")
    assert not do(manifest, "second", "two", ["first"])
    assert do(manifest, "third", "three", ["first"])


@pytest.mark.slow
@pytest.mark.parametrize("changed", [["imitation.max_steps=2", "arena.tasks=1"], []])
def test_a_forced_redo_that_was_killed_is_resumed_without_force(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, changed: list[str]
) -> None:
    """The kill comes in training; the old results of the arena, of other settings or weights, are not refused then."""
    words, folder = tmp_path / "words.txt", tmp_path / "run"
    words.write_text("river\nbread\npiano\ngarden\nwindow\nteacher\nengine\ndoctor\nwinter\nbottle\n")
    work: list[str] = []
    weights = "old"

    def train(job: TrainingJob, *_: object) -> dict[str, Any]:
        work.append("train")
        if weights == "killed":
            raise KeyboardInterrupt
        write_atomically(job.output / "checkpoint" / "weights", weights)
        return {}

    def play(place: Path, *_: object, **__: object) -> dict[str, Any]:
        work.append("arena")
        write_atomically(place / "results.json", "{}")
        return {"pairs": [], "completion_tokens": 0}

    def play_on(*options: str, force: bool = False) -> list[str]:
        work.clear()
        alone = ["phases=[{algorithm: imitation, max_episodes: 4}]", "arena.entrants=[base, imitation]", *options]
        run(config_for(model_folder, words, alone), folder, SilentReporter(), force=force)
        return work

    monkeypatch.setattr(phases, "train_on", train)
    monkeypatch.setattr(execute, "play_arena", play)
    assert play_on() == ["train", "arena"]
    (folder / "1-imitation" / "checkpoint" / "weights").write_text("replaced")
    with pytest.raises(RunError, match=r"was begun with other settings|is done, but"):
        play_on(*changed)
    weights = "killed"
    with pytest.raises(KeyboardInterrupt):
        play_on(*changed, force=True)
    weights = "new"
    assert play_on(*changed) == ["train", "arena"]
    assert play_on(*changed) == []


def test_a_file_that_a_mix_names_counts_by_what_it_holds(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, mixed, folder = tmp_path / "words.txt", tmp_path / "mixed.txt", tmp_path / "run"
    words.write_text("river\nbread\npiano\ngarden\nwindow\nteacher\nengine\ndoctor\nwinter\nbottle\n")
    mixed.write_text(words.read_text())
    mix = f"[{{name: kuhn_poker}}, {{name: adversarial_taboo, words: {mixed}}}]"
    options = [
        f"phases=[{{algorithm: reinforce, steps: 1, evaluate_every: null, mix: {mix}}}]",
        "arena.entrants=[base, reinforce]",
    ]

    jobs: list[TrainingJob] = []

    def train(job: TrainingJob, *_: object) -> dict[str, Any]:
        jobs.append(job)
        write_atomically(job.output / "checkpoint" / "weights", "")
        return {}

    monkeypatch.setattr(phases, "train_on", train)
    monkeypatch.setattr(execute, "play_arena", lambda *_, **__: {"pairs": [], "completion_tokens": 0})
    for _ in range(2):
        run(config_for(model_folder, words, options), folder, SilentReporter())
    assert len(jobs) == 1  # nothing changed, so it was done before
    mixed.write_text(words.read_text() + "ticket\n")
    with pytest.raises(RunError, match=rf"1-reinforce/train was begun with other settings \(digests\.{mixed} was"):
        run(config_for(model_folder, words, options), folder, SilentReporter())


STAGE: dict[str, Any] = {"status": "done", "fingerprint": "", "settings": {}, "seconds": 1.0}
GOOD: dict[str, Any] = {"schema_version": 1, "measured": {}, "stages": {"arena": STAGE}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: it is empty"),
        ("[]", "expected `object`, got `array`"),
        ("{}", "object missing required field `schema_version`"),
        (
            json.dumps(GOOD | {"schema_version": 99, "stages": {"arena": {"status": "gone"}}}),
            "schema_version is 99, and this version of spag reads 1",
        ),
        (
            json.dumps(GOOD | {"stages": {"arena": {**STAGE, "status": "gone"}}}),
            "arena: status: invalid enum value 'gone'",
        ),
        (
            json.dumps(GOOD | {"stages": {"arena": {**STAGE, "results": [1]}}}),
            "arena: results: expected `object`, got `array`",
        ),
        (
            json.dumps(GOOD | {"stages": {"arena": {**STAGE, "outputs": {"a": 1}}}}),
            "arena: outputs[...]: expected `object`, got `int`",
        ),
    ],
)
def test_what_is_no_manifest_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError) as caught:
        Manifest.open(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'manifest.json'}:")
    assert message.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_a_folder_in_its_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        Manifest.open(tmp_path)


def test_gguf_files_of_one_folder_are_models_of_their_own(tmp_path: Path) -> None:
    """An entrant of the arena may come or go."""
    files = {f"./models/{name}.gguf": tmp_path / f"{name}.gguf" for name in "ab"}
    for file in files.values():
        file.write_text("weights")
    known = record_files(files)
    one = {"./models/a.gguf": tmp_path / "a.gguf"}
    assert changed_files(one, known) == [] and changed_files(files, record_files(one)) == []
    (tmp_path / "a.gguf").write_text("others!")
    assert changed_files(files, known) == ["./models/a.gguf"]


def test_no_other_training_may_write_into_a_run(tmp_path: Path) -> None:
    do(Manifest.open(tmp_path), "1-imitation/train", "weights")
    (tmp_path / "config.yaml").touch()
    with pytest.raises(RunError, match="belongs to the run"):
        check_free(tmp_path / "arena" / ".." / "1-imitation")
    do(Manifest.open(tmp_path), "2-spag/iteration-1/train", "weights")
    with pytest.raises(RunError, match="belongs to the run"):
        check_free(tmp_path / "2-spag" / "iteration-1")
    with pytest.raises(RunError, match="belongs to the run"):
        check_free(tmp_path / "2-spag" / "iteration-1" / "checkpoint")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text('{"name": "a web app", "manifest_version": 3}')
    check_free(tmp_path / "app" / "out")
    check_free(tmp_path / "mine")
    check_free(tmp_path)
