"""Play: games an hour, against a loop written the paper's way, and how much of an engine's speed play makes use of.

The paper's way: one game at a time, ``generate`` for each utterance, nothing kept between turns. Both sides play full games of 3
turns, 6 utterances of 64 tokens, on SmolLM2-135M (nobody wins: the judge is switched off, so that all games are equally long), with the
prompts and the sampling of self-play, in the precision that ``dtype: auto`` finds fastest here. An utterance that a stop string ends early
counts for what it has: games an hour = tokens an hour / 384.

The scheduler's contest is one engine against itself: games of 2 turns whose utterances differ in length, against batches of utterances of
their mean length, turn by turn, with the same prompts.

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
from spag.core.types import GameState, Utterance
from spag.engines.base import Completion, Engine, Request, Sampling
from spag.engines.opening import open_engines
from spag.games.taboo.prompts import play_prompt
from spag.games.taboo.rules import AdversarialTaboo
from spag.games.taboo.types import Outcome, Role, Verdict
from spag.games.taboo.wordlist import load_words
from spag.models.loading import EMBEDDED_NAME, default_device, fastest_dtype, load_model, load_tokenizer
from spag.models.tokens import PromptStyle, encode_prompt, stop_token_ids
from spag.rollout.runner import Player, PlayStats, game_specs, play

MODEL = ModelConfig(name=EMBEDDED_NAME, dtype=fastest_dtype(), device=default_device())
TOKENS, TURNS = 64, 3
FEWEST, SHORT = 8, 2  # tokens and turns of the scheduler's contest
FULL = Sampling(temperature=1.2, max_new_tokens=TOKENS, min_new_tokens=TOKENS)
EVEN = replace(FULL, max_new_tokens=(FEWEST + TOKENS) // 2, min_new_tokens=(FEWEST + TOKENS) // 2)
IN_FLIGHT = 64
GPU_IN_FLIGHT = 256  # with a model as small as SmolLM2-135M
GPU_MEMORY = 0.6


@dataclass(frozen=True, slots=True)
class EndlessTaboo(AdversarialTaboo):
    """The rules without a judge: every game runs to its last turn. Satisfies ``spag.core.types.Game``."""

    def apply(self, state: GameState, utterance: Utterance) -> GameState:
        history = (*state.history, utterance)
        over = len(history) == 2 * state.max_turns
        return replace(state, history=history, verdict=Verdict(Outcome.TIE, len(history), "") if over else None)


class PaperLoop:
    """One game after another through ``generate``."""

    def __init__(self, model: ModelConfig) -> None:
        self.model = load_model(model.name, dtype=model.dtype, device=model.device)
        self.tokenizer = load_tokenizer(model.name)
        self.stop_ids = sorted(stop_token_ids(self.model.generation_config, self.tokenizer, PromptStyle.PLAIN))
        self.words = iter(_words(1000))

    def __call__(self) -> Reading:
        game = EndlessTaboo()
        state = game.initial_state(next(self.words), TURNS)
        tokens, began = 0, time.perf_counter()
        while state.verdict is None:
            role = state.role_to_move
            prompt = encode_prompt(self.tokenizer, play_prompt(game.observe(state, role)), PromptStyle.PLAIN)
            generated = self._generate(prompt)
            tokens += len(generated)
            state = game.apply(state, Utterance(role, self.tokenizer.decode(generated, skip_special_tokens=True).strip()))
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
    player = Player(engine, "player", FULL)
    specs = game_specs(random.sample(_words(2000), games), 1, seed=random.getrandbits(32))
    began = time.perf_counter()
    finished = list(play(specs, dict.fromkeys(Role, player), max_turns=TURNS, game=EndlessTaboo(), stats=stats, in_flight=games))
    assert len(finished) == games
    return _games_per_hour(stats.completion_tokens, time.perf_counter() - began)


def rounds(engine: Engine, games: int, turns: int, sampling: Sampling) -> Iterator[Reading]:
    """Play games in step: all first utterances, once all are there the second ones, and so on. Yields tokens a second of each round."""
    game = EndlessTaboo()
    states = {word: game.initial_state(word, turns) for word in random.sample(_words(2000), games)}
    for _ in range(2 * turns):
        began, done, tokens = time.perf_counter(), 0, 0
        for word, state in states.items():
            engine.submit(Request(word, play_prompt(game.observe(state, state.role_to_move)), sampling, random.getrandbits(62)))
        while done < games:
            for completion in engine.poll():
                done += 1
                tokens += completion.completion_tokens
                state = states[completion.id]
                states[completion.id] = game.apply(state, Utterance(state.role_to_move, completion.text))
        seconds = time.perf_counter() - began
        yield Reading(tokens / seconds, {"tokens": tokens, "seconds": seconds})


def flat_batches(engine: Engine, size: int) -> Reading:
    """Tokens a second of batches of equal lengths: the rounds of ``size`` games in step."""
    played = list(rounds(engine, size, SHORT, EVEN))
    tokens, seconds = (sum(reading.more[name] for reading in played) for name in ("tokens", "seconds"))
    return Reading(tokens / seconds, {"tokens": tokens})


class UnevenEngine:
    """An engine whose utterances have from 8 to 64 tokens, drawn by their seeds: 36 on average. Satisfies ``spag.engines.base.Engine``.

    ``clock`` holds the time at which each utterance came, and the tokens until then.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.concurrency, self.close = engine, engine.concurrency, engine.close
        self.clock: list[tuple[float, int]] = [(time.perf_counter(), 0)]

    def submit(self, request: Request) -> None:
        length = random.Random(request.seed).randint(FEWEST, TOKENS)
        self.engine.submit(replace(request, sampling=replace(FULL, max_new_tokens=length, min_new_tokens=length)))

    def poll(self) -> list[Completion]:
        completions = self.engine.poll()
        now = time.perf_counter()
        for completion in completions:
            self.clock.append((now, self.clock[-1][1] + completion.completion_tokens))
        return completions


def uneven_games(engine: Engine, games: int, in_flight: int) -> Reading:
    """Tokens a second of games of uneven utterances, ``in_flight`` at once, each replaced as soon as it ends.

    The clock runs from as many utterances until no game is left to begin: ``in_flight`` utterances are under way at either end.
    """
    uneven = UnevenEngine(engine)
    player = Player(uneven, "player", FULL)
    specs = game_specs(random.sample(_words(2000), games), 1, seed=random.getrandbits(32))
    play_on = play(specs, dict.fromkeys(Role, player), max_turns=SHORT, game=EndlessTaboo(), in_flight=in_flight)
    last = 0
    for finished, _ in enumerate(play_on, start=1):
        if finished == games - in_flight:
            last = len(uneven.clock) - 1
    (began, before), (ended, after) = uneven.clock[in_flight], uneven.clock[last]
    return Reading((after - before) / (ended - began), {"tokens": after - before, "tokens_per_utterance": after / last})


def contests(backend: str, stack: ExitStack, model: ModelConfig, label: str, in_flight: int, *, quick: bool = False) -> Iterator[Contest]:
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
    settings = {"backend": backend, "concurrency": in_flight, "max_length": 2048, "memory": None if model.device == "cpu" else GPU_MEMORY}
    [engine] = open_engines([model], EngineConfig.model_validate(settings), stack)
    list(play(game_specs(["apple"], 1, seed=0), {role: Player(engine, "warm-up", replace(FULL, max_new_tokens=4)) for role in Role}))
    return engine


def _words(count: int) -> list[str]:
    return load_words("shipped", count)


def _games_per_hour(tokens: int, seconds: float) -> Reading:
    return Reading(3600 * tokens / seconds / (2 * TURNS * TOKENS), {"tokens_per_second": tokens / seconds, "seconds": seconds})
