"""Play: games an hour, against a loop written the paper's way, and how much of an engine's speed play makes use of.

The paper's way: one game at a time, ``generate`` for each utterance, nothing kept between turns. Both sides play full
games of 3 turns, 6 utterances of 64 tokens, on SmolLM2-135M (nobody wins: the judge is switched off, so that all games
are equally long), with the prompts and the sampling of self-play, in the precision that ``dtype: auto`` finds fastest
here. An utterance that a stop string ends early counts for what it has: games an hour = tokens an hour / 384.

The scheduler's contest is one engine against itself: games of 2 turns whose utterances differ in length, against
batches of utterances of their mean length, turn by turn, with the same prompts.

    python -m benchmarks --only transformers --only vllm
"""

import importlib.util
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from benchmarks.harness import Contest, Reading
from spag.config.schema import EngineConfig, ModelConfig
from spag.core.options import SamplingConfig
from spag.core.types import Result, Split, State, Task, Utterance
from spag.engines.base import Completion, Engine, Player, Request
from spag.engines.opening import open_model
from spag.games.taboo.taboo import AdversarialTaboo
from spag.models.finding import EMBEDDED_NAME
from spag.models.loading import default_device, fastest_dtype, load_model, load_tokenizer
from spag.models.tokens import PromptStyle, encode_prompt, stop_token_ids
from spag.rollout.runner import PlayStats, game_specs, next_request, play

MODEL = ModelConfig(name=EMBEDDED_NAME, dtype=fastest_dtype(), device=default_device())
TOKENS, TURNS = 64, 3
FEWEST, SHORT = 8, 2  # tokens and turns of the scheduler's contest
FULL = SamplingConfig(max_new_tokens=TOKENS, min_new_tokens=TOKENS)
EVEN = SamplingConfig(max_new_tokens=(FEWEST + TOKENS) // 2, min_new_tokens=(FEWEST + TOKENS) // 2)
IN_FLIGHT = 64
GPU_IN_FLIGHT = 256  # with a model as small as SmolLM2-135M
GPU_MEMORY = 0.6


@dataclass(frozen=True)
class EndlessTaboo(AdversarialTaboo):
    """The rules without a judge: every game runs to its last turn."""

    def rule(self, state: State) -> Result | None:
        return self.draw(state) if len(state.history) == 2 * self.max_turns else None

    def some_tasks(self, count: int) -> list[Task]:
        """Return words drawn again at each call."""
        return random.sample(self.tasks(Split.TRAIN, None, 0), count)


LONG_GAME = EndlessTaboo(max_turns=TURNS, words="shipped")
SHORT_GAME = EndlessTaboo(max_turns=SHORT, words="shipped")


class PaperLoop:
    """One game after another through ``generate``."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = load_model(model.name, dtype=model.dtype, device=model.device)
        self.tokenizer = load_tokenizer(model.name)
        self.stop_ids = sorted(stop_token_ids(self.model.generation_config, self.tokenizer, PromptStyle.PLAIN))
        self.tasks = iter(LONG_GAME.some_tasks(1000))

    def __call__(self) -> Reading:
        game, tokens = LONG_GAME, 0
        state, began = game.start(next(self.tasks), 0), time.perf_counter()
        while (role := game.to_move(state)) is not None:
            prompt = encode_prompt(self.tokenizer, game.prompt(game.observe(state, role)), PromptStyle.PLAIN)
            generated = self._generate(prompt)
            tokens += len(generated)
            state = game.apply(
                state, Utterance(role, self.tokenizer.decode(generated, skip_special_tokens=True).strip())
            )
        return _games_per_hour(tokens, time.perf_counter() - began)

    def _generate(self, prompt: list[int]) -> list[int]:
        with torch.inference_mode():
            ids = self.model.generate(
                torch.tensor([prompt], device=self.model.device),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=self.model.device),
                do_sample=True,
                temperature=FULL.temperature,
                top_k=0,
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                eos_token_id=self.stop_ids,
                pad_token_id=self.stop_ids[0],
            )
        return list(ids[0, len(prompt) :].tolist())


def full_games(engine: Engine, games: int) -> Reading:
    """Play ``games`` games of full length, all in flight at once."""
    stats = PlayStats()
    players = dict.fromkeys(LONG_GAME.roles, Player(engine, "player", FULL))
    specs = game_specs(LONG_GAME.some_tasks(games), 1, seed=random.getrandbits(32))
    began = time.perf_counter()
    finished = list(play(specs, players, game=LONG_GAME, stats=stats, in_flight=games))
    assert len(finished) == games
    return _games_per_hour(stats.completion_tokens, time.perf_counter() - began)


def rounds(engine: Engine, games: int, game: EndlessTaboo, sampling: SamplingConfig) -> Iterator[Reading]:
    """Play games in step: all first utterances, once all are there the second ones, and so on. Yields tokens a second
    of each round.
    """
    states = {task.id: game.start(task, random.getrandbits(62)) for task in game.some_tasks(games)}
    for _ in range(2 * game.max_turns):
        began, done, tokens = time.perf_counter(), 0, 0
        for word, state in states.items():
            engine.submit(next_request(word, game, state, 0, sampling))
        while done < games:
            for completion in engine.poll():
                done += 1
                tokens += completion.completion_tokens
                state = states[completion.id]
                states[completion.id] = game.apply(
                    state, Utterance(game.roles[len(state.history) % 2], completion.text)
                )
        seconds = time.perf_counter() - began
        yield Reading(tokens / seconds, {"tokens": tokens, "seconds": seconds})


def flat_batches(engine: Engine, size: int) -> Reading:
    """Tokens a second of batches of equal lengths: the rounds of ``size`` games in step."""
    played = list(rounds(engine, size, SHORT_GAME, EVEN))
    tokens, seconds = (sum(reading.more[name] for reading in played) for name in ("tokens", "seconds"))
    return Reading(tokens / seconds, {"tokens": tokens})


class UnevenEngine(Engine):
    """An engine whose utterances have from 8 to 64 tokens, drawn by their seeds: 36 on average.

    ``clock`` holds the time at which each utterance came, and the tokens until then.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.concurrency = engine, engine.concurrency
        self.clock: list[tuple[float, int]] = [(time.perf_counter(), 0)]

    def submit(self, request: Request) -> None:
        length = random.Random(request.seed).randint(FEWEST, TOKENS)
        sampling = SamplingConfig(max_new_tokens=length, min_new_tokens=length)
        self.engine.submit(replace(request, sampling=sampling))

    def poll(self) -> list[Completion]:
        completions = self.engine.poll()
        now = time.perf_counter()
        for completion in completions:
            self.clock.append((now, self.clock[-1][1] + completion.completion_tokens))
        return completions

    def close(self) -> None:
        self.engine.close()


def uneven_games(engine: Engine, games: int, in_flight: int) -> Reading:
    """Tokens a second of games of uneven utterances, ``in_flight`` at once, each replaced as soon as it ends.

    The clock runs from as many utterances until no game is left to begin: ``in_flight`` utterances are under way at
    either end.
    """
    uneven = UnevenEngine(engine)
    players = dict.fromkeys(SHORT_GAME.roles, Player(uneven, "player", FULL))
    specs = game_specs(SHORT_GAME.some_tasks(games), 1, seed=random.getrandbits(32))
    play_on = play(specs, players, game=SHORT_GAME, in_flight=in_flight)
    last = 0
    for finished, _ in enumerate(play_on, start=1):
        if finished == games - in_flight:
            last = len(uneven.clock) - 1
    (began, before), (ended, after) = uneven.clock[in_flight], uneven.clock[last]
    return Reading((after - before) / (ended - began), {"tokens": after - before, "tokens_per_utterance": after / last})


def contests(
    backend: str, stack: ExitStack, model: ModelConfig, label: str, in_flight: int, *, quick: bool = False
) -> Iterator[Contest]:
    """Open an engine and let it play against the paper's loop, and against itself."""
    engine = open_one(backend, stack, model, in_flight)
    loop = PaperLoop(model)
    games, waiting = (in_flight // 4, in_flight // 8) if quick else (in_flight, in_flight // 2)
    target = {"transformers": 5.0, "vllm": 10.0}[backend] if model.device == "cpu" else None
    yield Contest(f"play, {label}, {games} games in flight", "games/h", loop, lambda: full_games(engine, games), target)
    yield Contest(
        f"scheduler, {label}: uneven games over flat batches",
        "tokens/s",
        lambda: flat_batches(engine, in_flight),
        lambda: uneven_games(engine, in_flight + waiting, in_flight),
        0.9,
    )


def backends() -> list[str]:
    return ["transformers", *["vllm"] * (importlib.util.find_spec("vllm") is not None)]


def open_one(backend: str, stack: ExitStack, model: ModelConfig, in_flight: int) -> Engine:
    """Open one engine, and warm it up. On a GPU it leaves room for the paper's loop and its model."""
    settings = {
        "backend": backend,
        "concurrency": in_flight,
        "max_length": 2048,
        "memory": None if model.device == "cpu" else GPU_MEMORY,
    }
    engine = open_model(model, EngineConfig.model_validate(settings))
    stack.callback(engine.close)
    player = Player(engine, "warm-up", SamplingConfig(max_new_tokens=4, min_new_tokens=4))
    list(
        play(game_specs(SHORT_GAME.some_tasks(1), 1, seed=0), dict.fromkeys(SHORT_GAME.roles, player), game=SHORT_GAME)
    )
    return engine


def _games_per_hour(tokens: int, seconds: float) -> Reading:
    return Reading(
        3600 * tokens / seconds / (2 * TURNS * TOKENS), {"tokens_per_second": tokens / seconds, "seconds": seconds}
    )
