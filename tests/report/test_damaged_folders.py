"""Files of a run folder cut, emptied, replaced or of other types: ``spag report`` names them and goes on without that
part.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_fixtures import leave_undrawn, write_reasoning, write_run

from spag.cli import main

pytestmark = pytest.mark.slow

FILES = (
    "manifest.json", "config.yaml", "1-imitation/metrics.jsonl", "2-spag/iteration-1/metrics.jsonl",
    "2-spag/iteration-1/health.json", "2-spag/iteration-1/episodes.jsonl", "arena/results.json", "arena/episodes.jsonl",
    "reasoning/results.json", "3-reinforce/metrics.jsonl", "3-reinforce/evaluations.jsonl",
    "3-reinforce/warnings.jsonl", "3-reinforce/opponents.jsonl",
)  # fmt: skip
MET = {"game": "adversarial_taboo", "opponent": "base", "games": 4, "score": 0.4, "rating": 70.4, "share": 1.0}
CONFIG = """
model: {name: tiny}
phases:
- {algorithm: imitation}
- {algorithm: spag, iterations: 1}
- {algorithm: reinforce, steps: 2, games: 4}
"""
WHOLE: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"[1]\n", b"{}\n", b"null\n", b"3\n", b'"text"\n', b'{"game": "nope"}\n',
    b'{"step": NaN}\n', b'{"step": 1e999}\n', b'{"step": 99999999999999999999}\n', b"[" * 5000 + b"\n",
)  # fmt: skip
"""What is no JSON at all: ``storage/test_jsonfile.py``; no YAML: ``config/test_config_files.py``."""
OTHERS: tuple[Any, ...] = (None, True, -1, 0, 3.5, 1e308, "", "text", [], [1], {}, {"a": 1})
"""What takes the place of single values."""
COUNT = 6
"""Mutations of values for each file."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "run")
    write_reasoning(folder, ["alpha", "beta", "gamma"])
    (folder / "config.yaml").write_text(CONFIG)
    rate = {"count": 1, "total": 2, "rate": 0.5, "low": 0.1, "high": 0.9}
    role = {"role": "attacker", "games": 2, "win": rate, "violation": rate}
    evaluation = {
        "step": 2,
        "game": "adversarial_taboo",
        "opponent": "start",
        "roles": [role],
        "pair": [],
        "exact": {"value": 0.5},
    }
    (folder / "3-reinforce").mkdir()
    steps = [
        {"step": step, "loss": 1.0, "step_s": 2.0, "evaluate_s": 1.0, "adversarial_taboo/attacker/win": 0.5}
        for step in (1, 2)
    ]
    for name, rows in (
        ("metrics", steps),
        ("evaluations", [evaluation]),
        ("warnings", [{"step": 1, "warnings": {"kl": "far"}}]),
        ("opponents", [{"step": 2, "opponents": [MET]}]),
    ):
        (folder / "3-reinforce" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # figures take most of the time; one test makes them
    monkeypatch.setattr("spag.report.page._plots", lambda _: [])
    return Path(shutil.copytree(made, tmp_path / "run"))


def fault(folder: Path) -> str | None:
    """Return what is wrong with how the report of ``folder`` ended; ``None`` for a page, or one clear line."""
    result = CliRunner().invoke(main, ["report", str(folder)])
    if not isinstance(result.exception, SystemExit | None):
        return f"raised {result.exception!r}"
    if result.exit_code not in (0, 2) or len(result.stderr.splitlines()) > 3:
        return f"ended with {result.exit_code}: {result.stderr}"
    return None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to every value inside ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in places(one, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    value = json.loads(json.dumps(value))
    at = value
    for key in path[:-1]:
        at = at[key]
    change(at, path[-1])
    return value


def mutations(data: bytes, *, count: int, seed: int) -> list[bytes]:
    """Return ``count`` mutations of a JSON file: values of other types, and fields left out."""
    rng, found = random.Random(seed), []
    rows = data.splitlines() if b"}\n{" in data or data.count(b"\n") == 1 else [data]
    for _ in range(count):
        number = rng.randrange(len(rows))
        value = json.loads(rows[number])
        path = rng.choice([one for one in places(value) if one])
        other = rng.choice((*OTHERS, places))
        new = changed(
            value,
            path,
            lambda at, key, other=other: at.__delitem__(key) if other is places else at.__setitem__(key, other),
        )
        text = json.dumps(new).encode()
        found.append(b"\n".join([*rows[:number], text, *rows[number + 1 :]]) + b"\n")
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_page_is_written_whatever_is_in_one_file(folder: Path, name: str) -> None:
    path, faults = folder / name, []
    data = path.read_bytes()
    cut = [data[: len(data) // 3], data[:-2], data + data[: len(data) // 2]]
    mutated = [] if name.endswith("yaml") else mutations(data, count=COUNT, seed=1)
    for content in (*WHOLE, *cut, *mutated):
        path.write_bytes(content)
        if found := fault(folder):
            faults.append(f"{content[:2000]!r}: {found}")
    path.unlink()
    path.mkdir()
    if found := fault(folder):
        faults.append(f"a folder: {found}")
    assert not faults, "\n\n".join(faults)


def test_a_page_of_whole_files_leaves_nothing_out(folder: Path) -> None:
    result = CliRunner().invoke(main, ["report", str(folder)])
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_torn_last_row_hides_no_game(folder: Path) -> None:
    for phase in folder.glob("3-*"):
        shutil.rmtree(phase)
    path = folder / "2-spag" / "iteration-1" / "episodes.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + data.splitlines()[0][:100])
    assert fault(folder) is None
    assert "Games of spag-1" in (folder / "report" / "index.html").read_text()


def test_the_page_names_what_it_leaves_out(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, drawn = Path(shutil.copytree(made, tmp_path / "run")), leave_undrawn(monkeypatch)
    (folder / "arena" / "results.json").write_text('{"game": 3}')
    (folder / "2-spag" / "iteration-1" / "health.json").write_text("")
    (folder / "1-imitation" / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n')
    result = CliRunner().invoke(main, ["report", str(folder)])
    assert result.exit_code == 0
    assert len(result.stderr.splitlines()) == 3
    page = (folder / "report" / "index.html").read_text()
    for name in ("arena/results.json", "2-spag/iteration-1/health.json", "1-imitation/metrics.jsonl:2"):
        assert name in page
    assert "training-spag-1" in drawn and "training-imitation" not in drawn
