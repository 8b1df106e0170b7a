"""``make gpu``: play, training and online steps on this machine's GPU, in the shapes of models that people train, with
random weights; a table, and ``benchmarks/results/gpu-NAME.json``.

Each part runs in a process of its own, on one GPU, while a thread here watches the memory that is in use. What the
memory plan says is put beside it. A part that does not fit by the plan, or fails, is in the table with the reason.

    python -m benchmarks.gpu [--shape qwen3-4b ...] [--output FOLDER]
    python -m benchmarks.gpu --shape qwen3-tiny --quick     # anywhere: figures mean nothing
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import torch

from benchmarks.gpu_parts import Part, planned_gib
from benchmarks.harness import Measured, Reading, arguments_of, printed_reading
from benchmarks.machine import datasheet, hardware, results_name, versions
from benchmarks.play import MODEL, backends
from benchmarks.shapes import SHAPES
from benchmarks.show import print_figures
from benchmarks.steps import Optimizer, Work
from spag.planning.memory import training_memory
from spag.planning.sharing import USABLE
from spag.planning.specs import GIB, read_shape

QWEN = ("qwen3-0.6b", "qwen3-4b", "qwen2.5-7b")
GOAL_SHAPE = "qwen2.5-7b"
"""The goals of MFU and weight updates are for a model of this size."""
TRAININGS: tuple[tuple[Optimizer, int], ...] = (("adamw", 0), ("adamw", 1), ("adamw_8bit", 1))
"""Optimisers, and whether activations are computed again: each that fits is measured."""
ROW = 8192
"""Tokens that a micro-batch of training is taken to have before it is made: 64 samples make up to so many."""
SHOWN = 60  # lines of what a part that failed has said
LIMIT_S, HOUR_S = 900, 3000
"""Seconds that a part may take, and all of them; an hour has the rest for installing and tests."""
BEGAN = time.monotonic()
GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "0")


class PartFailedError(Exception):
    """A part ended without a reading; the last line of what it said."""


class MemoryWatch(threading.Thread):
    """The most memory in use: of the GPU as nvidia-smi sees it, else of a process and its children."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peak, self.over = psutil.Process(process), 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            self.peak = max(self.peak, self._gpu() if MODEL.device != "cpu" else self._resident())

    def _gpu(self) -> float:
        command = ["nvidia-smi", f"--id={GPU}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024

    def _resident(self) -> float:
        try:
            alive = [self.process, *self.process.children(recursive=True)]
            return sum(one.memory_info().rss for one in alive) / GIB
        except psutil.NoSuchProcess:
            return 0.0


@contextmanager
def watched(process: int) -> Iterator[MemoryWatch]:
    watch = MemoryWatch(process)
    watch.start()
    try:
        yield watch
    finally:
        watch.over.set()
        watch.join()


def carry_out(module: str, *arguments: str) -> tuple[str, float]:
    """Run a module in a process of its own; return what it prints and the most GiB in use. Raises
    ``PartFailedError``.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    limit = min(LIMIT_S, HOUR_S - (time.monotonic() - BEGAN))
    if limit < 0:
        raise PartFailedError("no time is left for it")
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        with process, watched(process.pid) as watch:
            try:
                output, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.kill()
                raise PartFailedError(f"no result within {limit:.0f} s") from None
        if process.returncode:
            said.seek(0)
            lines = said.read().strip().splitlines() or [f"exit status {process.returncode}"]
            print(*lines[-SHOWN:], sep="\n", file=sys.stderr)  # the last line may only say where to look
            raise PartFailedError(lines[-1][:200])
    return output, watch.peak


def measure(module: str, name: str, part: Part | Work) -> Reading:
    """Return the reading of one part. Raises ``PartFailedError``."""
    output, peak = carry_out(module, *arguments_of(name, part))
    found = printed_reading(output)
    return replace(found, more={**found.more, "watched_gib": peak})


def play_figures(shape: str, part: Part) -> Iterator[Measured]:
    """Yield the speed of play beside that of a flat batch of the same prompts."""
    ours, name = measure("gpu_parts", "play", part), f"play, {part.backend}"
    try:
        flat = ours.more["flat"] if part.backend == "transformers" else measure("gpu_parts", "flat", part).value
    except PartFailedError as error:
        yield Measured(shape, name, "tokens/s", ours.value)
        yield Measured(shape, "flat batch", "", note=f"failed: {error}")
    else:
        yield Measured(shape, name, "tokens/s", ours.value, flat, "flat batch", "ratio >= 0.9")
    yield Measured(shape, "play: peak memory", "GiB", ours.more["watched_gib"])


def training_figures(shape: str, work: Work, name: str) -> Iterator[Measured]:
    """Yield speed, MFU and memory of training, or why it does not fit."""
    planned = training_memory(read_shape(work.model), work.settings, ROW, ROW / 4, 2, 1, on_gpu=True).total
    if torch.cuda.is_available() and planned > (room := USABLE * torch.cuda.get_device_properties(0).total_memory):
        note = f"left out: plans {planned / GIB:.1f} of {room / GIB:.1f} GiB"
        yield Measured(shape, name, "tokens/s", note=note)
        return
    found = measure("training", "ours", work).more
    yield Measured(shape, name, "tokens/s", found["tokens_per_second"])
    goal = ">= 0.5" if shape == GOAL_SHAPE else ""
    yield Measured(shape, f"{name}: MFU", "", found.get("mfu"), goal=goal, note="" if "mfu" in found else _no_mfu())
    yield Measured(shape, f"{name}: peak memory", "GiB", found["peak_gib"], found["planned_gib"], "planned")


def _no_mfu() -> str:
    if not torch.cuda.is_available():
        return "no GPU"
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    assert datasheet(name, memory) is None
    return f"the datasheet of {name} is not known"


def online_figures(shape: str, part: Part) -> Iterator[Measured]:
    """Yield the seconds of an online step by part with the first optimiser that the plan has room for."""
    for optimizer in dict.fromkeys(name for name, _ in TRAININGS):
        part = replace(part, optimizer=optimizer)
        planned, problems = planned_gib(part)
        if not problems:
            break
    else:
        yield Measured(shape, "online step", "s", note=f"left out: {problems}")
        return
    found, at_goal = measure("gpu_parts", "online", part).more, shape == GOAL_SHAPE
    yield Measured(shape, f"online step of {part.games} games, {optimizer}", "s", found["step_s"])
    yield Measured(shape, "online: play", "s", found["play_s"])
    yield Measured(shape, "online: reference", "s", found["logprobs_s"])
    yield Measured(shape, "online: update", "s", found["train_s"])
    yield Measured(shape, "online: weight transfer", "s", found["update_weights_s"], goal="< 2" if at_goal else "")
    yield Measured(shape, "online: rest", "s", found["rest_s"], found["step_s"], "step", "ratio < 0.05")
    yield Measured(shape, "online: peak memory", "GiB", found["watched_gib"], planned, "planned")


def figures_of(shape: str, folder: Path, quick: bool) -> Iterator[Measured]:
    """Yield all figures of one shape."""
    model = str(folder / shape)
    try:
        carry_out("shapes", shape, model)
    except PartFailedError as error:
        yield Measured(shape, "all", "", note=f"failed: {error}")
        return
    backend = "transformers" if MODEL.device == "cpu" else backends()[-1]
    part = Part(model, backend, prompts=str(folder / f"{shape}.json"))
    work = Work(model, "play", MODEL.dtype, samples=256, micro_batch=64)
    steps = replace(part, games=128, micro_batch=64)
    if quick:
        part, steps = replace(part, games=6, in_flight=2), replace(part, games=2, steps=2, micro_batch=4, tokens=8)
        work = replace(work, samples=4, micro_batch=4)
    parts = [("play", play_figures(shape, part))]
    for optimizer, checkpointing in TRAININGS[-1:] if quick else TRAININGS:
        name = f"training, {optimizer}{', checkpointing' if checkpointing else ''}"
        parts.append(
            (name, training_figures(shape, replace(work, optimizer=optimizer, checkpointing=checkpointing), name))
        )
    parts.append(("online step", online_figures(shape, steps)))
    for name, figures in parts:
        try:
            yield from figures
        except PartFailedError as error:
            yield Measured(shape, name, "", note=f"failed: {error}")


def write(path: Path, figures: Sequence[Measured]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"hardware": hardware(), "versions": versions(), "figures": [asdict(one) for one in figures]}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure play, training and online steps on a GPU.")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="measure only these")
    parser.add_argument("--quick", action="store_true", help="little work, on a CPU too: figures mean nothing")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args(arguments)
    if not (chosen.quick or torch.cuda.is_available()):
        sys.exit("make gpu: torch sees no NVIDIA GPU here; --shape qwen3-tiny --quick tries the code out on a CPU")
    if torch.cuda.device_count() > 1:
        sys.exit("make gpu measures one GPU: choose it with CUDA_VISIBLE_DEVICES, such as CUDA_VISIBLE_DEVICES=0")
    path, figures, began = chosen.output / f"gpu-{results_name()}.json", [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for shape in chosen.shape or QWEN:
            for figure in figures_of(shape, Path(folder), chosen.quick):
                figures.append(figure)
                print(f"{time.perf_counter() - began:6.0f} s  {figure.shape}  {figure.name}", file=sys.stderr)
                write(path, figures)  # after each, so that nothing measured is lost
    print_figures(figures)
    print(path)


if __name__ == "__main__":
    main()
