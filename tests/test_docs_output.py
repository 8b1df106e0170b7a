"""What the pages show of ``spag plan`` and ``spag run --dry-run`` is what these print today.

A block that begins with ``$ spag`` is the command's output, up to ``...``; a row of a table that begins with a plan's
options ends with its hours. Files that cannot be shipped are stand-ins of as many rows; dry runs of presets for GPUs
are made on pretended ones. ``python tests/test_docs_output.py`` writes the pages anew; read the difference before it is
committed.
"""

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from spag.cli import main
from spag.config.files import load_config
from spag.config.presets import PRESETS, preset_text
from spag.games.registry import get
from spag.planning import estimate, here, samples
from spag.planning.hours import Assumptions
from spag.planning.plan import Planner
from spag.planning.specs import GIB, KNOWN_SHAPES, find_gpu, read_shape
from spag.runs.teachers import teacher_path
from spag.storage.episodes import read_episodes
from tiny_model import make_model

pytestmark = pytest.mark.usefixtures("counted_once")
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAPER = ROOT / "docs" / "reproduction.md"
PLANNING = ROOT / "docs" / "planning.md"
BLOCK = re.compile(r"^```\n(\$ spag (?:[^\n]*\\\n)*[^\n]*\n)(.*?)^```", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `(llama2-7b[^`]*)` \| ([\d.]+) \|$", re.MULTILINE)
FILES = " --set imitation.episodes=[gpt4_game_top30k_results.json] --set spag.sft_data=alpaca_data.json"
GAMES, INSTRUCTIONS = 23_354, 52_002
# of the dry run, on any machine: its stages and their work depend on none of these
HERE = "model.name=stand-in model.device=cpu model.dtype=float32 imitation.parallel=replicas spag.parallel=replicas"
WIDTH = "100"
PRETENDED = {  # GPUs of dry runs that a page shows, and CPU memory, in GiB
    "spiral-qwen3-4b": ("H100", 8, 1024),
    "marshal-qwen3-4b": ("H100", 8, 1024),
    "taboo-qwen3-1.7b": ("A100-80", 1, 128),
    "taboo-qwen3-1.7b-lora": ("RTX-4090", 1, 64),
}


PLANNED = {  # presets whose hours `spag presets` shows: GPUs and kind, as `spag plan` takes them
    "taboo-qwen3-1.7b-lora": (1, "RTX-4090"),
    "taboo-qwen3-1.7b": (1, "A100-80"),
    "llama2-7b-qlora": (1, "RTX-4090"),
    "spiral-qwen3-4b": (8, "H100"),
    "marshal-qwen3-4b": (8, "H100"),
    "llama2-7b": (8, "A100-80"),
    "llama2-7b-lora": (1, "RTX-4090"),
    "qwen3": (1, "A100-80"),
    "baichuan2-13b": (8, "A100-80"),
}


def write_stand_ins(folder: Path) -> None:
    """Write as many games and instructions as the files have that the page names, and a tiny model."""
    lines = teacher_path(get("adversarial_taboo")).read_text(encoding="utf-8").splitlines()
    games = [json.loads(line) for line in lines]
    games = [{key: one[key] for key in ("history", "target_word", "max_turns")} for one in games]
    repeated = [games[at % len(games)] for at in range(GAMES)]
    (folder / "gpt4_game_top30k_results.json").write_text(json.dumps(repeated), encoding="utf-8")
    told = "Describe the way that a river takes to the sea in a few words. "
    rows = [{"instruction": f"{at}: {told}", "input": "", "output": told * 4} for at in range(INSTRUCTIONS)]
    (folder / "alpaca_data.json").write_text(json.dumps(rows), encoding="utf-8")
    make_model(folder / "stand-in")


def printed(command: str) -> str:
    """Return what a command prints, without the white space at the ends of its lines."""
    words = shlex.split(command.replace("\\\n", " "))
    if "--dry-run" in words and words[2] in PRETENDED:
        return pretended(words)
    if "--dry-run" in words:
        words += [part for one in HERE.split() for part in ("--set", one)]
    result = CliRunner().invoke(main, words[1:], env={"COLUMNS": WIDTH})
    assert result.exit_code == (3 if " does not fit: " in result.stdout else 0), f"{command}: {result.output}"
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())


def pretended(words: list[str]) -> str:
    """Return what a dry run prints on GPUs that are not there, for a model whose shape alone is known."""
    kind, count, host = PRETENDED[words[2]]
    model = load_config(words[2]).model.name
    own = ("--set", "model.name=stand-in", "--set", "model.prompt_style=plain")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(here, "at_hand", lambda model: (find_gpu(kind), count)))
        stack.enter_context(mock.patch.object(here, "installed_vllm", lambda: ("0.32.0", False)))
        stack.enter_context(mock.patch.object(here, "memory_bytes", lambda: host * GIB))
        stack.enter_context(mock.patch.object(here, "read_shape", lambda name, **_: KNOWN_SHAPES[model]))
        stack.enter_context(mock.patch.object(estimate, "disk_bytes", lambda *_: 0.0))  # this machine's disk is another
        result = CliRunner().invoke(main, [*words[1:], *own], env={"COLUMNS": WIDTH})
    assert result.exit_code == 0, result.output
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.replace("stand-in", model).splitlines())


def shown(command: str, output: str) -> str:
    """Return a command's output up to where the page cuts it."""
    new, lines = printed(command.removeprefix("$ ")), output.splitlines()
    if "..." not in lines:
        return new
    kept = new.splitlines()[: lines.index("...")]
    return "".join(f"{line}\n" for line in [*kept, "..."])


def hours(options: str) -> str:
    found = json.loads(printed(f"spag plan {options} --json{FILES}"))
    return f"{found['total']['hours']:.1f}"


def written(page: str) -> str:
    """Return the page with today's output. Works in a folder with the stand-ins."""
    page = BLOCK.sub(lambda block: f"```\n{block[1]}{shown(block[1], block[2])}```", page)
    return ROW.sub(lambda row: f"| `{row[1]}` | {hours(row[1])} |", page)


def shows_output(page: Path) -> bool:
    text = page.read_text(encoding="utf-8")
    return BLOCK.search(text) is not None or ROW.search(text) is not None


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("files")
    write_stand_ins(folder)
    games = cache(lambda path: list(read_episodes(path)))  # of 23,354 games, in every plan
    rows = cache(samples.read_sft)
    with chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "read_episodes", lambda path: iter(games(Path(path).absolute())))
        patch.setattr(samples, "read_sft", lambda path, *rest: rows(Path(path).absolute(), *rest))
        yield


def test_the_page_shows_the_four_presets_and_a_dry_run() -> None:
    page = PAPER.read_text(encoding="utf-8")
    commands = " ".join(block[1] for block in BLOCK.finditer(page))
    for name in ("plan llama2-7b", "plan llama2-7b-lora", "plan llama2-7b-qlora", "plan baichuan2-13b", "--dry-run"):
        assert f"{name} " in commands, name
    assert len(ROW.findall(page)) >= 4


def test_pages_with_output_are_found() -> None:
    shown = {page.name for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert {"planning.md", "reproduction.md", "scaling.md"} <= shown
    for page in PAGES:  # a command with its output that no block is made of would never be compared
        text = page.read_text(encoding="utf-8")
        assert len(BLOCK.findall(text)) == len(re.findall(r"^\$ spag", text, re.MULTILINE)), page


def test_scaling_shows_the_dry_runs_of_the_presets_for_gpus() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert {block[1].split()[3] for block in BLOCK.finditer(page)} == set(PRETENDED)


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if shows_output(page)], ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(stand_ins: None, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert written(text) == text, "python tests/test_docs_output.py writes the pages anew"


@pytest.mark.long
@pytest.mark.parametrize("preset", ["llama2-7b-lora", "llama2-7b-qlora", "baichuan2-13b"])
def test_the_other_presets_dry_runs_show_the_same_stages(stand_ins: None, preset: str) -> None:
    [(command, output)] = [block for block in BLOCK.findall(PAPER.read_text("utf-8")) if "--dry-run" in block[0]]
    other = command.replace("run llama2-7b ", f"run {preset} ")
    assert preset in other and shown(other, output) == output


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as name:
        write_stand_ins(Path(name))
        with chdir(name):
            texts = {page: written(page.read_text(encoding="utf-8")) for page in PAGES}
    for page, text in texts.items():
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{page}\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNED)
def test_hours_of_presets_are_those_of_the_plan(name: str) -> None:
    """Those that presets are listed with, and those of the table of GPUs."""
    if "textarena:" in preset_text(name):
        pytest.importorskip("textarena")
    head, *rows = re.findall(
        r"^\| (`?[a-z].*) \|$", PLANNING.read_text(encoding="utf-8").split("fits which GPU")[1], re.M
    )
    gpus = [cell.split() for cell in head.split(" | ")[1:]]
    config, cells = load_config(name), {row.split(" | ")[0]: row.split(" | ")[1:] for row in rows}[f"`{name}`"]

    def hours_on(count: int, kind: str) -> float | None:
        plan = Planner(config, read_shape(config.model.name), find_gpu(kind), count, Assumptions())
        hours = sum(stage.hours * stage.times for stage in plan.stages)
        return None if any(stage.problems for stage in plan.stages) else hours

    listed, unit = PRESETS[name].time.split()
    assert float(listed) / {"hours": 1, "minutes": 60}[unit] == pytest.approx(hours_on(*PLANNED[name]), rel=0.05)
    for (count, kind), cell in zip(gpus, cells, strict=True):
        hours = hours_on(int(count), kind)
        assert cell == ("no" if hours is None else f"{hours:.1f}"), (count, kind)


def test_every_preset_with_planned_hours_names_its_gpu() -> None:
    timed = {name: one for name, one in PRESETS.items() if one.time[0].isdigit()}
    assert set(PLANNED) == {name for name, one in timed.items() if "CPU" not in one.hardware}
