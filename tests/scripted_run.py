"""A whole run with a scripted engine and a tiny real model, in a process of its own so that it can be killed.

scripted_run.py FOLDER MODEL WORDS [A.B=VALUE ...]
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from spag.config.files import parse_config
from spag.config.schema import EngineConfig, ModelConfig, RunConfig
from spag.core.progress import SilentReporter
from spag.engines.base import Request
from spag.engines.scripted import ScriptedEngine
from spag.rollout import play
from spag.runs.offline import run

WORDS = ["river", "bread", "piano", "garden", "window", "teacher", "engine", "doctor", "winter", "bottle", "planet", "ticket"]
LINES = [
    "Tell me about your day.",
    "What do you see outside?",
    "I know the word! It is `river`!",
    "I had bread on the train.",
    "A garden, a window and a doctor.",
    "No idea.",
    "The winter was long.",
]

CONFIG = """
iterations: 1
imitation:
  max_episodes: 8
  training: &training
    {learning_rate: 1.0e-3, global_batch_size: 4, micro_batch_size: 4, max_length: 256, gradient_checkpointing: false, save_steps: 1}
selfplay: {tasks: 8, repeats: 2}
offline_rl: *training
engine: {concurrency: 3}
arena: {tasks: 2}
"""


def config_for(model: Path, words: Path, overrides: list[str]) -> RunConfig:
    fixed = [f"model.name={model}", "model.dtype=float32", "model.device=cpu", f"game.words={words}"]
    return parse_config(CONFIG, "test", [*fixed, *overrides])


def chatter(request: Request) -> str:
    return random.Random(request.seed).choice(LINES)


def scripted(models: Sequence[ModelConfig], engine: EngineConfig, *_: object) -> list[ScriptedEngine]:
    one = ScriptedEngine(chatter, concurrency=engine.concurrency, latency_s=0.01)
    return [one] * len(models)


def main() -> None:
    folder, model, words, *overrides = sys.argv[1:]
    play.open_engines = scripted
    run(config_for(Path(model), Path(words), overrides), Path(folder), SilentReporter())


if __name__ == "__main__":
    main()
