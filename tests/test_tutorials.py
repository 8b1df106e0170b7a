"""docs/tutorials as a reader follows them, on the CPU, with a tiny random model for the hub's."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import forked
from game_files import reached
from spag.cli import main
from spag.storage.episodes import read_episodes
from test_examples import parsed
from tiny_model import make_model
from walkthrough import DOCS, blocks, commands, files, page, write_files

pytestmark = pytest.mark.usefixtures("counted_once")
PAGES = sorted(path.name for path in (DOCS / "tutorials").glob("*.md"))
SOURCE = Path(__file__).parent.parent / "src"
MODEL = "Qwen/Qwen3-1.7B"
BRIEF = ["reinforce.sampling.max_new_tokens=6", "arena.tasks=1", "arena.sampling.max_new_tokens=6"]
ONE_STEP = ["reinforce.steps=1", "reinforce.games=4"]
FEW = [*ONE_STEP, "reinforce.evaluate_every=null"]
IMITATED = ["imitation.max_episodes=6", "imitation.max_length=256"]
"""What makes a run of a tutorial take seconds."""


def tutorial(name: str) -> str:
    return page(f"tutorials/{name}.md")


def command(name: str, begins: str) -> list[str]:
    """Return the words of the one command of a tutorial that begins so."""
    [found] = {tuple(words) for words in commands(tutorial(name)) if shlex.join(words).startswith(begins)}
    return list(found)


def tiny(model: Path, *more: str) -> list[str]:
    options = (f"model.name={model}", "model.prompt_style=plain", "model.dtype=float32", "model.device=cpu", *more)
    return [word for option in options for word in ("--set", option)]


def spag(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, f"{words}: {result.output}"
    return result.output


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    with chdir(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("name", PAGES)
def test_files_are_valid_and_commands_have_these_options(name: str, here: Path) -> None:
    text = page(f"tutorials/{name}")
    write_files(text, here)
    for config in here.glob("*.yaml"):
        assert f"{config.name}: valid" in spag("config", "validate", config.name)
    (here / "games.jsonl").touch()  # what earlier commands of the page write
    shown = list(commands(text))
    assert shown or name == "pandas.md"
    for words in shown:
        parsed(words)
    for code in blocks(text, "python"):
        compile(code, name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm", "gpus"])
def test_the_plans_fit(name: str, here: Path) -> None:
    write_files(tutorial(name), here)
    plans = [words[1:] for words in commands(tutorial(name)) if words[1] == "plan"]
    for plan in plans:
        assert " does not fit" not in spag(*plan)
    assert plans


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.usefixtures("warm_vllm")
def test_a_model_of_ones_own_plays_on_vllm_and_is_trained(here: Path) -> None:
    """On vLLM's build for CPUs. ``plain`` prompts: a byte's tokens of a chat template would fill the context."""
    write_files(tutorial("vllm"), here)
    for_its_kernels = {"hidden_size": 128, "intermediate_size": 2048, "tie_word_embeddings": True}
    model = make_model(here / "model", **for_its_kernels)
    ties_teach = ("reinforce.rewards={adversarial_taboo: {tie: 1.0}}", "reinforce.baseline_decay=1.0")
    more = ("engine.max_length=2048", "arena.entrants=[base, reinforce]", *ties_teach)
    spag(*command("vllm", "spag run mine.yaml --output")[1:], *tiny(model, *IMITATED, *FEW, *BRIEF, *more))
    for phase in ("1-imitation", "2-reinforce"):
        assert (here / "runs/mine" / phase / "checkpoint/adapter_model.safetensors").exists()
    [step] = (json.loads(line) for line in (here / "runs/mine/2-reinforce/metrics.jsonl").read_text().splitlines())
    assert step["tokens"] > 0 and step["mismatch_max"] < 1e-2  # prompts of a thousand bytes
    assert (here / "runs/mine/arena/results.json").exists()


@pytest.mark.slow
def test_words_of_ones_own_are_split(here: Path) -> None:
    write_files(tutorial("language"), here)
    held_out = spag(*command("language", "spag words")[1:]).split()
    assert held_out == ["Fluss"]


@pytest.mark.slow
@pytest.mark.long
def test_a_dry_run_of_eight_gpus_lists_the_stages(here: Path, model_folder: Path) -> None:
    write_files(tutorial("gpus"), here)
    one = ("imitation.parallel=replicas", "spag.parallel=replicas", "engine.concurrency=32")
    shown = spag(*command("gpus", "spag run eight.yaml --dry-run")[1:], *tiny(model_folder, *one))
    assert "2-spag/iteration-3/train" in shown and "nothing was written" in shown


@pytest.mark.slow
@pytest.mark.long
def test_taboo_in_german_is_played_judged_and_trained(here: Path, model_folder: Path) -> None:
    write_files(tutorial("language"), here)
    play = [str(model_folder) if word == MODEL else word for word in command("language", "spag play")[1:]]
    spag(*play, *tiny(model_folder, BRIEF[0]))
    assert "Adversarial Taboo: " in spag(*command("language", "spag judge")[1:])
    spag(*command("language", "spag run")[1:], *tiny(model_folder, *ONE_STEP, *BRIEF))
    [step] = (here / "runs/german/1-reinforce/episodes").glob("*.jsonl")
    words = files(tutorial("language"))["words.txt"].split()
    games = list(read_episodes(step))
    assert {game.task.data["target_word"] for game in games} <= set(words) - {"Fluss"} and len(games) == 4
    (here / "words.txt").write_text("Brot\n" * 3)
    changed = CliRunner().invoke(main, [*command("language", "spag run")[1:], *tiny(model_folder, *ONE_STEP, *BRIEF)])
    assert changed.exit_code == 2 and "words" in changed.output


MOVED = [*command("resume", "spag run")[1:], *tiny(Path("tiny"), *IMITATED, *BRIEF), "--set", "reinforce.steps=3"]
"""The words of the run that is moved; its names are relative to the folder ``work``."""


def prepare(work: Path, model: Path) -> None:
    shutil.copytree(model, work / "tiny")
    write_files(tutorial("resume"), work)


def run_elsewhere(machine: Path) -> str:
    """Do the tutorial's run in ``machine/work`` with the spag in ``machine/lib``; return what it says."""
    shutil.copytree(SOURCE / "spag", machine / "lib" / "spag", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(machine / "lib"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "spag", *MOVED]
    ended = subprocess.run(command, cwd=machine / "work", env=environment, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    return said


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_is_moved_ends_as_one_that_stayed(tmp_path: Path, model_folder: Path) -> None:
    one, other, still = (tmp_path / name for name in ("one", "other", "still"))
    for work in (one / "work", still):
        prepare(work, model_folder)
    metrics = one / "work/runs/mine/2-reinforce/metrics.jsonl"
    running = forked.start(forked.held, metrics, 2, forked.run_in, str(one / "work"), *MOVED)
    undisturbed = forked.start(forked.run_in, str(still), *MOVED)
    while not reached(metrics, 2):
        assert running.is_alive()
        time.sleep(0.01)
    running.kill()
    assert forked.end(running) == -signal.SIGKILL
    other.mkdir()
    shutil.move(one / "work", other / "work")
    assert "1-imitation/train: done before" in run_elsewhere(other)
    assert forked.end(undisturbed) == 0
    ends = [load_file(work / "runs/mine/2-reinforce/checkpoint/model.safetensors") for work in (other / "work", still)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(weights, ends[1][name]) for name, weights in ends[0].items())


@pytest.fixture(scope="module")
def kuhn(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A folder in which ``spag run kuhn`` was done, shortened, with TensorBoard."""
    folder = tmp_path_factory.mktemp("kuhn")
    short = [*IMITATED, *BRIEF, *FEW, "reinforce.steps=2", "reinforce.evaluate_every=1"]
    with chdir(folder):
        spag(*command("trackers", "spag run kuhn --set 'report_to=[tensorboard]'")[1:], *tiny(model_folder, *short))
    return folder


def executed(name: str) -> dict[str, Any]:
    """Run a tutorial's code, block after block, and return what it defined."""
    known: dict[str, Any] = {}
    for code in blocks(tutorial(name), "python"):
        exec(compile(code, name, "exec"), known)
    return known


@pytest.mark.slow
@pytest.mark.long
def test_pandas_reads_a_run(kuhn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    with chdir(kuhn):
        known = executed("pandas")
    assert list(known["steps"].index) == [1, 2] and list(known["exact"]["step"]) == [1, 2]
    assert len(known["games"]) == 8 and set(known["games"]["step"]) == {1, 2}
    assert len(known["said"]) == sum(len(history) for history in known["games"]["history"])
    shown = capsys.readouterr().out
    assert "exploitability" in shown and "play_s" in shown and "violation.rate" in shown


@pytest.mark.slow
@pytest.mark.long
def test_trackers_get_the_rows_of_metrics(kuhn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow is a stand-in that writes down what it is told."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = [json.loads(line) for line in (kuhn / "runs/kuhn/2-reinforce/metrics.jsonl").read_text().splitlines()]
    [events] = {path.parent for path in (kuhn / "runs/kuhn/2-reinforce").rglob("*tfevents*")}
    read = EventAccumulator(str(events)).Reload()
    assert [one.step for one in read.Scalars("train/loss")] == [1, 2]

    logged: list[tuple[str, int, dict[str, float]]] = []

    class Run:
        def __init__(self, run_name: str) -> None:
            self.name = run_name

        def __enter__(self) -> None:
            stand_in.log_metrics = lambda numbers, step: logged.append((self.name, step, numbers))  # type: ignore[attr-defined]

        def __exit__(self, *_: object) -> None: ...

    stand_in = ModuleType("mlflow")
    stand_in.__dict__.update(set_experiment=str, start_run=Run, log_artifact=lambda path: Path(path).stat())
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    with chdir(kuhn):
        executed("trackers")
    steps = [(name, step) for name, step, _ in logged]
    assert steps[-2:] == [("2-reinforce", 1), ("2-reinforce", 2)] and ("1-imitation", 1) in steps
    assert logged[-1][2]["loss"] == rows[-1]["loss"] and not any(":" in name for name in logged[-1][2])
