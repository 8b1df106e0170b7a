"""Ctrl-C and SIGTERM: one line that says how to go on, and exit status 130 or 143."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spag.cli import main
from spag.core.errors import DataError

RESUMES = "stopped; what is finished is saved, and the same command resumes"
STARTS_OVER = "stopped; no file is left incomplete; the same command starts over"


@pytest.fixture(autouse=True)
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    for work in (
        "spag.runs.execute.run",
        "spag.rollout.matches.play_matches",
        "spag.runs.arena.play_arena",
        "spag.learning.launch.train_on",
    ):
        monkeypatch.setattr(work, stop)
    monkeypatch.setattr("spag.games.registry.names", stop)
    yield
    signal.signal(signal.SIGINT, before)


def said(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 130, result.output
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL  # a second one needs no word
    assert len(result.stderr.splitlines()) == 1
    return result.stderr.strip()


@pytest.mark.slow
def test_every_command_says_how_to_go_on(tmp_path: Path, model_folder: Path) -> None:
    assert said("run", "demo", "--output", tmp_path) == RESUMES
    game = ("--game", "kuhn_poker", "--set", "model.dtype=float32")
    assert said("play", "bot:random", *game, "--count", 4, "--output", tmp_path / "games.jsonl") == RESUMES
    assert said("arena", "bot:random", "b=bot:random", *game, "--output", tmp_path / "arena") == RESUMES
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"prompt": "a", "completion": "b"}\n')
    train = ("train", "imitation", samples, "--model", model_folder, "--set", "model.dtype=float32")
    assert said(*train, "--output", tmp_path / "training") == RESUMES
    assert said("games") == STARTS_OVER


def test_sigterm_is_told_like_ctrl_c_and_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spag.games.registry.names", lambda: os.kill(os.getpid(), signal.SIGTERM))
    result = CliRunner().invoke(main, ["games"])
    assert result.exit_code == 143
    assert result.stderr == f"{STARTS_OVER}\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


IMPORTING = """
import os, signal, sys
from spag.__main__ import main

class Stop:
    def find_spec(self, name, *_):
        if name == "spag.cli.serve":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background begins without
sys.meta_path.insert(0, Stop())
main()
"""


@pytest.mark.slow
def test_ctrl_c_while_python_imports_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING, "games"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped; nothing was begun\n")


@pytest.mark.parametrize("raised", [ValueError("a library's"), DataError("ours")])
def test_a_stop_that_a_library_makes_an_error_of_its_own_is_a_stop(
    monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def work() -> None:
        try:
            raise KeyboardInterrupt
        except:  # noqa: E722 - as some libraries do
            raise raised  # noqa: B904

    monkeypatch.setattr("spag.games.registry.names", work)
    assert said("games") == STARTS_OVER
