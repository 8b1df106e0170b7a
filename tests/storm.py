"""A storm of kills: tiny runs of ``spag run``, each ended again and again at random moments, then compared with an
undisturbed one.

    python tests/storm.py --kills 100 --seed 0

A moment is a stage and a time after its begin, both drawn from the seed. SIGKILL must leave what the same command
resumes; SIGINT and SIGTERM must end with one line that says how to go on, exit status 130 and 143, no traceback, and
no process left over. Every other run trains its offline iteration in a process of its own.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

import forked
from scripted_run import moving
from spag.cli import main
from spag.config.schema import EngineConfig, ModelConfig
from spag.engines import opening
from spag.engines.base import Engine
from spag.runs import execute
from spag.storage.manifest import Manifest
from tiny_model import make_model

TRAINING = (
    "learning_rate: 1.0e-3, global_batch_size: 4, micro_batch_size: 4, max_length: 2048, save_steps: 1, "
    "gradient_checkpointing: false, template: play"
)
CONFIG = f"""
model: {{name: MODEL, dtype: float32, device: cpu}}
game: {{name: kuhn_poker}}
engine: {{concurrency: 4}}
phases:
  - {{algorithm: imitation, episodes: ["bot:random"], max_episodes: 8, {TRAINING}}}
  - {{algorithm: spag, iterations: 1, tasks: 6, repeats: 2, sft_coef: 0, {TRAINING}}}
  - algorithm: reinforce
    steps: 3
    games: 8
    learning_rate: 1.0e-3
    micro_batch_size: 4
    sampling: {{max_new_tokens: 6, min_new_tokens: 0}}
    evaluate_every: 2
    evaluation_tasks: 2
    snapshot_every: 1
    save_steps: 1
arena: {{tasks: 2, entrants: [base, reinforce], sampling: {{max_new_tokens: 6}}}}
"""
STAGES = (
    "1-imitation/play", "1-imitation/train", "2-spag/iteration-1/play", "2-spag/iteration-1/train", "3-reinforce/train",
    "arena", "report",
)  # fmt: skip
RESULTS = ("*.jsonl", "*.safetensors", "results.json", "index.html")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS_A_RUN = 10
APART = ("_s", "_per_second", "_per_hour", "seconds", "finished", "fingerprint")
"""How names of what may differ end: times, and fingerprints of models' folders."""
PATIENCE_S = 60.0
"""After which nothing may be left of a process that was ended."""
LONGEST_S = 3600.0
"""For a process to end, on a machine that has other things to do: what hangs is found all the same."""
TOKEN = "SPAG_STORM"
forked.MODULES += [
    "matplotlib.pyplot",
    "spag.report.page",
    "spag.runs.execute",
    "spag.runs.phases",
    "storm",
    "transformers.generation",
]


@dataclass(frozen=True)
class Kill:
    """What a kill hit, and what came of it."""

    run: int
    stage: str
    signal: signal.Signals
    exit_code: int | None
    said: str
    orphans: int
    games: Mapping[tuple[str, str], str]
    """What was on disk after it: the line of each finished game, by file and id."""

    @property
    def fault(self) -> str:
        """What is wrong with it; empty when nothing is."""
        wanted = -9 if self.signal == signal.SIGKILL else 128 + self.signal
        lines = [line for line in self.said.splitlines() if "stopped; " in line]
        faults = {
            f"exit status {self.exit_code}": self.exit_code != wanted,
            f"{self.orphans} orphans": self.orphans > 0,
            "a traceback": "Traceback" in self.said,
            f"{len(lines)} last lines": wanted > 0 and (len(lines) != 1 or lines[0] != self.said.splitlines()[-1]),
        }
        return ", ".join(name for name, is_so in faults.items() if is_so)


def open_engines(models: Sequence[ModelConfig], engine: EngineConfig) -> Sequence[Engine]:
    """Play the offline iteration by script, since a random model makes no legal move; everything else by the models."""
    if any("1-imitation" in model.name for model in models):
        return moving(models, engine)
    return opening.open_models(models, engine)


def work(arguments: Sequence[str]) -> None:
    """Do what ``spag`` does."""
    execute.run = partial(execute.run, open_models=open_engines)
    main(list(arguments))


def stages_of(folder: Path) -> dict[str, str]:
    """Return the state of every stage that was begun."""
    path = folder / "manifest.json"
    found = (
        {name: entry["status"] for name, entry in json.loads(path.read_bytes())["stages"].items()}
        if path.exists()
        else {}
    )
    return {**found, "report": "started"} if found.get("arena") == "done" else found


def stage_of(folder: Path) -> str:
    """Return the stage that a run is in: the last that was begun."""
    return list(stages_of(folder) or ["start"])[-1]


def games_of(folder: Path) -> dict[tuple[str, str], str]:
    """Return the line of every finished game in a run's folder, by file and id; a torn line is none."""
    return {
        (str(path.relative_to(folder)), json.loads(line)["id"]): line
        for path in folder.rglob("*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("}\n") and '"history":' in line
    }


def lost(kill: Kill, ended: Mapping[tuple[str, str], str]) -> int:
    """Count the games that were on disk after a kill and are not, or are others, in the finished run."""
    return sum(ended.get(game) != line for game, line in kill.games.items())


def listens(process: Any) -> bool:
    """Whether a run handles stops by now, or has ended: in its first moments, a stop ends Python before there is a
    run.
    """
    if not process.is_alive():
        return True
    caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def left_of(token: str, children: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the living processes that a run started: its ``children``, and whatever inherited its ``token``."""

    def is_one(process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and (
                process in children or process.environ().get(TOKEN) == token
            )
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if is_one(process)]


class Storm:
    """Runs in ``folder``, and the kills among them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.kills = folder, random.Random(seed), list[Kill]()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(CONFIG.replace("MODEL", str(make_model(folder / "model"))))
        self.lasting: dict[str, float] = {}
        """Seconds of each stage of the undisturbed run, in which moments are drawn."""

    def start(self, name: str, *options: str) -> tuple[Any, Path, str]:
        """Begin or resume the run ``name``; return its process, where it prints, and the token of what it starts."""
        token, printed = f"{name}-{time.monotonic_ns()}", self.folder / f"{name}.txt"
        arguments = ("run", str(self.folder / "config.yaml"), "--output", str(self.folder / name), *options)
        process = forked.start(forked.printing, str(printed), work, arguments, environment={TOKEN: token})
        return process, printed, token

    def undisturbed(self) -> Path:
        """Make the run that others are compared with, and note how long its stages take."""
        process, printed, _ = self.start("whole")
        began, folder = dict[str, float](), self.folder / "whole"
        while process.is_alive():
            for stage in stages_of(folder):
                began.setdefault(stage, time.monotonic())
            time.sleep(0.002)
        assert forked.end(process, LONGEST_S) == 0, printed.read_text()
        times = [*(began[stage] for stage in STAGES), time.monotonic()]
        self.lasting = {stage: end - start for stage, start, end in zip(STAGES, times, times[1:], strict=False)}
        return folder

    def disturb(self, run: int, kills: int, options: Sequence[str]) -> Path:
        """Kill the run number ``run`` about ``kills`` times, in order of its stages, and let it come to its end."""
        name = f"run-{run}"
        for stage in sorted((self.rng.choice(STAGES) for _ in range(kills)), key=STAGES.index):
            signum, after = self.rng.choice(SIGNALS), self.rng.random() * self.lasting[stage]
            if kill := self.kill(run, stage, signum, after, options):
                self.kills.append(kill)
                print(
                    f"run {run}: {signum.name} in {kill.stage}, {after:.2f} s after {stage} began; "
                    f"{kill.fault or 'good'}",
                    flush=True,
                )
        process, printed, _ = self.start(name, *options)
        assert forked.end(process, LONGEST_S) == 0, printed.read_text()
        return self.folder / name

    def kill(self, run: int, stage: str, signum: signal.Signals, after: float, options: Sequence[str]) -> Kill | None:
        """Run until ``after`` seconds of ``stage``, then send the signal; ``None`` when the run was done before."""
        name, folder = f"run-{run}", self.folder / f"run-{run}"
        before = {name for name, status in stages_of(folder).items() if status == "done"}
        process, printed, token = self.start(name, *options)
        while not listens(process):
            time.sleep(0.002)
        at = None if stage not in before else time.monotonic()
        while process.is_alive() and (at is None or time.monotonic() < at + after):
            if at is None and stage in stages_of(folder):
                at = time.monotonic()
            time.sleep(0.002)
        if not process.is_alive():
            assert forked.end(process, LONGEST_S) == 0, printed.read_text()
            return None
        hit, children = stage_of(folder), psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signum)
        code = forked.end(process, LONGEST_S)
        until = time.monotonic() + PATIENCE_S
        while (left := left_of(token, children)) and time.monotonic() < until:
            time.sleep(0.1)
        for orphan in left:
            orphan.kill()
        return None if code == 0 else Kill(run, hit, signum, code, printed.read_text(), len(left), games_of(folder))


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yield what differs between two finished runs: games, samples, weights beyond 1e-5, rows of metrics and results
    without times.
    """
    names, others = (
        {str(path.relative_to(folder)) for kind in RESULTS for path in folder.rglob(kind)} for folder in (one, other)
    )
    yield from sorted(names ^ others)
    for name in sorted(names & others):
        first, second = one / name, other / name
        if name.endswith(".safetensors"):
            same = near_weights(load_file(first), load_file(second))
        elif name.endswith(".html"):  # the page draws what the other files hold
            same = second.read_text().rstrip().endswith("</html>")
        else:
            same = near(content(first), content(second))
        if not same:
            yield name
    first, second = (Manifest.open(folder).stages for folder in (one, other))
    results = ({name: timeless(stage["results"]) for name, stage in stages.items()} for stages in (first, second))
    if not near(*results):
        yield "manifest.json"


def near_weights(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        torch.allclose(some[name], others[name], rtol=0, atol=1e-5) for name in some
    )


def content(path: Path) -> Any:
    """Return the rows of a file without times; games in order of their ids, since they end in any."""
    if path.suffix == ".json":
        return timeless(json.loads(path.read_text()))
    rows = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
    return sorted(rows, key=lambda row: str(row.get("id", ""))) if rows and "history" in rows[0] else rows


def timeless(value: Any) -> Any:
    """Return ``value`` without what depends on the clock, or on the folder, as a fingerprint does that names the
    model.
    """
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if not key.endswith(APART)}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def near(one: Any, other: Any) -> bool:
    """Whether two values are equal, numbers to 1e-4 of their size: float32 sums of another length of batch."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-5 + 1e-4 * abs(one)
    return bool(one == other)


def storm(folder: Path, kills: int, seed: int, *, processes: bool = True) -> list[str]:
    """Make ``kills`` kills in runs in ``folder``; print a table and return all that is wrong."""
    made, faults, equal = Storm(folder, seed), list[str](), list[bool]()
    losses, finished = list[int](), list[int]()
    began = time.monotonic()
    whole = made.undisturbed()
    while (left := kills - len(made.kills)) > 0:
        run = len(equal)
        options = ["--set", "spag.parallel=fsdp"] if processes and run % 2 else []
        ended = made.disturb(run, min(KILLS_A_RUN, left), options)
        differing = list(differences(whole, ended))
        faults += [f"run {run}: {name} differs" for name in differing]
        games = games_of(ended)
        losses.append(sum(lost(kill, games) for kill in made.kills if kill.run == run))
        faults += [f"run {run}: {losses[-1]} games lost"] * bool(losses[-1])
        finished.append(len(games))
        equal.append(not differing)
    print_table(made.kills, equal)
    on_disk = sum(len(kill.games) for kill in made.kills)
    print(
        f"{on_disk} games on disk after kills, {sum(losses)} of them lost; {sum(finished)} in the finished runs, "
        f"{len(games_of(whole))} in the undisturbed one; {time.monotonic() - began:.0f} s"
    )
    return faults + [
        f"run {kill.run}: {kill.signal.name} in {kill.stage}: {kill.fault}: {kill.said}"
        for kill in made.kills
        if kill.fault
    ]


def print_table(kills: Sequence[Kill], equal: Sequence[bool]) -> None:
    """Print for each signal and stage how many kills there were, and how many of their runs ended as the undisturbed
    one.
    """
    rows: dict[tuple[str, str], list[Kill]] = {}
    for kill in kills:
        rows.setdefault((kill.signal.name, kill.stage), []).append(kill)
    print(f"{'signal':8} {'stage':24} {'kills':>5} {'faults':>6} {'orphans':>7} {'equal':>5}")
    for (name, stage), some in sorted(rows.items()):
        faults, orphans, same = (
            sum(bool(kill.fault) for kill in some),
            sum(kill.orphans for kill in some),
            sum(equal[k.run] for k in some),
        )
        print(f"{name:8} {stage:24} {len(some):5} {faults:6} {orphans:7} {same:5}")
    print(f"{len(kills)} kills in {len(equal)} runs, {sum(equal)} of which ended as the undisturbed one")


def command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spag-storm-") as folder:
        faults = storm(Path(folder), options.kills, options.seed)
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    command()
