"""Every kind of file that spag reads, spoiled at random, through every command that reads it: an answer, or one clear
line.

The suite tries a fixed number of inputs of each kind, the same ones on every machine. ``SPAG_FUZZ_SECONDS=3600 pytest
tests/fuzz`` (``make fuzz``) goes on with further ones for that time. ``SPAG_FUZZ_INPUT=FILE#NUMBER`` tries one input
alone: what failed is found again by the name that the failure gives.
"""

import json
import os
import random
import re
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import count, groupby
from pathlib import Path
from types import FrameType

import pytest
from markupsafe import Markup
from mutations import mutated
from world import KINDS, Kind, invoke, make_world

SECONDS = float(os.environ.get("SPAG_FUZZ_SECONDS", "0"))
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # what a library warns of is no end of a command
    pytest.mark.timeout(0 if SECONDS else 600),
]
ONE = os.environ.get("SPAG_FUZZ_INPUT", "")
LONGEST_S = 20
"""Of CPU time, since machines are busy; what hangs without using any meets the limit that all tests have."""
MOST_LINES = 3
PROGRESS = re.compile(r"\d\d:\d\d:\d\d ")
ENDS: Counter[tuple[str, str]] = Counter()
"""How often each command ended how: with an exit status, or a fault."""


class TooLong(BaseException):
    """A command took longer than ``LONGEST_S``; no handler takes this for a failure of its own."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder, before = tmp_path_factory.mktemp("good"), Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr("spag.report.page.save_plot", lambda _, name, says, folder: Markup(""))  # drawing takes seconds
        make_world(folder)
        yield folder
    os.chdir(before)
    if SECONDS:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{ENDS.total()} cases")
            for command, counts in groupby(sorted(ENDS.items()), lambda one: one[0][0]):
                print(f"{command:16} " + ", ".join(f"{end}: {count}" for (_, end), count in counts))


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    def stop(_: int, frame: FrameType | None) -> None:
        raise TooLong(f"after {LONGEST_S} s in {''.join(traceback.format_stack(frame, 3))}")

    before = signal.signal(signal.SIGPROF, stop)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.slow
def test_good_files_are_read(good: Path, tmp_path: Path) -> None:
    """What is refused before it is spoiled would show nothing."""
    for command in dict.fromkeys(command.format(file=kind.file) for kind in KINDS for command in kind.commands):
        work = shutil.copytree(good, tmp_path / "work")
        os.chdir(work)
        result = invoke(command)
        assert result.exit_code == 0, f"spag {command}: {result.stderr}"
        shutil.rmtree(work)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.file)
def test_spoiled_files_end_in_an_answer_or_in_one_line(kind: Kind, good: Path, tmp_path: Path) -> None:
    faults: list[str] = []
    started = time.monotonic()
    for number in numbers(kind, started):
        faults += [f"{kind.file}#{number}: {fault}" for fault in faults_of(kind, number, good, tmp_path / "work")]
        if len(faults) > 20:
            break
    assert not faults, "\n\n".join(faults)


def numbers(kind: Kind, started: float) -> Iterator[int]:
    """Yield the inputs to try."""
    if ONE:
        yield from [int(ONE.partition("#")[2])] * (ONE.partition("#")[0] == kind.file)
        return
    for number in count():
        if number >= kind.inputs and time.monotonic() - started > SECONDS / len(KINDS):
            return
        yield number


def faults_of(kind: Kind, number: int, good: Path, work: Path) -> Iterator[str]:
    """Yield what is wrong with how the commands that read the input of a number end."""
    spoiled = mutated((good / kind.file).read_bytes(), random.Random(f"{kind.file}#{number}"))
    before: dict[Path, bytes] = {}
    for command in (one.format(file=kind.file) for one in kind.commands):
        if not before or files_of(work) != before:
            before = spoil(good, work, kind, spoiled)
        if fault := fault_of(command) or changed(before, work, kind):
            yield f"spag {command}: {fault}\n  input: {'a folder' if spoiled is None else repr(spoiled[:1500])}"


def spoil(good: Path, work: Path, kind: Kind, spoiled: bytes | None) -> dict[Path, bytes]:
    """Make ``work`` a copy of ``good`` with one file spoiled, and the working directory; return its files."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(good, work)
    os.chdir(work)
    path = work / kind.file
    path.unlink()
    path.mkdir() if spoiled is None else path.write_bytes(spoiled)
    return files_of(work)


def fault_of(command: str) -> str | None:
    """Return what is wrong with how a command ends, and count how it ended."""
    fault, status = ended(command)
    words = command.split()
    name = " ".join(words[: 2 if words[0] in ("export", "import") else 1])
    ENDS[name, "fault" if fault else f"status {status}"] += 1
    return fault


def ended(command: str) -> tuple[str | None, int | None]:
    """Return what is wrong with how a command ends, ``None`` for status 0 or 2 and few lines, and its status."""
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        result = invoke(command)
    except TooLong as error:
        return str(error), None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if not isinstance(result.exception, SystemExit | None):
        return "".join(traceback.format_exception(result.exception)[-4:]), None
    said = [line for line in result.stderr.splitlines() if line and not PROGRESS.match(line)]
    if result.exit_code not in answers(command) or len(said) > MOST_LINES or "Traceback" in result.output:
        return f"status {result.exit_code}: {result.stderr[-1500:]!r}", None
    silent = result.exit_code == 2 and not said
    return f"status 2 without a word: {result.output!r}" if silent else None, result.exit_code


def answers(command: str) -> tuple[int, ...]:
    """Return the statuses that answer: 3 for a plan that does not fit, 1 for tasks that are left out."""
    if command.startswith("plan ") or "--dry-run" in command:
        return 0, 2, 3
    return (0, 1, 2) if command.startswith("eval ") else (0, 2)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(before: dict[Path, bytes], work: Path, kind: Kind) -> str | None:
    """Return which file that was there before is lost or half written; files of ``works_in`` and outputs may be
    replaced by whole ones.
    """
    mine = [work / name for name in (*kind.works_in, "out.json", "out.jsonl")]
    for path, content in before.items():
        if path.is_file() and path.read_bytes() == content:
            continue
        if not any(path.is_relative_to(one) for one in mine):
            return f"{path.relative_to(work)} was changed"
        if path.is_file() and not is_whole(path):
            return f"{path.relative_to(work)} is half written: {path.read_bytes()[-200:]!r}"
    return None


def is_whole(path: Path) -> bool:
    """Whether a JSON file, or all lines of a file of JSON lines, can be read; other files are written in one piece."""
    try:
        text = path.read_text(encoding="utf-8")
        for row in filter(
            str.strip, text.splitlines() if path.suffix == ".jsonl" else [text] * (path.suffix == ".json")
        ):
            json.loads(row)
    except ValueError:
        return False
    return True
