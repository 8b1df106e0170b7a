"""The whole loop: complete, resumable, killed anywhere with nothing lost, and honest about changed settings."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from scripted_run import WORDS, config_for, scripted
from spag import stages
from spag.engines.base import Engine
from spag.episodes import read_episodes, read_samples
from spag.errors import DataError, RunError
from spag.game.words import Split, split_of
from spag.manifest import Manifest
from spag.pipeline import run
from spag.progress import SilentReporter
from spag.store import FolderLock

DRIVER = Path(__file__).parent / "scripted_run.py"


@pytest.fixture
def words_file(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{word}\n" for word in [*WORDS, *_held_out()]))
    return path


def _held_out() -> list[str]:
    candidates = [
        "apple",
        "bridge",
        "candle",
        "desert",
        "eagle",
        "forest",
        "guitar",
        "hammer",
        "island",
        "jacket",
        "kitchen",
        "lemon",
        "mirror",
    ]
    more = [
        "needle",
        "orange",
        "pepper",
        "rabbit",
        "saddle",
        "temple",
        "umbrella",
        "valley",
        "whistle",
        "yellow",
        "zebra",
        "anchor",
        "basket",
    ]
    return [word for word in candidates + more if split_of(word) is Split.HELD_OUT][:4]


@pytest.fixture
def use_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "open_engines", scripted)


def digest_of(folder: Path) -> dict[str, str]:
    """What a run came to, without times: games by id, samples and metrics as they are, weights by hash."""
    parts = {}
    for path in sorted(folder.rglob("episodes.jsonl")):
        parts[str(path.relative_to(folder))] = "".join(sorted(path.read_text().splitlines()))
    for path in sorted([*folder.rglob("samples.jsonl"), *folder.rglob("*.safetensors"), *folder.rglob("results.json")]):
        data = path.read_bytes()
        parts[str(path.relative_to(folder))] = hashlib.sha256(
            b"".join(sorted(data.splitlines())) if path.suffix == ".jsonl" else data
        ).hexdigest()
    return parts


def test_a_run_leaves_everything_a_person_needs(tmp_path: Path, model_folder: Path, words_file: Path, use_script: None) -> None:
    folder = tmp_path / "run"
    run(config_for(model_folder, words_file, []), folder, SilentReporter())
    expected = ["imitation/samples.jsonl", "imitation/metrics.jsonl", "iteration-1/episodes.jsonl", "iteration-1/samples.jsonl"]
    expected += ["imitation/checkpoint/model.safetensors", "iteration-1/checkpoint/tokenizer.json", "arena/results.json", "log.jsonl"]
    assert all((folder / name).exists() for name in expected)
    assert yaml.safe_load((folder / "config.yaml").read_text())["selfplay"]["words"] == 8
    games = list(read_episodes(folder / "iteration-1" / "episodes.jsonl"))
    assert len({game.id for game in games}) == len(games) == 16
    assert all(split_of(game.target_word) is Split.TRAIN for game in games)
    arena = list(read_episodes(folder / "arena" / "episodes.jsonl"))
    assert len(arena) == 3 * 2 * 2  # pairs, role assignments, words
    assert all(split_of(game.target_word) is Split.HELD_OUT for game in arena)
    trained = {sample.episode_id for sample in read_samples(folder / "iteration-1" / "samples.jsonl")}
    assert trained <= {game.id for game in games}


def test_a_second_run_does_nothing(
    tmp_path: Path, model_folder: Path, words_file: Path, use_script: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = tmp_path / "run", config_for(model_folder, words_file, [])
    run(config, folder, SilentReporter())
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name not in ("config.yaml", ".lock")}

    def fail(*_: object) -> list[Engine]:
        raise AssertionError("an engine was opened")

    monkeypatch.setattr(stages, "open_engines", fail)
    run(config, folder, SilentReporter())
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_changed_settings_are_refused_by_name_and_forced_from_there_on(
    tmp_path: Path, model_folder: Path, words_file: Path, use_script: None
) -> None:
    folder = tmp_path / "run"
    run(config_for(model_folder, words_file, []), folder, SilentReporter())
    imitation = digest_of(folder / "imitation")
    changed = config_for(model_folder, words_file, ["selfplay.repeats=1"])
    with pytest.raises(RunError, match=r"iteration-1/play was begun with other settings \(selfplay.repeats was 2, is 1\)"):
        run(changed, folder, SilentReporter())
    assert len(list(read_episodes(folder / "iteration-1" / "episodes.jsonl"))) == 16
    run(changed, folder, SilentReporter(), force=True)
    assert len(list(read_episodes(folder / "iteration-1" / "episodes.jsonl"))) == 8
    assert digest_of(folder / "imitation") == imitation
    fresh = tmp_path / "fresh"
    run(changed, fresh, SilentReporter())
    assert digest_of(folder) == digest_of(fresh)


def test_a_changed_input_file_counts_as_a_changed_setting(tmp_path: Path, model_folder: Path, words_file: Path, use_script: None) -> None:
    folder = tmp_path / "run"
    config = config_for(model_folder, words_file, [])
    run(config, folder, SilentReporter())
    words_file.write_text(words_file.read_text() + "harbour\n")
    with pytest.raises(RunError, match=r"iteration-1/play was begun with other settings \(files.words was '\w+', is '\w+'\)"):
        run(config, folder, SilentReporter())


def test_a_locked_folder_is_refused(tmp_path: Path, model_folder: Path, words_file: Path) -> None:
    folder = tmp_path / "run"
    with FolderLock(folder), pytest.raises(RunError, match="is working in this run folder"):
        run(config_for(model_folder, words_file, []), folder, SilentReporter())


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json: not a manifest"):
        Manifest.open(tmp_path)


def test_killed_again_and_again_a_run_ends_as_if_undisturbed(tmp_path: Path, model_folder: Path, words_file: Path) -> None:
    """kill -9 at moments spread over play, training, checkpointing and the arena; each time the same command resumes."""

    def start(folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(DRIVER), str(folder), str(model_folder), str(words_file)])

    started = time.monotonic()
    assert start(tmp_path / "whole").wait() == 0
    length = time.monotonic() - started
    folder, kills = tmp_path / "killed", 0
    for attempt in range(40):
        process = start(folder)
        try:
            process.wait(timeout=length * (0.45 + 0.06 * (attempt % 7)))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert process.returncode == 0
        break
    assert kills >= 2
    assert digest_of(folder) == digest_of(tmp_path / "whole")
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in log] == list(dict.fromkeys(row["stage"] for row in log))  # no stage twice
