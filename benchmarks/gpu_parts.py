"""What ``make gpu`` measures of play and of online steps, each in a process of its own, which prints a reading as JSON.

``play``: games of Taboo without a judge whose utterances differ in length, each game replaced as it ends. ``flat``: the
prompts of those games, with as many tokens each, in one batch of vLLM as its users write it: no seeds, no
log-probabilities. ``online``: steps of a phase as ``spag run`` carries them out, with engines as the memory plan has
them.

    python -m benchmarks.gpu_parts play --model FOLDER --backend vllm --games 1024 --prompts prompts.json
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Reading, print_reading
from benchmarks.play import FULL, MODEL, SHORT_GAME, UnevenEngine, open_one
from spag.config.schema import ModelConfig, PlannedEngine, RunConfig
from spag.core.progress import SilentReporter
from spag.engines.base import Completion, Engine, Player, Request
from spag.learning.job import TrainingJob
from spag.learning.launch import train_on
from spag.planning.here import plan_here, planned_engines
from spag.rollout.runner import game_specs, play
from spag.storage.jsonfile import read_json

MOST_TOKENS = 2048
GAME = SHORT_GAME.name


@dataclass(frozen=True, slots=True)
class Part:
    """``games`` of play, or of each online step; ``in_flight`` utterances at once. ``prompts``: the file by which play
    and flat batch get the same.
    """

    model: str
    backend: str = "vllm"
    games: int = 1024
    in_flight: int = 256
    prompts: str = ""
    steps: int = 3
    optimizer: str = "adamw"
    micro_batch: int = 32
    tokens: int = 64


class Recorder(UnevenEngine):
    """Keeps what was asked, and how long each answer was."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.requests: dict[str, Request] = {}
        self.asked: list[tuple[Request, Completion]] = []

    def submit(self, request: Request) -> None:
        self.requests[request.id] = request
        super().submit(request)

    def poll(self) -> list[Completion]:
        completions = super().poll()
        self.asked += [(self.requests.pop(one.id), one) for one in completions]
        return completions


def play_games(part: Part) -> Reading:
    """Return tokens a second while ``in_flight`` games are there to be played."""
    with ExitStack() as stack:
        engine = open_one(part.backend, stack, MODEL.model_copy(update={"name": part.model}), part.in_flight)
        recorder = Recorder(engine)
        specs = game_specs(SHORT_GAME.some_tasks(part.games), 1, seed=1)
        players = dict.fromkeys(SHORT_GAME.roles, Player(recorder, "player", FULL))
        ended = [len(recorder.clock) for _ in play(specs, players, game=SHORT_GAME, in_flight=part.in_flight)]
        began, last = recorder.clock[part.in_flight], recorder.clock[ended[part.games - part.in_flight - 1] - 1]
        tokens, seconds = last[1] - began[1], last[0] - began[0]
        asked = [(list(one.prompt_ids or ()), one.completion_tokens) for _, one in recorder.asked]
        if part.prompts:
            Path(part.prompts).write_text(json.dumps(asked), encoding="utf-8")
        more = {"tokens": float(tokens), "seconds": seconds, "utterances": float(len(asked))}
        if part.backend == "transformers":
            more["flat"] = _flat_on(engine, recorder)
    return Reading(tokens / seconds, more)


def _flat_on(engine: Engine, recorder: Recorder) -> float:
    """Return tokens a second of the recorded requests, all submitted at once."""
    began, left = time.perf_counter(), len(recorder.asked)
    for number, (request, answer) in enumerate(recorder.asked):
        length = answer.completion_tokens
        sampling = request.sampling.model_copy(update={"max_new_tokens": length, "min_new_tokens": length})
        engine.submit(replace(request, id=f"flat-{number}", sampling=sampling))
    while left:
        left -= len(engine.poll())
    return sum(answer.completion_tokens for _, answer in recorder.asked) / (time.perf_counter() - began)


def flat_batch(part: Part) -> Reading:
    """Return vLLM's own tokens a second, in one process, as our engine runs it."""
    on_cpu = MODEL.device == "cpu"
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    os.environ |= {"TORCH_COMPILE_DISABLE": "1"} if on_cpu else {}
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - reads the environment

    asked = read_json(Path(part.prompts), list[tuple[list[int], int]])
    device = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 30} if on_cpu else {"gpu_memory_utilization": 0.6}
    common = {"dtype": MODEL.dtype, "max_model_len": MOST_TOKENS, "max_num_seqs": part.in_flight, "seed": 0}
    llm = LLM(model=part.model, tokenizer=part.model, generation_config="vllm", **common, **device)
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids, _ in asked]
    lengths = [
        SamplingParams(temperature=1.2, max_tokens=count, min_tokens=count, ignore_eos=True) for _, count in asked
    ]
    llm.generate(prompts[:8], lengths[:8], use_tqdm=False)
    llm.reset_prefix_cache()
    began = time.perf_counter()
    answers = llm.generate(prompts, lengths, use_tqdm=False)
    seconds = time.perf_counter() - began
    tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
    return Reading(tokens / seconds, {"tokens": float(tokens), "seconds": seconds})


def config_of(part: Part) -> RunConfig:
    """Return a run of one online phase: REINFORCE with a KL term, all weights, games of three turns."""
    sampling = {"temperature": 1.0, "max_new_tokens": part.tokens, "min_new_tokens": part.tokens}
    phase = {
        "algorithm": "reinforce",
        "steps": part.steps,
        "games": part.games,
        "kl_coef": 0.1,
        "learning_rate": 1e-6,
        "warmup_ratio": 0.0,
        "micro_batch_size": part.micro_batch,
        "gradient_checkpointing": True,
        "optimizer": part.optimizer,
        "sampling": sampling,
        "rewards": {GAME: {"tie": 1.0}},  # random models do nothing but tie
        "baseline_decay": 1.0,  # or all advantages were 0, and such utterances are not trained
        "evaluate_every": None,
        "save_steps": part.steps + 1,
        "save_dtype": "bfloat16",
    }
    model = ModelConfig(name=part.model, dtype=MODEL.dtype, device=MODEL.device)
    engine = {"backend": part.backend, "concurrency": part.in_flight, "max_length": MOST_TOKENS}
    game = {"name": GAME, "words": "shipped", "max_turns": 3}
    return RunConfig.model_validate({"model": model.model_dump(), "engine": engine, "game": game, "phases": [phase]})


def online_steps(part: Part) -> Reading:
    """Return the seconds of a step, the mean of all but the first, which opens the engine; and those of its parts."""
    config = config_of(part)
    engine = next(iter(planned_engines(config).values()), None) or PlannedEngine(**config.engine.model_dump())
    with tempfile.TemporaryDirectory() as folder:
        job = TrainingJob(
            model=config.model,
            phase=config.phases[0],
            game=config.game,
            start_from=part.model,
            output=Path(folder) / "online",
            seed=0,
            engine=engine,
        )
        train_on(job, SilentReporter(), "online")
        lines = (job.output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][1:]
    names = ("play_s", "logprobs_s", "train_s", "update_weights_s", "tokens", "tokens_per_second")
    means = {name: statistics.fmean(row[name] for row in rows) for name in ("step_s", *names)}
    means["rest_s"] = means["step_s"] - sum(means[name] for name in names if name.endswith("_s"))
    return Reading(means["step_s"], means)


def planned_gib(part: Part) -> tuple[float, str]:
    """Return the peak of an online step as the memory plan has it, and why it does not fit, if so."""
    stages = plan_here(config_of(part)).stages[:2]
    return max(stage.memory.total for stage in stages) / 2**30, "; ".join(one for s in stages for one in s.problems)


PARTS = {"play": play_games, "flat": flat_batch, "online": online_steps}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one part, and print its reading as JSON.")
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--model", required=True)
    for option in fields(Part)[1:]:
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    chosen = vars(parser.parse_args())
    random.seed(0)
    reading = PARTS[chosen.pop("name")](Part(**chosen))
    print_reading(reading)


if __name__ == "__main__":
    main()
