"""Whole runs with a scripted engine and a tiny real model, and the moments at which a test kills them."""

import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import forked
from game_files import reached
from spag.config.files import parse_config
from spag.config.schema import EngineConfig, ModelConfig, RunConfig
from spag.core.progress import SilentReporter
from spag.engines.base import Request
from spag.engines.scripted import ScriptedEngine
from spag.runs.execute import run

WORDS = [
    "river",
    "bread",
    "piano",
    "garden",
    "window",
    "teacher",
    "engine",
    "doctor",
    "winter",
    "bottle",
    "planet",
    "ticket",
]
LINES = [
    "Tell me about your day.",
    "What do you see outside?",
    "I know the word! It is `river`!",
    "I had bread on the train.",
    "A garden, a window and a doctor.",
    "No idea.",
    "The winter was long.",
]

TRAINING = "learning_rate: 1.0e-3, global_batch_size: 4, micro_batch_size: 4, max_length: 320"
CONFIG = f"""
phases:
  - {{algorithm: imitation, max_episodes: 4, gradient_checkpointing: false, {TRAINING}}}
  - {{algorithm: spag, iterations: 1, tasks: 8, repeats: 2, gradient_checkpointing: false, {TRAINING}}}
engine: {{concurrency: 3}}
arena: {{tasks: 2, entrants: [base, imitation, spag-1]}}
"""
IMITATION, FIRST, SECOND = "1-imitation", "2-spag/iteration-1", "2-spag/iteration-2"

MOMENTS = (
    (f"{IMITATION}/samples.jsonl", 1, 0.0),
    (f"{IMITATION}/metrics.jsonl", 1, 0.0),  # an update is done, its checkpoint is not
    (f"{IMITATION}/checkpoint/model.safetensors", 0, 0.0),  # the manifest does not know yet
    (f"{FIRST}/episodes.jsonl", 9, 0.0),
    (f"{FIRST}/health.json", 0, 0.0),
    (f"{FIRST}/samples.jsonl", 1, 0.0),
    (f"{FIRST}/metrics.jsonl", 1, 0.01),
    ("arena/episodes.jsonl", 3, 0.0),
    ("arena/results.json", 0, 0.0),
)
"""When the run is killed: the file of its folder, how many lines it then has, and how many seconds later."""


def config_for(model: Path, words: Path, overrides: list[str]) -> RunConfig:
    fixed = [f"model.name={model}", "model.dtype=float32", "model.device=cpu", f"game.words={words}"]
    return parse_config(CONFIG, "test", [*fixed, *overrides])


def chatter(request: Request) -> str:
    return random.Random(request.seed).choice(LINES)


def scripted(models: Sequence[ModelConfig], engine: EngineConfig, *, latency_s: float = 0.0) -> list[ScriptedEngine]:
    one = ScriptedEngine(chatter, concurrency=engine.concurrency, latency_s=latency_s)
    return [one] * len(models)


def mover(request: Request) -> str:
    """Draw a legal move, and now and then nothing that is one."""
    offered = re.findall(r"\[\w+\]", request.prompt.splitlines()[-1])
    return f"I choose {random.Random(request.seed).choice([*offered, 'nothing'])}"


def moving(models: Sequence[ModelConfig], engine: EngineConfig, *_: object) -> list[ScriptedEngine]:
    """Return an engine for games of moves in brackets."""
    return [ScriptedEngine(mover, concurrency=engine.concurrency)] * len(models)


def run_scripted(config: RunConfig, folder: Path) -> None:
    """Run everything, in a process of its own, slowly enough to be killed in play."""
    run(config, folder, SilentReporter(), open_models=partial(scripted, latency_s=0.01))


def run_until(
    moment: tuple[str, int, float] | None,
    config: RunConfig,
    folder: Path,
    work: Callable[[RunConfig, Path], None] = run_scripted,
) -> bool:
    """Do ``work`` in a process of its own, and kill it at ``moment``; return whether it was."""
    if moment is None:
        process = forked.start(work, config, folder)
    else:
        name, lines, later = moment
        process = forked.start(forked.held, folder / name, lines, work, config, folder)
    while process.is_alive():
        if moment is not None and reached(folder / name, lines):
            time.sleep(later)
            process.kill()
            break
        time.sleep(0.001)
    code = forked.end(process)
    assert code in (0, -9), code
    return code == -9
